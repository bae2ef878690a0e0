// What the page of a service and the page of a trace share: how elements are made, how figures are written, what the
// reader chose. Foreign text (names, commands, messages) only ever becomes text of an element, with every character
// that does not print spelled out: nothing here or elsewhere in the pages makes HTML from a string.

export const byId = (id) => document.getElementById(id);

// As inert() of vram.report.escape: controls, bidirectional overrides, zero-width characters, line separators
// and halves of broken UTF-8 become visible escapes.
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
const SHORT_ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

export function inert(text) {
  return String(text).replace(UNPRINTABLE, (char) => {
    if (SHORT_ESCAPES[char]) return SHORT_ESCAPES[char];
    const code = char.codePointAt(0);
    if (code <= 0xff) return `\\x${code.toString(16).padStart(2, "0")}`;
    return code <= 0xffff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
  });
}

// element("p", {class: "note"}, "text", child): attributes, then texts and elements.
export function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : inert(value));
  }
  for (const child of children) {
    if (child !== null && child !== undefined && child !== "") made.append(child instanceof Node ? child : inert(child));
  }
  return made;
}

export function drawing(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = inert(text);
  return made;
}

export function button(text, onClick, attributes) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", onClick);
  return made;
}

// A link into the page and what the reader chose share the address: this link only moves the focus.
export function startSkipLink() {
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
}

// ---- figures ----

export const grouped = (number, digits = 0) =>
  number.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

// As size() of vram.units.
export function bytes(nbytes) {
  if (nbytes === null || nbytes === undefined) return "unknown";
  for (const [unit, scale] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (nbytes >= scale * (1 - 1 / 2048)) return `${(nbytes / scale).toFixed(1)} ${unit}`;
  }
  return `${nbytes} B`;
}

export const counted = (number, noun, plural = `${noun}s`) => `${grouped(number)} ${number === 1 ? noun : plural}`;

// ---- a note that follows the pointer, or stands at what has the focus ----

export function showTip(x, y, ...children) {
  const tip = byId("tip");
  tip.replaceChildren(...children);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const right = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(4, Math.min(x + 14 + width > right ? x - width - 10 : x + 14, right - width - 4))}px`;
  tip.style.top = `${Math.max(4, y + 18 + height > innerHeight ? y - height - 10 : y + 18)}px`;
}

export function hideTip() {
  byId("tip").hidden = true;
}

// ---- what the reader chose: kept in the address after "#", so that a link opens the same view ----

export let state = {};
let usual = {}, isKnown = {}, longest = Infinity;
const drawers = []; // [keys, draw]: a section is drawn again when one of its keys changed

// *defaults* name what can be chosen. A link may have been written by anyone: a value that is longer than *most*
// characters, or that the function of its key in *known* refuses, is not taken.
export function startState(defaults, known, most = Infinity) {
  [usual, isKnown, longest] = [defaults, known, most];
  state = readAddress();
  addEventListener("hashchange", restore);
  addEventListener("popstate", restore);
}

export function draws(keys, draw) {
  drawers.push([keys, draw]);
}

export function drawAll() {
  for (const [, draw] of drawers) draw();
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = { ...usual };
  for (const key of Object.keys(usual)) {
    const value = given.get(key);
    if (value !== null && value.length <= longest && (!isKnown[key] || isKnown[key](value))) found[key] = value;
  }
  return found;
}

// The address of the view with *changes*: for links.
export function address(changes = {}) {
  const given = new URLSearchParams();
  for (const [key, value] of Object.entries({ ...state, ...changes })) if (value !== usual[key]) given.set(key, value);
  return `#${given}`;
}

// Change what is shown. With *step* the browser's back button leads here again.
export function change(changes, { step = false } = {}) {
  const changed = take({ ...state, ...changes });
  if (!changed.length) return;
  try {
    history[step ? "pushState" : "replaceState"](null, "", address());
  } catch (error) {
    // Browsers refuse too many changes in a short time; the next one is kept.
  }
  redraw(changed);
}

function restore() {
  redraw(take(readAddress()));
}

// The keys whose value is another one in *next*, which is the state from now on.
function take(next) {
  const changed = Object.keys(next).filter((key) => next[key] !== state[key]);
  state = next;
  return changed;
}

function redraw(changed) {
  for (const [keys, draw] of drawers) if (keys.some((key) => changed.includes(key))) draw();
}
