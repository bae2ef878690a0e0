// The program's own words, fetched once: kinds of memory in the order of the bars, states of processes, harms.

import { element } from "./kit.js";

export const words = { version: "", kinds: [], states: [], harms: {} };
const kindsByName = new Map();
export const statesByName = new Map();

// What the terminal paints with glyphs, the page paints with patterns.
const PATTERNS = { "█": "solid", "▓": "dense", "▒": "medium", "░": "light", "▚": "stripes", "▞": "back-stripes", "?": "question", "·": "empty" };

export function learn(given) {
  Object.assign(words, given);
  given.kinds.forEach((kind, order) => kindsByName.set(kind.kind, { ...kind, order }));
  for (const state of given.states) statesByName.set(state.state, state);
}

export const kindOf = (name) => kindsByName.get(name) ?? { kind: name, meaning: "", color: "bright_black", glyph: "░", used: true, leftover: "unknown", order: 99 };

// Classes of a kind's colour and pattern; both are fixed words of the program.
export function paint(name) {
  const kind = kindOf(name);
  return `color-${kind.color.replace(/[^a-z]/g, "-")} pattern-${PATTERNS[kind.glyph] ?? "dashed"}`;
}

export const swatch = (name) => element("span", { class: `swatch ${paint(name)}`, "aria-hidden": "true" });

export const inOrder = (kinds) => Object.entries(kinds || {}).filter(([, nbytes]) => nbytes > 0).sort(([a], [b]) => kindOf(a).order - kindOf(b).order);

// Bytes of dead owners that are still held; bytes that no process accounts for; bytes that are free.
export function sums(kinds) {
  const found = { used: 0, free: 0, left: 0, unexplained: 0 };
  for (const [name, nbytes] of Object.entries(kinds || {})) {
    if (name === "free") found.free += nbytes;
    else if (name === "unattributed") found.unexplained += nbytes;
    else if (kindOf(name).leftover === "yes") found.left += nbytes;
    if (!["free", "unreported", "unassigned"].includes(name)) found.used += nbytes;
  }
  return found;
}
