// How elements are made, and how figures and times are written. Foreign text (names, commands, messages) only
// ever becomes text of an element, with every character that does not print spelled out: nothing here or
// elsewhere in the page makes HTML from a string.

import { serviceNow } from "./service.js";

export const byId = (id) => document.getElementById(id);

// As inert() of vram.report.escape: controls, bidirectional overrides, zero-width characters, line separators
// and halves of broken UTF-8 become visible escapes.
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

export function inert(text) {
  return String(text).replace(UNPRINTABLE, (char) => {
    if (SHORT[char]) return SHORT[char];
    const code = char.codePointAt(0);
    if (code <= 0xff) return `\\x${code.toString(16).padStart(2, "0")}`;
    return code <= 0xffff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
  });
}

// A command may be 128 KiB long: a cell of a table never needs more than this.
export const cut = (text, most = 240) => (text.length > most ? `${text.slice(0, most)}…` : text);

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

export const exact = (nbytes) => (nbytes === null || nbytes === undefined ? "unknown" : `${grouped(nbytes)} bytes`);

export const counted = (number, noun, plural = `${noun}s`) => `${grouped(number)} ${number === 1 ? noun : plural}`;

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
