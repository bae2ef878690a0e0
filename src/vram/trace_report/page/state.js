// What can be chosen on the page of a trace, and what the filters leave.

const DEFAULTS = {
  gpu: "", // number of the GPU, "unknown", or "" for all
  process: "", // index of the process, or "" for all
  // key of trace.groups; a steady program may have asked nothing of the driver
  memory: trace.kinds.some(({ group }) => group === "gpu") || !trace.kinds.length ? "gpu" : trace.kinds[0].group,
  from: "", // the part of the time that is shown, in ns
  to: "",
  at: "", // where the pointer of the timeline was put, in ns
  flame: trace.is_attached ? "window" : "peak", // key of MEASURES
  zoom: "", // node of the flame graph
  find: "",
  pattern: "", // "1": find is a regular expression
  sort: trace.is_attached ? "-window" : "-peak", // column of the table, "-" for largest first
  filter: "",
  filterpattern: "",
  only: "", // verdict or kind
  open: "", // place whose stack is open
};

// A link to another trace's page may name what this one has not.
const KNOWN = {
  gpu: (value) => trace.gpus.some(({ gpu }) => gpuKey(gpu) === value),
  process: (value) => trace.processes.some(({ index }) => String(index) === value),
  memory: (value) => Object.hasOwn(trace.groups, value),
};

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
