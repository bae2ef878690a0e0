// Memory over time: a lane for each GPU, stacked by kind, with a crosshair through all of them.

import { byId, bytes, change, drawing, draws, element, state } from "./kit.js";
import { arrange, clockTime, dayOf, moment, setText, when } from "./elements.js";
import { RANGES } from "./address.js";
import { ask, serviceNow } from "./service.js";
import { inOrder, kindOf, paint, sums } from "./words.js";

const LEFT = 58, RIGHT = 10, TOP = 22, BOTTOM = 20;
const AT_ONCE = 4; // questions to the service
const UNCHANGED_S = 60; // while nothing changes, a picture of the last hour is this old at most
const RETRY_S = 30;

const lanes = new Map(); // by number of the GPU
let gpus = []; // numbers
let fetched = { key: "", at: -Infinity, notBefore: 0 }, hasChanged = true, isNear = false, isKept = false, interval_s = 5, asking = null;
let pointer = null; // {at, gpu}: where the mouse or the keys are

const range_s = () => RANGES[state.range][0];
const shownGpus = () => gpus.filter((gpu) => state.gpu === "" || state.gpu === String(gpu));

export function setGpus(given) {
  const found = [...new Set(given.map(({ gpu }) => gpu))];
  if (found.join() === gpus.join()) return;
  gpus = found;
  for (const select of [byId("moment-gpu"), byId("search-gpu")]) {
    const kept = select.id === "search-gpu" ? state.on_gpu : state.on || select.value;
    const any = select.id === "search-gpu" ? [element("option", { value: "" }, "all")] : [];
    select.replaceChildren(...any, ...gpus.map((gpu) => element("option", { value: gpu }, select.id === "search-gpu" ? gpu : `GPU ${gpu}`)));
    if ([...select.options].some((option) => option.value === kept)) select.value = kept;
  }
  refresh();
}

// Called at each answer about now: history is asked for when it may have something new.
export function keepUp(now, changed) {
  hasChanged ||= changed;
  interval_s = now.interval_s;
  isKept = now.history;
  for (const id of ["moment-form", "search-form"]) byId(id).hidden = !isKept;
  if (!isKept) setEmpty("This service keeps no history: [history] enabled = false in serve.toml.");
  else refresh();
}

// ---- what is asked for ----

function pointCount() {
  return Math.max(60, Math.min(400, Math.round(laneWidth() / 3)));
}

async function refresh() {
  const key = `${state.range} ${shownGpus()} ${pointCount()}`;
  const now = performance.now() / 1000;
  const step = Math.max(10, range_s() / pointCount());
  const isDue = key !== fetched.key || (now - fetched.at > Math.max(step, hasChanged ? 0 : UNCHANGED_S) && now > fetched.notBefore);
  if (!isNear || !isKept || !gpus.length || !isDue || document.hidden) return;
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  fetched = { key, at: now, notBefore: 0 };
  hasChanged = false;
  const to = serviceNow(), from = to - range_s(), count = pointCount();
  const waiting = shownGpus();
  const failures = [];
  const worker = async () => {
    for (let gpu = waiting.shift(); gpu !== undefined; gpu = waiting.shift()) {
      await fetchLane(gpu, { from, to, count, signal }).catch((error) => failures.push(error));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  if (signal.aborted) return;
  if (failures.length) {
    hasChanged = true;
    // One that does not answer is asked when it answers again; one that refuses is left alone for a while.
    fetched.notBefore = performance.now() / 1000 + (failures.every(({ status }) => status === 0) ? 0 : RETRY_S);
  }
  byId("lanes").dataset.drawn = state.range;
  const [first] = failures;
  setEmpty(first ? [first.message, first.hint].filter(Boolean).join(" ") : "");
}

async function fetchLane(gpu, { from, to, count, signal }) {
  const { body } = await ask(`/api/v1/history/series?gpu=${gpu}&from=${from.toFixed(0)}&to=${to.toFixed(0)}&points=${count}`, { signal });
  const lane = lanes.get(gpu) ?? makeLane(gpu);
  const points = (Array.isArray(body.points) ? body.points : []).map((point) => ({ ...point, at: moment(point.at) })).filter(({ at }) => at !== null);
  const last = moment(body.recorded?.last) ?? to;
  // The recording is up to date, or it ended then.
  const end = to - last < 3 * interval_s + 10 ? to : last;
  points.forEach((point, at) => { point.until = Math.max(point.at, points[at + 1]?.at ?? end); });
  Object.assign(lane, { from, to, points });
  arrangeLanes();
  drawLane(lane);
}

function setEmpty(text) {
  byId("history-empty").hidden = !text;
  setText(byId("history-empty"), text);
  const isBare = !byId("lanes").childElementCount;
  for (const id of ["lanes", "lanes-help", "readout"]) byId(id).hidden = Boolean(text) && isBare;
}

// ---- lanes ----

function makeLane(gpu) {
  const node = element("figure", { class: "lane", "data-gpu": gpu });
  const lane = { gpu, node, points: [], from: 0, to: 1, plan: null };
  lanes.set(gpu, lane);
  return lane;
}

function arrangeLanes() {
  const many = shownGpus().length;
  byId("lanes").dataset.size = many < 2 ? "one" : many < 5 ? "few" : "many";
  arrange(byId("lanes"), shownGpus().map((gpu) => lanes.get(gpu)).filter(Boolean).map(({ node }) => node));
}

function laneWidth() {
  const any = byId("lanes").firstElementChild;
  return Math.max(240, (any ?? byId("lanes")).clientWidth);
}

const laneHeight = () => ({ one: 240, few: 150, many: 110 })[byId("lanes").dataset.size ?? "few"];

function plan(lane) {
  const width = laneWidth(), height = laneHeight();
  const most = Math.max(1, ...lane.points.map((point) => point.total_bytes || 0), ...lane.points.map((point) => sums(point.kinds).used));
  const inner = width - LEFT - RIGHT;
  return {
    width, height, most,
    x: (at) => LEFT + (inner * (at - lane.from)) / (lane.to - lane.from),
    y: (nbytes) => TOP + (height - TOP - BOTTOM) * (1 - nbytes / most),
    at: (x) => Math.min(lane.to, Math.max(lane.from, lane.from + ((lane.to - lane.from) * (x - LEFT)) / inner)),
  };
}

function drawLane(lane) {
  lane.plan = plan(lane);
  const { width, height, most, x, y } = lane.plan;
  const picture = drawing("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": laneWords(lane) });
  picture.append(patterns(lane.gpu));
  for (const tick of byteTicks(most, (height - TOP - BOTTOM) / 22)) {
    picture.append(drawing("line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick), class: "grid" }));
    picture.append(drawing("text", { x: LEFT - 6, y: y(tick) + 4, class: "end" }, tick ? bytes(tick).replace(".0 ", " ") : "0"));
  }
  for (const tick of timeTicks(lane.from, lane.to, (width - LEFT) / 90)) {
    picture.append(drawing("line", { x1: x(tick), x2: x(tick), y1: TOP, y2: height - BOTTOM, class: "grid" }));
    if (x(tick) > LEFT + 12 && x(tick) < width - 26) picture.append(drawing("text", { x: x(tick), y: height - 5, class: "middle" }, tickName(tick, lane)));
  }
  for (const stretch of stretches(lane)) drawStretch(picture, lane, stretch);
  for (const [start, end] of gaps(lane)) drawGap(picture, lane, start, end);
  const last = pointAt(lane, lane.to);
  const now = last ? `${bytes(sums(last.kinds).used)} used` : "not recorded now";
  picture.append(drawing("text", { x: LEFT, y: 14, class: "lane-name" }, `GPU ${lane.gpu}`), drawing("text", { x: width - RIGHT, y: 14, class: "end" }, now));
  picture.append(drawing("line", { class: "chosen", y1: TOP, y2: height - BOTTOM, visibility: "hidden" }), drawing("line", { class: "pointer", y1: TOP, y2: height - BOTTOM, visibility: "hidden" }));
  lane.node.replaceChildren(picture);
  drawPointer();
}

function laneWords(lane) {
  const used = lane.points.filter(isKnown).map((point) => sums(point.kinds).used);
  if (!used.length) return `GPU ${lane.gpu}: nothing recorded`;
  return `GPU ${lane.gpu}, ${RANGES[state.range][2]}: at most ${bytes(Math.max(...used))} used, ${bytes(used[used.length - 1])} at last`;
}

// Light lines over a colour, as the bars have them.
function patterns(gpu) {
  const found = drawing("defs");
  for (const [name, turn] of [["stripes", -45], ["back-stripes", 45]]) {
    const pattern = drawing("pattern", { id: `${name}-${gpu}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${turn})` });
    pattern.append(drawing("rect", { width: 2, height: 6, class: "stripe" }));
    found.append(pattern);
  }
  return found;
}

const isKnown = (point) => point.total_bytes !== null && point.total_bytes !== undefined;

// Points without a gap between them. A point holds until the next one; one without figures says that from then
// on nothing was recorded.
function stretches(lane) {
  const found = [];
  for (const point of lane.points.filter(isKnown)) {
    const current = found[found.length - 1];
    if (current && current[current.length - 1].until === point.at) current.push(point);
    else found.push([point]);
  }
  return found;
}

function gaps(lane) {
  const found = [];
  let before = lane.from;
  for (const stretch of stretches(lane)) {
    if (stretch[0].at > before) found.push([before, stretch[0].at]);
    before = stretch[stretch.length - 1].until;
  }
  if (lane.to > before) found.push([before, lane.to]);
  return found;
}

function drawStretch(picture, lane, stretch) {
  const { x, y } = lane.plan;
  const kinds = [...new Set(stretch.flatMap((point) => Object.keys(point.kinds || {})))].filter((kind) => !["free", "unreported", "unassigned"].includes(kind));
  kinds.sort((a, b) => kindOf(b).order - kindOf(a).order); // trouble on top
  const lefts = stretch.map((point) => Math.max(LEFT, x(point.at)));
  const rights = [...lefts.slice(1), Math.max(LEFT, x(stretch[stretch.length - 1].until))];
  let below = stretch.map(() => 0);
  for (const kind of kinds) {
    const above = below.map((nbytes, at) => nbytes + (stretch[at].kinds[kind] || 0));
    const top = above.map((nbytes, at) => `${lefts[at].toFixed(1)} ${y(nbytes).toFixed(1)}L${rights[at].toFixed(1)} ${y(nbytes).toFixed(1)}`);
    const bottom = below.map((nbytes, at) => `${rights[at].toFixed(1)} ${y(nbytes).toFixed(1)}L${lefts[at].toFixed(1)} ${y(nbytes).toFixed(1)}`).reverse();
    const shape = `M${top.join("L")}L${bottom.join("L")}Z`;
    const look = paint(kind);
    picture.append(drawing("path", { d: shape, class: `area ${look}` }));
    const pattern = look.match(/pattern-((?:back-)?stripes)/);
    if (pattern) picture.append(drawing("path", { d: shape, fill: `url(#${pattern[1]}-${lane.gpu})` }));
    below = above;
  }
}

function drawGap(picture, lane, start, end) {
  const { x, width, height } = lane.plan;
  const left = Math.max(LEFT, x(start)), right = Math.min(width - RIGHT, x(end));
  picture.append(drawing("rect", { x: left, y: TOP, width: Math.max(0, right - left), height: height - TOP - BOTTOM, class: "gap" }));
  if (right - left > 96) picture.append(drawing("text", { x: (left + right) / 2, y: TOP + (height - TOP - BOTTOM) / 2 + 4, class: "middle" }, "not recorded"));
}

// Powers of two, so that at most *count* fit.
function byteTicks(most, count) {
  let step = 1;
  while (most / step > count) step *= 2;
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, at) => at * step);
}

// Round times of the reader's own day.
function timeTicks(from, to, count) {
  const rough = (to - from) / Math.max(2, count);
  const step = [60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000].find((choice) => choice >= rough) ?? 864000;
  const zone_s = -60 * new Date(to * 1000).getTimezoneOffset();
  const found = [];
  for (let tick = Math.ceil((from + zone_s) / step) * step - zone_s; tick <= to; tick += step) found.push(tick);
  return found;
}

const tickName = (tick, lane) => (lane.to - lane.from > 2 * 86400 ? dayOf(tick) : clockTime(tick));

// ---- the pointer ----

const pointAt = (lane, at) => lane.points.findLast((point) => isKnown(point) && point.at <= at && at <= point.until) ?? null;

function drawPointer() {
  const chosenAt = state.at === "" ? null : Number(state.at);
  for (const lane of lanes.values()) {
    if (!lane.plan) continue;
    put(lane, ".pointer", pointer?.at ?? null);
    put(lane, ".chosen", state.on === String(lane.gpu) ? chosenAt : null);
  }
  const lane = pointer && lanes.get(pointer.gpu);
  setText(byId("readout"), lane ? pointWords(lane, pointer.at) : "");
}

function put(lane, selector, at) {
  const line = lane.node.querySelector(selector);
  const isShown = at !== null && at >= lane.from && at <= lane.to;
  line.setAttribute("visibility", isShown ? "visible" : "hidden");
  if (!isShown) return;
  line.setAttribute("x1", lane.plan.x(at));
  line.setAttribute("x2", lane.plan.x(at));
}

function pointWords(lane, at) {
  const point = pointAt(lane, at);
  if (!point) return `GPU ${lane.gpu} at ${when(at)}: not recorded`;
  const kinds = inOrder(point.kinds).filter(([kind]) => kind !== "free").map(([kind, nbytes]) => `${kind} ${bytes(nbytes)}`);
  return `GPU ${lane.gpu} at ${when(at)}: ${bytes(sums(point.kinds).used)} used${kinds.length ? ` · ${kinds.join(" · ")}` : ""}`;
}

// Points have whole seconds, rounded down, and the service takes a whole second for its end: what is asked for
// is what the chart shows there.
export function choose(at, gpu, { step = true } = {}) {
  change({ at: String(Math.floor(at)), on: String(gpu) }, { step });
}

function laneAt(event) {
  const node = event.target.closest(".lane");
  const lane = node && lanes.get(Number(node.dataset.gpu));
  if (!lane?.plan) return null;
  return { at: lane.plan.at(event.clientX - node.getBoundingClientRect().left), gpu: lane.gpu };
}

function onKey(event) {
  const shown = shownGpus().filter((gpu) => lanes.get(gpu)?.plan);
  if (!shown.length || event.ctrlKey || event.metaKey || event.altKey) return;
  const lane = lanes.get(shown.includes(pointer?.gpu) ? pointer.gpu : shown[0]);
  const now = pointer?.at ?? lane.to;
  const step = range_s() / (event.shiftKey ? 12 : 120);
  const move = (at, gpu = lane.gpu) => { pointer = { at: Math.min(lane.to, Math.max(lane.from, at)), gpu }; drawPointer(); };
  const near = (by) => shown[(shown.indexOf(lane.gpu) + by + shown.length) % shown.length];
  const keys = {
    ArrowLeft: () => move(now - step), ArrowRight: () => move(now + step), Home: () => move(lane.from), End: () => move(lane.to),
    ArrowUp: () => move(now, near(-1)), ArrowDown: () => move(now, near(1)), Enter: () => choose(now, lane.gpu), Escape: () => change({ at: "", on: "" }),
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

export function startChart() {
  const area = byId("lanes");
  for (const [key, [, short, long]] of Object.entries(RANGES)) {
    const input = element("input", { type: "radio", name: "range", value: key, "aria-label": long });
    input.addEventListener("change", () => change({ range: key }));
    byId("ranges").append(element("label", null, input, element("span", null, short)));
  }
  const check = () => { byId("ranges").querySelector(`input[value="${state.range}"]`).checked = true; };
  area.addEventListener("pointermove", (event) => { pointer = laneAt(event); drawPointer(); });
  area.addEventListener("pointerleave", () => { pointer = null; drawPointer(); });
  area.addEventListener("blur", () => { pointer = null; drawPointer(); });
  area.addEventListener("keydown", onKey);
  area.addEventListener("click", (event) => { const place = laneAt(event); if (place) choose(place.at, place.gpu); });
  draws(["range"], check);
  draws(["range", "gpu"], () => { arrangeLanes(); refresh(); });
  draws(["at", "on"], drawPointer);
  check();
  // What is far below the edge of the screen is not asked for.
  new IntersectionObserver((entries) => { isNear = entries[entries.length - 1].isIntersecting; refresh(); }, { rootMargin: "200px" }).observe(byId("history-section"));
  let width = laneWidth();
  new ResizeObserver(() => {
    if (Math.abs(width - laneWidth()) < 2) return;
    width = laneWidth();
    for (const gpu of shownGpus()) if (lanes.get(gpu)?.plan) drawLane(lanes.get(gpu));
  }).observe(area);
}
