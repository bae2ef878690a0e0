// What only the page of a service needs of elements and figures: changes in place, times, commands to be copied.

import { button, element, grouped, inert } from "./kit.js";
import { serviceNow } from "./service.js";

// A command may be 128 KiB long: a cell of a table never needs more than this.
export const cut = (text, most = 240) => (text.length > most ? `${text.slice(0, most)}…` : text);

// Touch the page only where it changes: selections, focus and screen readers stay undisturbed.
export function setText(node, text) {
  const shown = inert(text);
  if (node.textContent !== shown) node.textContent = shown;
}

// Put *nodes* into *parent* in this order, without moving those that are in place already.
export function arrange(parent, nodes) {
  let at = parent.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// ---- figures ----

export const exact = (nbytes) => (nbytes === null || nbytes === undefined ? "unknown" : `${grouped(nbytes)} bytes`);

// As age() of vram.report.process_table: 45s, 12m, 5h, 3d.
export function age(seconds) {
  if (seconds === null || seconds === undefined || !(seconds >= 0 && seconds < 1e10)) return "-";
  for (const [unit, scale, least] of [["d", 86400, 2], ["h", 3600, 1], ["m", 60, 1]]) {
    if (seconds >= scale * least) return `${Math.floor(seconds / scale)}${unit}`;
  }
  return `${Math.floor(seconds)}s`;
}

// In its two largest units: "3 d 4 h", "12 min 5 s".
export function duration(seconds) {
  let left = Math.max(0, Math.floor(seconds));
  const parts = [];
  for (const [unit, scale] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const count = Math.floor(left / scale);
    left -= count * scale;
    if (count || (unit === "s" && !parts.length)) parts.push(`${count} ${unit}`);
  }
  return parts.slice(0, 2).join(" ");
}

// ---- times: unix seconds; the reader's own time zone ----

// The service writes RFC 3339 or unix seconds.
export function moment(value) {
  if (value === null || value === undefined || value === "") return null;
  const seconds = typeof value === "number" ? value : /^-?\d+(\.\d+)?$/.test(value) ? Number(value) : Date.parse(value) / 1000;
  return Number.isFinite(seconds) && Math.abs(seconds) < 8e12 ? seconds : null;
}

const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const LONG_DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const IN_FULL = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const SHORT_CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

export const clockTime = (seconds) => SHORT_CLOCK.format(seconds * 1000);
export const dayOf = (seconds) => DAY.format(seconds * 1000);

// Today without the day, else with it.
export function when(seconds) {
  if (seconds === null) return "-";
  const then = new Date(seconds * 1000), now = new Date(serviceNow() * 1000);
  const day = then.getFullYear() !== now.getFullYear() ? LONG_DAY : then.toDateString() === now.toDateString() ? null : DAY;
  return day ? `${day.format(then)}, ${CLOCK.format(then)}` : CLOCK.format(then);
}

export const whenInFull = (seconds) => IN_FULL.format(seconds * 1000);

// ---- commands to be copied ----

export function commandLine(command) {
  const shown = element("code", { class: "command" }, command);
  const line = element("span", { class: "command-line" }, shown);
  // What cannot be shown as it is must not reach a terminal unseen.
  if (inert(command) !== command) return line;
  const copy = button("Copy", async () => {
    const done = await copyText(command, shown);
    setText(copy, done ? "Copied" : "Press Ctrl+C");
    setTimeout(() => setText(copy, "Copy"), 2000);
  }, { class: "copy", "aria-label": `Copy the command ${command}` });
  line.append(copy);
  return line;
}

// Browsers offer the clipboard to https and to localhost only; elsewhere the text is selected.
async function copyText(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch (error) {
    getSelection().selectAllChildren(shown);
    return document.execCommand("copy");
  }
}
