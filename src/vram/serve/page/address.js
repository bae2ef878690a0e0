// What the reader chose: kept in the address after "#", so that a link opens the same view.

export const DEFAULTS = {
  gpu: "", // number of the only GPU that is shown
  filter: "", // text of the table of processes
  state: "", // state of the processes that are shown; "trouble" for all that need somebody
  sort: "trouble", // column, with "-" for the other direction
  open: "", // key of the row that is open
  range: "1h", // key of RANGES
  at: "", // moment that was chosen, in unix seconds
  on: "", // its GPU
  q: "", // text searched for
  what: "", // "ghosts"
  on_gpu: "", // GPU searched
  within: "7d", // key of RANGES, or "all"
};

export const RANGES = {
  "15m": [900, "15 min", "the last 15 minutes"],
  "1h": [3600, "1 h", "the last hour"],
  "6h": [6 * 3600, "6 h", "the last 6 hours"],
  "24h": [24 * 3600, "24 h", "the last 24 hours"],
  "7d": [7 * 86400, "7 d", "the last 7 days"],
  "30d": [30 * 86400, "30 d", "the last 30 days"],
};

// A link may have been written by anybody: what no control can set is not taken.
const NUMBER = /^\d{1,4}$/;
const KNOWN = {
  gpu: (value) => NUMBER.test(value),
  on: (value) => NUMBER.test(value),
  on_gpu: (value) => NUMBER.test(value),
  at: (value) => /^\d{1,11}(\.\d{1,6})?$/.test(value),
  range: (value) => Object.hasOwn(RANGES, value),
  within: (value) => value === "all" || Object.hasOwn(RANGES, value),
  what: (value) => value === "ghosts",
  sort: (value) => /^-?[a-z]{1,10}$/.test(value),
};
const LONGEST = 200;

export let state = { ...DEFAULTS };
const drawers = []; // [keys, draw]: a section is drawn again when one of its keys changed

export function draws(keys, draw) {
  drawers.push([keys, draw]);
}

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = { ...DEFAULTS };
  for (const key of Object.keys(DEFAULTS)) {
    const value = given.get(key);
    if (value !== null && value.length <= LONGEST && (value === DEFAULTS[key] || !KNOWN[key] || KNOWN[key](value))) found[key] = value;
  }
  return found;
}

// The address of the view with *changes*: for links.
export function address(changes = {}) {
  const given = new URLSearchParams();
  for (const [key, value] of Object.entries({ ...state, ...changes })) if (value !== DEFAULTS[key]) given.set(key, value);
  return `#${given}`;
}

// Change what is shown. With *step* the browser's back button leads here again.
export function change(changes, { step = false } = {}) {
  const next = { ...state, ...changes };
  const changed = Object.keys(next).filter((key) => next[key] !== state[key]);
  if (!changed.length) return;
  state = next;
  try {
    history[step ? "pushState" : "replaceState"](null, "", address());
  } catch (error) {
    // Browsers refuse too many changes in a short time; the next one is kept.
  }
  redraw(changed);
}

function redraw(changed) {
  for (const [keys, draw] of drawers) if (keys.some((key) => changed.includes(key))) draw(changed);
}

function restore() {
  const next = read();
  const changed = Object.keys(next).filter((key) => next[key] !== state[key]);
  state = next;
  if (changed.length) redraw(changed);
}

export function startAddress() {
  state = read();
  addEventListener("hashchange", restore);
  addEventListener("popstate", restore);
}
