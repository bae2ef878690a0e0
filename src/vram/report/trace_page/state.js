// What the reader chose: kept in the address after "#", so that a link reopens the same view.

const DEFAULTS = {
  gpu: "", // number of the GPU, "unknown", or "" for all
  process: "", // index of the process, or "" for all
  memory: "gpu", // key of trace.groups
  from: "", // the part of the time that is shown, in ns
  to: "",
  at: "", // where the pointer of the timeline was put, in ns
  flame: "peak", // key of MEASURES
  zoom: "", // node of the flame graph
  find: "",
  pattern: "", // "1": find is a regular expression
  sort: "-peak", // column of the table, "-" for largest first
  filter: "",
  filterpattern: "",
  only: "", // verdict or kind
  open: "", // place whose stack is open
};

let state = { ...DEFAULTS };
const drawers = []; // [keys, draw]: a section is drawn again when one of its keys changed

// A section says which parts of the state it shows.
function draws(keys, draw) {
  drawers.push([keys, draw]);
}

// A link to another trace's page may name what this one has not.
const KNOWN = {
  gpu: (value) => trace.gpus.some(({ gpu }) => gpuKey(gpu) === value),
  process: (value) => trace.processes.some(({ index }) => String(index) === value),
  memory: (value) => Object.hasOwn(trace.groups, value),
};

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const read = { ...DEFAULTS };
  for (const key of Object.keys(DEFAULTS)) {
    if (given.has(key) && (!KNOWN[key] || KNOWN[key](given.get(key)))) read[key] = given.get(key);
  }
  return read;
}

function address() {
  const given = new URLSearchParams();
  for (const [key, usual] of Object.entries(DEFAULTS)) if (state[key] !== usual) given.set(key, state[key]);
  return `#${given}`;
}

// Change what is shown. With *step* the browser's back button leads here again.
function change(changes, { step = false } = {}) {
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
  for (const [keys, draw] of drawers) if (keys.some((key) => changed.includes(key))) draw();
}

function restore() {
  const next = readAddress();
  const changed = Object.keys(next).filter((key) => next[key] !== state[key]);
  state = next;
  if (changed.length) redraw(changed);
}

addEventListener("hashchange", restore);
addEventListener("popstate", restore);

// ---- what the filters leave ----

const gpuKey = (gpu) => (gpu === null ? "unknown" : String(gpu));
const hasGpu = (gpu) => state.gpu === "" || state.gpu === gpuKey(gpu);
const hasProcess = (process) => state.process === "" || state.process === String(process);

function isShown(place) {
  return hasGpu(places.gpu[place]) && hasProcess(places.process[place]) && groupOf(place) === state.memory;
}

// A framework's leaks count as the GPU's: of memory that its blocks lie in, only they are called leaks.
function isLeakShown(leak) {
  const { place, verdict } = leak;
  const isBlockLeak = state.memory === "gpu" && groupOf(place) === "blocks" && verdict !== "in use at exit";
  return isShown(place) || (isBlockLeak && hasGpu(places.gpu[place]) && hasProcess(places.process[place]));
}

function shownPlaces() {
  const found = [];
  for (let place = 0; place < placeCount; place++) if (isShown(place)) found.push(place);
  return found;
}

// ---- a note that follows the pointer ----

function showTip(x, y, ...children) {
  const tip = byId("tip");
  tip.replaceChildren(...children);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const right = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(4, x + 14 + width > right ? x - width - 10 : x + 14)}px`;
  tip.style.top = `${Math.max(4, y + 18 + height > innerHeight ? y - height - 10 : y + 18)}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}
