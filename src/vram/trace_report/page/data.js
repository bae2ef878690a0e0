// The trace's figures, and how they are written.

const trace = JSON.parse(document.getElementById("trace-data").textContent);
const { frames, nodes, places, shown, texts } = trace;

const percent = (part, whole) => (whole > 0 ? `${grouped((100 * part) / whole, part / whole < 0.1 ? 1 : 0)} %` : "");

function time(ns) {
  const seconds = ns / 1e9;
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  if (seconds >= 60) return `${Math.floor(seconds / 60)} min ${grouped(seconds % 60, 1)} s`;
  if (seconds >= 1) return `${grouped(seconds, 2)} s`;
  if (ns >= 1e6) return `${grouped(ns / 1e6, 2)} ms`;
  return ns >= 1e3 ? `${grouped(ns / 1e3, 1)} µs` : `${ns} ns`;
}

// For an axis: "20 s", "1:30 min".
function clock(ns) {
  const seconds = ns / 1e9;
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)}:${String(Math.round((seconds % 3600) / 60)).padStart(2, "0")} h`;
  if (seconds >= 60) return `${Math.floor(seconds / 60)}:${String(+(seconds % 60).toFixed(2)).padStart(2, "0")} min`;
  const [unit, scale] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find((each) => ns >= each[1]) || ["ns", 1];
  return ns ? `${+(ns / scale).toFixed(3)} ${unit}` : "0";
}

const gpuName = (gpu) => (gpu === null ? "Unknown GPU" : `GPU ${gpu}`);
const processOf = (index) => trace.processes.find((process) => process.index === index);
const pidName = (index) => (processOf(index) ? `pid ${processOf(index).pid}` : "unknown process");

// ---- frames and stacks ----

// Without a symbol, the offset in the library has to do.
const functionOf = (frame) => texts[frames.function[frame]] || whereOf(frame).split("/").pop() || "(no name)";
const packageOf = (frame) => texts[frames.package[frame]];

function whereOf(frame) {
  const file = texts[frames.file[frame]];
  if (!file) return "";
  return frames.has_line[frame] ? `${file}:${frames.line[frame]}` : `${file}+0x${frames.line[frame].toString(16)}`;
}

// The last two parts of a path: enough to know the file in a table.
const shortWhere = (frame) => whereOf(frame).split("/").slice(-2).join("/");

// Innermost first.
function framesOf(node) {
  const found = [];
  for (let at = node; at >= 0; at = nodes.parent[at]) found.push(nodes.frame[at]);
  return found;
}

const OWN = new Set(["your program", "notebook"]);
const isOwn = (frame) => OWN.has(packageOf(frame));

// The line that people know, and who called it where it is a wrapper (undefined elsewhere): as the text report has them.
const shownAt = new Map(shown.node.map((node, at) => [node, at]));
const frameOr = (frame, other) => (frame === undefined || frame < 0 ? other : frame);
const placeOf = (node) => frameOr(shown.place[shownAt.get(node)], nodes.frame[node]);
const callerOf = (node) => frameOr(shown.caller[shownAt.get(node)], undefined);

// A frame as two pieces of text: what, and where.
function frameText(frame, where = whereOf) {
  return [
    element("span", { class: frames.native[frame] ? "function native" : "function" }, functionOf(frame)),
    element("span", { class: "where" }, where(frame)),
  ];
}

function stackList(node) {
  const list = element("ol", { class: "stack" });
  for (const frame of framesOf(node)) {
    list.append(element("li", { class: isOwn(frame) ? "own" : null }, ...frameText(frame)));
  }
  return list;
}

// CUresult of an allocation that did not fit. Others are attempts that programs expect to fail: PyTorch asks for
// memory of a kind that not every GPU has, and then for another.
const OUT_OF_MEMORY = 2;

// ---- places ----

const placeCount = places.node.length;
const groupOf = (place) => trace.kinds[places.kind[place]].group;
const kindOf = (place) => trace.kinds[places.kind[place]].name;

// A test of text for what was typed: null when nothing was, or an error's sentence.
function matcher(typed, isPattern) {
  if (!typed) return { test: null, error: "" };
  if (!isPattern) {
    const small = typed.toLowerCase();
    return { test: (text) => text.toLowerCase().includes(small), error: "" };
  }
  try {
    const pattern = new RegExp(typed, "im");
    return { test: (text) => pattern.test(text), error: "" };
  } catch (error) {
    return { test: null, error: "This is not a regular expression." };
  }
}

// Which frames match, once for each frame and not for each of its nodes. Function, file and package are
// lines, so that "^" and "$" of a regular expression stand for the ends of each.
function matchingFrames(test) {
  return Uint8Array.from(frames.function, (_, frame) =>
    test(`${functionOf(frame)}\n${whereOf(frame)}\n${packageOf(frame)}`) ? 1 : 0
  );
}
