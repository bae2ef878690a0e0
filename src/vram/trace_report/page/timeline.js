// Live bytes of each GPU over time: a band from the lowest to the highest of every stretch.

const timeline = byId("timeline");
const LEFT = 74, RIGHT = 14, TOP = 20, BOTTOM = 24;
const dragging = { from: null, to: null };
let pointer = null; // ns under the mouse; without one, state.at

const wholeTime = Math.max(1, trace.duration_ns, ...trace.timeline.map((lane) => lane.time[lane.time.length - 1]));
const timeRange = () => {
  const [from, to] = [Number(state.from), Number(state.to)];
  const isPart = state.to !== "" && from >= 0 && to > from && from < wholeTime;
  return isPart ? [from, Math.min(to, wholeTime)] : [0, wholeTime];
};
const shownLanes = () => trace.timeline.filter((lane) => hasGpu(lane.gpu));

// The point that covers a moment: the last that begins before it.
function pointAt(lane, moment) {
  let low = 0, high = lane.time.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (lane.time[middle] <= moment) low = middle;
    else high = middle - 1;
  }
  return low;
}

function layout() {
  const lanes = shownLanes();
  const width = Math.max(280, timeline.clientWidth);
  const each = lanes.length < 2 ? 210 : lanes.length < 4 ? 130 : 92;
  const [from, to] = timeRange();
  let most = 1; // one scale for all, so that GPUs can be compared
  for (const lane of lanes) {
    for (let at = pointAt(lane, from); at <= pointAt(lane, to); at++) most = Math.max(most, lane.highest[at]);
  }
  const inner = width - LEFT - RIGHT;
  return {
    lanes, width, each, from, to, most,
    height: TOP + Math.max(1, lanes.length) * each + BOTTOM,
    x: (moment) => LEFT + (inner * (moment - from)) / (to - from),
    moment: (x) => Math.min(to, Math.max(from, from + ((to - from) * (x - LEFT)) / inner)),
  };
}

// Round steps of time (base 10) or bytes (base 1024), so that about *count* fit.
function ticks(from, to, count, base) {
  const rough = Math.max((to - from) / count, 1e-9);
  const scale = base === 1024 ? 2 ** (10 * Math.floor(Math.log2(Math.max(1, rough)) / 10)) : 10 ** Math.floor(Math.log10(rough));
  const choices = base === 1024 ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] : [1, 2, 5, 10];
  let step = scale * (choices.find((choice) => choice * scale >= rough) || choices[choices.length - 1]);
  // Minutes and hours are no powers of ten.
  if (base === 10 && step > 1e10) step = 1e9 * ([15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600].find((choice) => choice * 1e9 >= rough) || step / 1e9);
  const found = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to && found.length < 50; tick += step) found.push(tick);
  return found;
}

function drawTimeline() {
  const plan = layout();
  byId("timeline-section").hidden = !trace.timeline.length;
  const picture = drawing("svg", { width: plan.width, height: plan.height, "aria-hidden": "true" });
  const hatch = drawing("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  hatch.append(drawing("rect", { width: 2, height: 6, class: "hatch" }));
  const definitions = drawing("defs");
  definitions.append(hatch);
  picture.append(definitions);
  const bottom = plan.height - BOTTOM;
  for (const tick of ticks(plan.from, plan.to, plan.width / 130, 10)) {
    picture.append(drawing("line", { x1: plan.x(tick), x2: plan.x(tick), y1: TOP, y2: bottom, class: "grid" }));
    picture.append(drawing("text", { x: plan.x(tick), y: plan.height - 8, class: "axis middle" }, clock(Math.round(tick))));
  }
  plan.lanes.forEach((lane, number) => drawLane(picture, plan, lane, TOP + number * plan.each));
  drawEvents(picture, plan, bottom);
  if (!plan.lanes.length && trace.timeline.length) picture.append(drawing("text", { x: plan.width / 2, y: 100, class: "axis middle" }, "Nothing was allocated here."));
  picture.append(drawing("g", { id: "pointer" }), drawing("rect", { id: "selection", class: "selection", y: TOP, height: bottom - TOP, width: 0 }));
  timeline.replaceChildren(picture);
  byId("whole-time").hidden = state.from === "";
  byId("timeline-note").hidden = state.process === "";
  byId("to-peak").disabled = !plan.lanes.length;
  drawPointer();
}

function drawLane(picture, plan, lane, top) {
  const height = plan.each - 14;
  const first = Math.max(0, pointAt(lane, plan.from)), last = pointAt(lane, plan.to);
  const most = plan.most;
  const y = (nbytes) => top + 10 + (height - 10) * (1 - nbytes / most);
  for (const tick of ticks(0, most, height / 40, 1024)) {
    picture.append(drawing("line", { x1: LEFT, x2: plan.width - RIGHT, y1: y(tick), y2: y(tick), class: "grid" }));
    picture.append(drawing("text", { x: LEFT - 8, y: y(tick) + 4, class: "axis end" }, bytes(tick).replace(".0 ", " ")));
  }
  const upper = [], lower = [], lasts = [];
  for (let at = first; at <= last; at++) {
    const left = Math.max(LEFT, plan.x(lane.time[at])).toFixed(1);
    const right = (at < last ? Math.max(LEFT, plan.x(lane.time[at + 1])) : plan.width - RIGHT).toFixed(1);
    upper.push(`${left} ${y(lane.highest[at]).toFixed(1)} ${right} ${y(lane.highest[at]).toFixed(1)}`);
    lower.push(`${right} ${y(lane.lowest[at]).toFixed(1)} ${left} ${y(lane.lowest[at]).toFixed(1)}`);
    lasts.push(`${right} ${y(lane.last[at]).toFixed(1)}`);
  }
  const base = `${plan.width - RIGHT} ${y(0)} ${Math.max(LEFT, plan.x(lane.time[first])).toFixed(1)} ${y(0)}`;
  const color = `lane-${Math.max(0, trace.timeline.indexOf(lane)) % 8}`;
  if (upper.length) {
    picture.append(drawing("path", { d: `M${upper.join("L")}L${base}Z`, class: `area ${color}` }));
    picture.append(drawing("path", { d: `M${upper.join("L")}L${lower.reverse().join("L")}Z`, class: `band ${color}` }));
    picture.append(drawing("path", { d: `M${upper.join("L")}`, class: `line ${color}` }));
  }
  picture.append(drawing("text", { x: LEFT + 6, y: top + 22, class: "lane-name" }, gpuName(lane.gpu)));
  const use = trace.gpus.find((gpu) => gpu.gpu === lane.gpu);
  if (use && use.peak_ns >= plan.from && use.peak_ns <= plan.to) {
    const x = plan.x(use.peak_ns);
    picture.append(drawing("circle", { cx: x, cy: y(Math.min(most, use.peak_nbytes)), r: 4, class: `peak ${color}` }));
    const side = x > plan.width - 190 ? "end" : "start";
    picture.append(drawing("text", { x: x + (side === "end" ? -9 : 9), y: y(Math.min(most, use.peak_nbytes)) - 4, class: `peak-name ${side}` }, `peak ${bytes(use.peak_nbytes)}`));
  }
  for (const failure of trace.failures) {
    if (failure.result !== OUT_OF_MEMORY || !hasProcess(failure.process) || (failure.gpu !== null && failure.gpu !== lane.gpu)) continue;
    if (failure.time_ns < plan.from || failure.time_ns > plan.to) continue;
    const x = plan.x(failure.time_ns);
    picture.append(drawing("path", { d: `M${x} ${y(0) - 11}l6 11h-12z`, class: "failure" }));
  }
}

function drawEvents(picture, plan, bottom) {
  for (const gap of trace.gaps) {
    const start = Math.max(plan.from, gap.start_ns), end = Math.min(plan.to, gap.end_ns === null ? plan.to : gap.end_ns);
    if (!hasProcess(gap.process) || end <= start) continue;
    const [x, width] = [plan.x(start), plan.x(end) - plan.x(start)];
    picture.append(drawing("rect", { x, width: Math.max(2, width), y: TOP, height: bottom - TOP, class: "gap", fill: "url(#hatch)" }));
    if (width > 90) picture.append(drawing("text", { x: x + width / 2, y: TOP + 14, class: "axis middle" }, "not recorded"));
  }
  let free = -Infinity; // labels do not lie over each other
  for (const mark of [...trace.marks].sort((a, b) => a.time_ns - b.time_ns)) {
    if (!hasProcess(mark.process) || mark.time_ns < plan.from || mark.time_ns > plan.to) continue;
    const x = plan.x(mark.time_ns);
    picture.append(drawing("line", { x1: x, x2: x, y1: 6, y2: bottom, class: "mark" }));
    const text = mark.text.length > 24 ? `${mark.text.slice(0, 23)}…` : mark.text;
    const wide = 7 * text.length;
    if (x < free || x + wide > plan.width) continue;
    picture.append(drawing("text", { x: x + 4, y: 14, class: "mark-name" }, text));
    free = x + wide + 12;
  }
}

// ---- the pointer ----

function drawPointer() {
  const plan = layout();
  const moment = pointer ?? (state.at === "" ? null : Number(state.at));
  const group = byId("pointer");
  group.replaceChildren();
  if (moment === null || !(moment >= plan.from && moment <= plan.to)) {
    byId("timeline-readout").textContent = "";
    return;
  }
  const x = plan.x(moment);
  group.append(drawing("line", { x1: x, x2: x, y1: TOP, y2: plan.height - BOTTOM, class: "pointer" }));
  byId("timeline-readout").textContent = momentText(moment, plan);
}

function momentText(moment, plan) {
  const near = (plan.to - plan.from) / 150;
  const parts = plan.lanes.map((lane) => {
    const at = pointAt(lane, moment);
    const [high, low] = [bytes(lane.highest[at]), bytes(lane.lowest[at])];
    return `${gpuName(lane.gpu)} ${high === low ? high : `${low} to ${high}`}`;
  });
  for (const mark of trace.marks) {
    if (hasProcess(mark.process) && Math.abs(mark.time_ns - moment) < near) parts.push(`mark “${mark.text}”`);
  }
  for (const gap of trace.gaps) {
    if (gap.start_ns <= moment && (gap.end_ns === null || moment <= gap.end_ns)) parts.push(`${pidName(gap.process)} was not recorded`);
  }
  for (const failure of trace.failures) {
    if (failure.result === OUT_OF_MEMORY && Math.abs(failure.time_ns - moment) < near) parts.push(`an allocation of ${bytes(failure.nbytes)} failed`);
  }
  return `After ${time(Math.round(moment))}: ${parts.slice(0, 14).join(" · ")}`;
}

// The highest moment of what is shown.
function peakMoment() {
  const plan = layout();
  let best = null, most = -1;
  for (const lane of plan.lanes) {
    const use = trace.gpus.find((gpu) => gpu.gpu === lane.gpu);
    if (use && use.peak_ns >= plan.from && use.peak_ns <= plan.to && use.peak_nbytes > most) {
      [best, most] = [use.peak_ns, use.peak_nbytes];
      continue;
    }
    for (let at = pointAt(lane, plan.from); at <= pointAt(lane, plan.to); at++) {
      if (lane.highest[at] > most) [best, most] = [Math.max(plan.from, lane.time[at]), lane.highest[at]];
    }
  }
  return best;
}

function goToPeak() {
  const moment = peakMoment();
  pointer = null;
  if (moment !== null) change({ at: String(moment) });
}

function zoomTime(from, to) {
  const wide = Math.max(wholeTime / 1e6, 1000, to - from);
  const begin = Math.max(0, Math.min(from, wholeTime - wide));
  pointer = null;
  if (wide >= wholeTime * 0.999) change({ from: "", to: "" });
  else change({ from: String(Math.round(begin)), to: String(Math.round(begin + wide)) }, { step: true });
}

function startTimeline() {
  const inside = (event) => event.clientX - timeline.getBoundingClientRect().left;
  timeline.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    dragging.from = dragging.to = inside(event);
    timeline.setPointerCapture(event.pointerId);
  });
  timeline.addEventListener("pointermove", (event) => {
    pointer = layout().moment(inside(event));
    if (dragging.from !== null) {
      dragging.to = inside(event);
      const [left, right] = [dragging.from, dragging.to].sort((a, b) => a - b);
      const selection = byId("selection");
      selection.setAttribute("x", Math.max(LEFT, left));
      selection.setAttribute("width", Math.max(0, right - Math.max(LEFT, left)));
    }
    drawPointer();
  });
  const finish = (event, isDone) => {
    if (dragging.from === null) return;
    const [left, right] = [dragging.from, dragging.to].sort((a, b) => a - b);
    dragging.from = null;
    byId("selection").setAttribute("width", 0);
    if (!isDone) return;
    if (right - left < 5) return goToPeak();
    const plan = layout();
    zoomTime(plan.moment(left), plan.moment(right));
  };
  timeline.addEventListener("pointerup", (event) => finish(event, true));
  timeline.addEventListener("pointercancel", (event) => finish(event, false));
  timeline.addEventListener("pointerleave", () => { pointer = null; drawPointer(); });
  timeline.addEventListener("dblclick", () => change({ from: "", to: "" }));
  timeline.addEventListener("keydown", timelineKey);
  byId("to-peak").addEventListener("click", goToPeak);
  byId("whole-time").addEventListener("click", () => change({ from: "", to: "" }));
  draws(["gpu", "process", "from", "to"], drawTimeline);
  draws(["at"], drawPointer);
}

function timelineKey(event) {
  const { from, to } = layout();
  const now = state.at === "" ? from : Math.min(to, Math.max(from, Number(state.at) || 0));
  const step = (to - from) / (event.shiftKey ? 20 : 200);
  const put = (moment) => { pointer = null; change({ at: String(Math.round(Math.min(to, Math.max(from, moment)))) }); };
  const zoom = (factor) => zoomTime(now - (now - from) * factor, now + (to - now) * factor);
  const keys = {
    ArrowLeft: () => put(now - step), ArrowRight: () => put(now + step), Home: () => put(from), End: () => put(to),
    p: goToPeak, P: goToPeak, "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
    Escape: () => change({ from: "", to: "" }),
  };
  if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  keys[event.key]();
}
