// The flame graph: stacks as nested bars, the outermost call on top, width by bytes.

const canvas = byId("flame");
const MEASURES = {
  peak: { name: "At the peak", count: "peak_count", text: "live at the peak" },
  window: { name: "Highest since", count: "window_count", text: "live at the highest moment of the window" },
  left: { name: "Never freed", count: "left_count", text: "never freed" },
  allocated: { name: "Allocated in all", count: "allocations", text: "allocated in all" },
  churn: { name: "Freed again soon", count: "churn_count", text: "freed again soon" },
};
if (!trace.windows.length) delete MEASURES.window;
const BAR = 19;
const NARROWEST = 1; // CSS pixels; narrower bars are drawn together
const COLORS = 10;

const measure = () => (Object.hasOwn(MEASURES, state.flame) ? state.flame : "peak");

// The peaks of several GPUs are at different moments.
function measureText() {
  const isMany = measure() === "peak" && state.gpu === "" && trace.gpus.length > 1;
  return isMany ? "live at each GPU's peak" : MEASURES[measure()].text;
}

const zoomed = () => (/^\d+$/.test(state.zoom) && Number(state.zoom) < nodes.parent.length ? Number(state.zoom) : -1);

// Children of each node as a linked list; the outermost frames belong to node -1, kept at the end.
const ROOT = nodes.parent.length;
const firstChild = new Int32Array(ROOT + 1).fill(-1);
const nextSibling = new Int32Array(ROOT + 1).fill(-1);
for (let node = ROOT - 1; node >= 0; node--) {
  const parent = nodes.parent[node] < 0 ? ROOT : nodes.parent[node];
  nextSibling[node] = firstChild[parent];
  firstChild[parent] = node;
}

const weight = new Float64Array(ROOT + 1);
const weightCount = new Float64Array(ROOT + 1);
let bars = []; // rows of {x, width, node, merged, nbytes}, as drawn
let matches = null; // Uint8Array by frame, while something is looked for
let cursor = null; // the bar that the keyboard has reached
let hovered = null;
let colorOf = new Map(); // package: number of its colour

function weigh() {
  weight.fill(0);
  weightCount.fill(0);
  const [values, counts] = [places[measure()], places[MEASURES[measure()].count]];
  for (const place of shownPlaces()) {
    const node = places.node[place];
    weight[node] += values[place];
    weightCount[node] += counts[place];
  }
  // Parents come first, so one pass from the end gives every node the sum of what is below it.
  for (let node = ROOT - 1; node >= 0; node--) {
    const parent = nodes.parent[node] < 0 ? ROOT : nodes.parent[node];
    weight[parent] += weight[node];
    weightCount[parent] += weightCount[node];
  }
  colourPackages(packageBytes());
}

// The bytes below the outermost frames of each package: what lies deeper is in them already.
function packageBytes() {
  const found = new Map();
  for (let node = 0; node < ROOT; node++) {
    if (!(weight[node] > 0)) continue;
    const number = frames.package[nodes.frame[node]];
    let above = nodes.parent[node];
    while (above >= 0 && frames.package[nodes.frame[above]] !== number) above = nodes.parent[above];
    if (above < 0) found.set(texts[number], (found.get(texts[number]) || 0) + weight[node]);
  }
  return found;
}

// The largest packages get a colour of their own, the others share a grey.
function colourPackages(packages) {
  const ranked = [...packages].filter(([name]) => !OWN.has(name) && name !== "unknown").sort((a, b) => b[1] - a[1]);
  colorOf = new Map(ranked.slice(0, COLORS - 1).map(([name], at) => [name, at + 1]));
  for (const name of OWN) colorOf.set(name, 0);
  const legend = byId("legend");
  legend.replaceChildren();
  for (const [name, nbytes] of [...packages].sort((a, b) => b[1] - a[1]).slice(0, COLORS + 2)) {
    const find = () => change({ find: state.find === name ? "" : name, pattern: "" });
    const entry = button("", find, { title: "Find it in the graph" });
    entry.append(element("span", { class: `swatch color-${colorOf.get(name) ?? "other"}` }));
    entry.append(element("bdi", null, name), element("span", { class: "count" }, bytes(nbytes)));
    legend.append(element("li", null, entry));
  }
}

function below(node) {
  const found = [];
  for (let child = firstChild[node]; child >= 0; child = nextSibling[child]) if (weight[child] > 0) found.push(child);
  return found.sort((a, b) => weight[b] - weight[a]);
}

// The bars that are wide enough to be seen; what is narrower is one bar beside them.
function arrangeBars(width) {
  const top = zoomed() < 0 ? ROOT : zoomed();
  const ancestors = [];
  for (let node = top; node !== ROOT; ) ancestors.unshift((node = nodes.parent[node] < 0 ? ROOT : nodes.parent[node]));
  // Even with nothing to show there is one row, so that everything below has a width.
  bars = ancestors.map((node) => [{ x: 0, width, node, above: true, nbytes: weight[node] }]);
  let row = [{ x: 0, width, node: top, nbytes: weight[top] }];
  const scale = weight[top] > 0 ? width / weight[top] : 0;
  bars.push(row);
  while (row.length && scale) {
    const next = [];
    for (const bar of row) {
      if (bar.merged) continue;
      let x = bar.x, merged = 0, nbytes = 0;
      for (const child of below(bar.node)) {
        const wide = weight[child] * scale;
        if (wide >= NARROWEST) next.push({ x, width: wide, node: child, nbytes: weight[child] });
        else { merged += 1; nbytes += weight[child]; continue; }
        x += wide;
      }
      if (nbytes * scale >= NARROWEST) next.push({ x, width: nbytes * scale, node: bar.node, merged, nbytes });
    }
    row = next;
    if (row.length) bars.push(row);
  }
}

function drawFlame() {
  cursor = hovered = null;
  arrangeBars(Math.max(280, canvas.parentElement.clientWidth));
  const isEmpty = !(weight[ROOT] > 0);
  canvas.hidden = isEmpty;
  byId("flame-empty").hidden = !isEmpty;
  byId("flame-empty").textContent = `Nothing here was ${MEASURES[measure()].text}.`;
  paint();
}

function paint() {
  const [width, height] = [bars[0][0].width, bars.length * BAR + 1];
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.textBaseline = "middle";
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const ink = { paper: color("paper"), text: color("bar-ink"), other: color("bar-other"), dim: color("bar-dim"), dimText: color("quiet"),
    match: color("match"), matchText: color("match-ink"), edge: color("edge"), focus: color("focus"),
    bars: Array.from({ length: COLORS }, (_, at) => color(`bar-${at}`)) };
  const fonts = [style.getPropertyValue("--sans").trim(), "12px"];
  bars.forEach((row, level) => row.forEach((bar) => paintBar(pen, bar, level * BAR, ink, fonts)));
}

function paintBar(pen, bar, y, ink, [family, size]) {
  const frame = bar.node === ROOT ? -1 : nodes.frame[bar.node];
  const isNative = frame >= 0 && !bar.merged && frames.native[frame];
  const isMatch = matches && frame >= 0 && !bar.merged && matches[frame];
  let fill = frame < 0 || bar.merged ? ink.other : ink.bars[colorOf.get(packageOf(frame))] || ink.other;
  let text = ink.text;
  if (isMatch) [fill, text] = [ink.match, ink.matchText];
  else if (matches || bar.above) [fill, text] = [ink.dim, ink.dimText];
  const gap = bar.width > 3 ? 1 : 0;
  pen.fillStyle = fill;
  pen.fillRect(bar.x, y, bar.width - gap, BAR - 1);
  if (isNative && bar.width > 6) {
    pen.strokeStyle = ink.edge;
    pen.strokeRect(bar.x + 0.5, y + 0.5, bar.width - gap - 1, BAR - 2);
  }
  if (hovered === bar || (cursor === bar && document.activeElement === canvas)) {
    pen.strokeStyle = ink.focus;
    pen.lineWidth = 2;
    pen.strokeRect(bar.x + 1, y + 1, Math.max(1, bar.width - gap - 2), BAR - 3);
    pen.lineWidth = 1;
  }
  if (bar.width < 30) return;
  pen.fillStyle = text;
  pen.font = `${isNative ? "italic " : ""}${size} ${family}`;
  const width = bar.width - 10;
  pen.fillText(fitting(pen, barName(bar, pen, width), width), bar.x + 5, y + BAR / 2);
}

function barName(bar, pen, width) {
  if (bar.merged) return `${bar.merged} smaller`;
  if (bar.node === ROOT) return `All: ${bytes(weight[ROOT])} ${measureText()}`;
  const frame = nodes.frame[bar.node];
  if (frames.native[frame]) return `${functionOf(frame)}  ${bytes(bar.nbytes)}`;
  let name = functionOf(frame);
  if (pen.measureText(name).width > width) name = name.split(".").pop(); // of Model.forward the end says most
  return `${name}  ${whereOf(frame).split("/").pop()}  ${bytes(bar.nbytes)}`;
}

// As much of a text as fits: without asking the canvas about every letter.
function fitting(pen, text, width) {
  let letters = Math.min(text.length, Math.floor(width / 3));
  if (letters === text.length && pen.measureText(text).width <= width) return text;
  while (letters > 0 && pen.measureText(`${text.slice(0, letters)}…`).width > width) letters -= Math.max(1, Math.floor(letters / 12));
  return letters > 1 ? `${text.slice(0, letters)}…` : "";
}

// ---- finding ----

function lookFor() {
  const { test, error } = matcher(state.find, state.pattern === "1");
  const input = byId("find");
  if (document.activeElement !== input) input.value = state.find;
  byId("find-pattern").checked = state.pattern === "1";
  input.setAttribute("aria-invalid", error ? "true" : "false");
  matches = test ? matchingFrames(test) : null;
  byId("found").textContent = error || (matches ? foundText() : "");
}

// Bytes of the outermost matches: what lies below one is in it already.
function foundText() {
  const covered = new Uint8Array(ROOT);
  const top = zoomed();
  let nbytes = 0, count = 0;
  for (let node = 0; node < ROOT; node++) {
    const parent = nodes.parent[node];
    const inside = top < 0 || node === top || (parent >= 0 && covered[parent] & 2);
    const wasCovered = parent >= 0 && covered[parent] & 1;
    const isMatch = inside && weight[node] > 0 && matches[nodes.frame[node]];
    if (isMatch) count += 1;
    if (isMatch && !wasCovered) nbytes += weight[node];
    covered[node] = (wasCovered || isMatch ? 1 : 0) | (inside ? 2 : 0);
  }
  if (!count) return "Nothing matches.";
  return `${bytes(nbytes)} in ${counted(count, "matching bar")} (${percent(nbytes, weight[top < 0 ? ROOT : top])})`;
}

// ---- zooming and moving ----

function drawCrumbs() {
  const crumbs = byId("crumbs");
  const path = [];
  for (let node = zoomed(); node >= 0; node = nodes.parent[node]) path.unshift(node);
  crumbs.replaceChildren();
  crumbs.hidden = !path.length;
  if (!path.length) return;
  crumbs.append(button("All", () => zoomTo(ROOT)));
  const shown = path.length > 6 ? [...path.slice(0, 2), -1, ...path.slice(-3)] : path;
  for (const node of shown) {
    const name = node < 0 ? "…" : functionOf(nodes.frame[node]);
    crumbs.append(element("span", { "aria-hidden": "true" }, "›"));
    if (node < 0 || node === zoomed()) crumbs.append(element("bdi", node < 0 ? null : { "aria-current": "true" }, name));
    else crumbs.append(button(name, () => zoomTo(node)));
  }
}

function zoomTo(node) {
  hideTip();
  change({ zoom: node === ROOT ? "" : String(node) }, { step: true });
}

function barAt(event) {
  const box = canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  return (bars[Math.floor(y / BAR)] || []).find((bar) => x >= bar.x && x < bar.x + bar.width) || null;
}

function describe(bar) {
  const share = `${bytes(bar.nbytes)} ${measureText()}, ${percent(bar.nbytes, weight[ROOT])}`;
  if (bar.merged) return [counted(bar.merged, "smaller bar"), "", share];
  if (bar.node === ROOT) return ["All", "", share];
  const frame = nodes.frame[bar.node];
  const where = `${whereOf(frame)} (${packageOf(frame)})`;
  return [functionOf(frame), where, `${share}, ${counted(weightCount[bar.node], "allocation")}`];
}

function startFlame() {
  for (const [key, { name }] of Object.entries(MEASURES)) {
    const choice = element("input", { type: "radio", name: "measure", id: `measure-${key}` });
    choice.addEventListener("change", () => change({ flame: key }, { step: true }));
    byId("measures").append(element("label", null, choice, element("span", null, name)));
  }
  canvas.addEventListener("click", (event) => {
    const bar = barAt(event);
    if (bar && !bar.merged) zoomTo(bar.node);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch") return;
    const bar = barAt(event);
    if (bar !== hovered) {
      hovered = bar;
      paint();
    }
    if (!bar) return hideTip();
    const [what, where, share] = describe(bar);
    showTip(event.clientX, event.clientY, element("b", null, what), element("span", { class: "where" }, where), element("span", null, share));
  });
  canvas.addEventListener("pointerleave", () => { hovered = null; hideTip(); paint(); });
  canvas.addEventListener("keydown", flameKey);
  canvas.addEventListener("focus", paint);
  canvas.addEventListener("blur", paint);
  byId("find").addEventListener("input", (event) => change({ find: event.target.value }));
  byId("find-pattern").addEventListener("change", (event) => change({ pattern: event.target.checked ? "1" : "" }));
  const hasBlocks = trace.kinds.some((kind) => kind.group === "blocks");
  byId("show-blocks").addEventListener("click", () => change({ memory: "blocks", zoom: "" }, { step: true }));
  draws(["memory"], () => (byId("flame-hint").hidden = !hasBlocks || state.memory !== "gpu"));
  draws(["gpu", "process", "memory", "flame"], weigh);
  draws(["gpu", "process", "memory", "flame", "zoom", "find", "pattern"], lookFor);
  draws(["zoom"], drawCrumbs);
  draws(["gpu", "process", "memory", "flame", "zoom"], drawFlame);
  draws(["find", "pattern"], paint);
  draws(["flame"], () => (byId(`measure-${measure()}`).checked = true));
}

function flameKey(event) {
  const level = cursor ? bars.findIndex((row) => row.includes(cursor)) : -1;
  const row = bars[level] || [];
  const beside = (step) => row[row.indexOf(cursor) + step] || cursor;
  const moves = {
    ArrowDown: () => (cursor ? (bars[level + 1] || []).find((bar) => bar.x >= cursor.x - 0.01 && bar.x < cursor.x + cursor.width) || cursor : bars[0][0]),
    ArrowUp: () => (cursor && bars[level - 1] ? bars[level - 1].find((bar) => cursor.x >= bar.x - 0.01 && cursor.x < bar.x + bar.width) : cursor),
    ArrowLeft: () => beside(-1),
    ArrowRight: () => beside(1),
  };
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (moves[event.key] && bars.length) {
    event.preventDefault();
    cursor = moves[event.key]() || bars[0][0];
    byId("flame-status").textContent = describe(cursor).filter(Boolean).join(", ");
    paint();
  } else if (event.key === "Enter" && cursor && !cursor.merged) {
    event.preventDefault();
    zoomTo(cursor.node);
  } else if (event.key === "Escape" || event.key === "Backspace") {
    event.preventDefault();
    if (zoomed() >= 0) zoomTo(nodes.parent[zoomed()] < 0 ? ROOT : nodes.parent[zoomed()]);
  }
}
