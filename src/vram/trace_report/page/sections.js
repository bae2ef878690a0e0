// What was never freed, what frameworks made of their memory, fragmentation, failures, processes.

const SHOWN_LEAKS = 20;
const SHOWN_FAILURES = 50;

function drawLeaks() {
  const shown = trace.leaks.filter(isLeakShown).sort((a, b) => b.nbytes - a.nbytes);
  const parts = [];
  for (const verdict of ["leaked", "growing", "not freed", "in use at exit"]) {
    const found = shown.filter((leak) => leak.verdict === verdict);
    if (found.length) parts.push(leakGroup(verdict, found));
  }
  if (!parts.length) parts.push(element("p", { class: "empty" }, "Everything that was allocated here was freed."));
  byId("leaks").replaceChildren(...parts);
}

function leakGroup(verdict, found) {
  const nbytes = found.reduce((sum, leak) => sum + leak.nbytes, 0);
  const isQuiet = verdict === "in use at exit";
  const group = element("details", { class: "leaks", "data-verdict": verdict });
  group.open = !isQuiet;
  const figures = `${bytes(nbytes)} from ${counted(found.length, "place")}`;
  group.append(element("summary", null, badge(verdict), element("b", null, figures)));
  group.append(element("p", { class: "meaning" }, trace.verdicts.meaning[verdict]));
  const list = element("ul", { class: "leak-list" });
  for (const leak of found.slice(0, SHOWN_LEAKS)) list.append(leakLine(leak));
  group.append(list);
  if (found.length > SHOWN_LEAKS) {
    group.append(button(`See all ${grouped(found.length)} in the table`, () => {
      change({ only: verdict, sort: "-left" }, { step: true });
      byId("places-section").scrollIntoView();
    }));
  }
  return group;
}

function leakLine(leak) {
  const when = leak.count === 1 ? `after ${time(leak.first_ns)}` : `between ${time(leak.first_ns)} and ${time(leak.last_ns)}`;
  const freed = leak.freed ? `, ${counted(leak.freed, "other")} of this place freed` : "";
  const facts = `${kindOf(leak.place)}: ${counted(leak.count, "allocation")}, the largest ${bytes(leak.largest)}, ${when}${freed}`;
  return placeLine(leak.nbytes, places.node[leak.place], facts);
}

// A place with its bytes and *facts*; its stack is made when the reader opens it.
function placeLine(nbytes, node, facts) {
  const text = element("div", null, ...placeText(node), element("span", { class: "facts" }, facts));
  const line = element("details", null, element("summary", null, element("b", { class: "figure" }, bytes(nbytes)), text));
  line.addEventListener("toggle", () => {
    if (line.open && line.children.length === 1) line.append(stackList(node));
  });
  return element("li", null, line);
}

// ---- windows ----

const WINDOW_LISTS = { grew: "Growing", most: "Most at the highest moment", churn: "Allocated and freed again and again" };

function drawWindows() {
  const shown = trace.windows.filter((window) => hasGpu(window.gpu) && (window.process === null || hasProcess(window.process)));
  byId("window-section").hidden = !shown.length;
  const parts = [];
  for (const window of shown) {
    parts.push(element("p", null, element("b", null, gpuName(window.gpu)), ` ${window.title}`));
    for (const [key, name] of Object.entries(WINDOW_LISTS)) {
      if (!window[key].length) continue;
      const list = element("ul", { class: "leak-list" });
      for (const row of window[key]) list.append(row.name ? namedLine(row) : placeLine(row.nbytes, row.node, row.facts));
      parts.push(element("h3", null, name), list);
    }
  }
  byId("window").replaceChildren(...parts);
}

// Memory from before recording has a name, and no stack.
function namedLine({ nbytes, name, facts }) {
  const text = element("div", null, element("span", { class: "frame" }, element("bdi", null, name)), element("span", { class: "facts" }, facts));
  return element("li", null, element("div", { class: "named" }, element("b", { class: "figure" }, bytes(nbytes)), text));
}

// ---- frameworks ----

function drawFrameworks() {
  const shown = trace.frameworks.filter((use) => hasGpu(use.gpu) && hasProcess(use.process));
  byId("frameworks-section").hidden = !shown.length;
  const parts = [];
  for (const at of ["peak", "end"]) {
    const uses = shown.filter((use) => use.at === at);
    if (!uses.length) continue;
    parts.push(element("h3", null, at === "peak" ? "At the peak" : "At the end"));
    for (const gpu of trace.gpus.filter((each) => hasGpu(each.gpu))) parts.push(...gpuSplit(gpu, uses, at));
  }
  byId("frameworks").replaceChildren(...parts);
}

// One bar for a GPU: used, unused but kept by the framework, and what others allocated.
function gpuSplit(gpu, uses, at) {
  const here = uses.filter((use) => use.gpu === gpu.gpu);
  if (!here.length) return [];
  const whole = at === "peak" ? gpu.peak_nbytes : gpu.end_nbytes;
  const reserved = here.reduce((sum, use) => sum + use.reserved_nbytes, 0);
  const isRestKnown = here.some((use) => use.is_rest);
  const rest = state.process === "" && !isRestKnown ? Math.max(0, whole - reserved) : 0;
  const pieces = [];
  const names = [...new Set(trace.frameworks.filter((use) => !use.is_rest).map((use) => use.framework))];
  for (const use of here) {
    if (use.is_rest) {
      pieces.push({ nbytes: use.used_nbytes, text: "the rest (libraries, modules)", class: "rest" });
      continue;
    }
    const color = names.indexOf(use.framework) % 3;
    const name = trace.processes.length > 1 ? `${use.framework} (${pidName(use.process)})` : use.framework;
    pieces.push({ nbytes: Math.min(use.used_nbytes, use.reserved_nbytes || use.used_nbytes), text: `in blocks of ${name}`, class: `used-${color}` });
    pieces.push({ nbytes: Math.max(0, use.reserved_nbytes - use.used_nbytes), text: `kept unused by ${name}`, class: `unused-${color}` });
  }
  if (rest) pieces.push({ nbytes: rest, text: "the rest (libraries, modules)", class: "rest" });
  const notes = here.filter((use) => use.note).map((use) => element("p", { class: "help" }, use.note));
  return [element("p", { class: "bar-title" }, `${gpuName(gpu.gpu)}: ${bytes(Math.max(whole, reserved))}`), splitBar(pieces), ...notes];
}

function splitBar(pieces) {
  const whole = pieces.reduce((sum, piece) => sum + piece.nbytes, 0);
  const bar = element("div", { class: "split", "aria-hidden": "true" });
  const list = element("ul", { class: "split-list" });
  for (const piece of pieces.filter((each) => each.nbytes > 0)) {
    const part = element("span", { class: piece.class });
    part.style.flexGrow = String(whole > 0 ? piece.nbytes / whole : 0);
    bar.append(part);
    list.append(element("li", null, element("span", { class: `swatch ${piece.class}` }), `${bytes(piece.nbytes)} ${piece.text}`));
  }
  return element("div", null, bar, list);
}

// ---- fragmentation ----

function drawHoles() {
  const shown = trace.holes.filter((holes) => hasGpu(holes.gpu) && hasProcess(holes.process));
  byId("holes-section").hidden = !shown.length;
  const isPeak = (holes) => trace.gpus.some((gpu) => gpu.gpu === holes.gpu && gpu.peak_ns === holes.at_ns);
  const parts = [];
  for (const [name, found] of [["At the peak", shown.filter(isPeak)], ["At the end", shown.filter((holes) => !isPeak(holes))]]) {
    if (found.length) parts.push(element("h3", null, name), ...found.flatMap(holesBar));
  }
  byId("holes").replaceChildren(...parts);
}

// Blocks that are further apart than this are in other parts of the address space: there is no hole between.
const NEIGHBOURS = 2 ** 30;
const MAX_CLUSTERS = 40;

function clusters(holes) {
  const found = [];
  let end = -Infinity;
  holes.address.forEach((address, at) => {
    if (address - end > NEIGHBOURS) found.push({ first: at, start: address, end: address });
    const cluster = found[found.length - 1];
    cluster.last = at;
    end = cluster.end = Math.max(cluster.end, address + holes.size[at]);
  });
  return found;
}

function holesBar(holes) {
  const name = trace.processes.length > 1 ? `${gpuName(holes.gpu)}, ${pidName(holes.process)}` : gpuName(holes.gpu);
  const sentence = `${name}: ${bytes(holes.live_nbytes)} live, with ${counted(holes.holes, "hole")}`
    + (holes.holes ? ` of ${bytes(holes.hole_nbytes)} together between them; the largest hole is ${bytes(holes.largest_hole)}.` : ".");
  const parts = [element("p", { class: "bar-title" }, sentence)];
  const groups = clusters(holes);
  const spanned = groups.reduce((sum, cluster) => sum + cluster.end - cluster.start, 0);
  if (!(spanned > 0)) return parts;
  const bar = element("div", { class: "addresses", role: "img", "aria-label": sentence });
  const drawn = [...groups].sort((a, b) => b.end - b.start - (a.end - a.start)).slice(0, MAX_CLUSTERS);
  for (const cluster of groups.filter((each) => drawn.includes(each))) {
    const piece = element("canvas", { height: 34 });
    piece.style.flexGrow = String((cluster.end - cluster.start) / spanned);
    bar.append(piece);
    piece.paint = () => paintAddresses(piece, holes, cluster);
    piece.addEventListener("pointermove", (event) => addressTip(event, piece, holes, cluster));
    piece.addEventListener("pointerleave", hideTip);
  }
  parts.push(bar);
  const missing = holes.live_nbytes - holes.size.reduce((sum, nbytes) => sum + nbytes, 0);
  if (missing > 0 || drawn.length < groups.length) {
    parts.push(element("p", { class: "help" }, `The ${counted(holes.size.length, "largest block")} are drawn; smaller ones look like holes.`));
  }
  return parts;
}

function paintAddresses(piece, holes, cluster) {
  const width = Math.max(1, piece.clientWidth), ratio = window.devicePixelRatio || 1;
  piece.width = Math.round(width * ratio);
  piece.height = Math.round(34 * ratio);
  const pen = piece.getContext("2d");
  pen.scale(piece.width / width, ratio);
  const style = getComputedStyle(document.documentElement);
  pen.fillStyle = style.getPropertyValue("--hole");
  pen.fillRect(0, 0, width, 34);
  const scale = width / Math.max(1, cluster.end - cluster.start);
  for (let at = cluster.first; at <= cluster.last; at++) {
    const name = packageOf(nodes.frame[holes.node[at]]);
    pen.fillStyle = style.getPropertyValue(`--bar-${colorOf.get(name) ?? "other"}`);
    const wide = holes.size[at] * scale;
    // A thin line between neighbours, where there is room for one.
    pen.fillRect((holes.address[at] - cluster.start) * scale, 0, wide > 3 ? wide - 0.7 : wide, 34);
  }
}

function addressTip(event, piece, holes, cluster) {
  const box = piece.getBoundingClientRect();
  const address = cluster.start + ((event.clientX - box.left) / box.width) * (cluster.end - cluster.start);
  let at = cluster.first;
  while (at < cluster.last && holes.address[at + 1] <= address) at++;
  const isInside = address < holes.address[at] + holes.size[at];
  if (!isInside) {
    const end = at < cluster.last ? holes.address[at + 1] : cluster.end;
    return showTip(event.clientX, event.clientY, element("b", null, "Hole"), element("span", null, bytes(Math.max(0, end - holes.address[at] - holes.size[at]))));
  }
  const where = `0x${(BigInt(holes.lowest || 0) + BigInt(Math.round(holes.address[at]))).toString(16)}`;
  showTip(event.clientX, event.clientY, element("b", null, bytes(holes.size[at])), element("span", { class: "where" }, where), ...placeText(holes.node[at]));
}

function paintHoles() {
  for (const piece of document.querySelectorAll("#holes canvas")) piece.paint();
}

// ---- failures and processes ----

function drawFailures() {
  const shown = trace.failures.filter((failure) => hasProcess(failure.process) && (failure.gpu === null || hasGpu(failure.gpu)));
  const full = shown.filter((failure) => failure.result === OUT_OF_MEMORY);
  const others = shown.filter((failure) => failure.result !== OUT_OF_MEMORY);
  byId("failures-section").hidden = !shown.length;
  const parts = [];
  if (full.length) parts.push(failureList(full));
  if (others.length) {
    const group = element("details", { class: "leaks" }, element("summary", null, counted(others.length, "attempt"), " that failed for another reason"));
    group.append(element("p", { class: "meaning" }, "Programs usually expect these and try something else."), failureList(others));
    parts.push(group);
  }
  const rest = trace.failures_in_all - trace.failures.length;
  if (rest > 0) parts.push(element("p", { class: "help" }, `${grouped(rest)} more are not in this page.`));
  byId("failures").replaceChildren(...parts);
}

function failureList(failures) {
  const list = element("ul", { class: "leak-list" });
  for (const failure of failures.slice(0, SHOWN_FAILURES)) list.append(failureLine(failure));
  if (failures.length > SHOWN_FAILURES) list.append(element("li", { class: "help" }, `And ${grouped(failures.length - SHOWN_FAILURES)} more.`));
  return list;
}

function failureLine(failure) {
  const why = failure.result === OUT_OF_MEMORY ? "out of memory" : `CUDA error ${failure.result}`;
  const facts = `${failure.kind} memory on ${gpuName(failure.gpu)}, ${pidName(failure.process)}, after ${time(failure.time_ns)}: ${why}`;
  return placeLine(failure.nbytes, failure.node, facts);
}

function drawProcesses() {
  const head = ["Pid", "Command", "Python", "Events", "Threads", "Stacks", "Ended"];
  const row = element("tr");
  head.forEach((name, at) => row.append(element("th", { scope: "col", class: [0, 3, 4].includes(at) ? "number" : null }, name)));
  const body = element("tbody");
  for (const process of trace.processes.filter((each) => hasProcess(each.index))) {
    const line = element("tr", null, element("td", { class: "number" }, String(process.pid)), element("td", { class: "command" }, process.command));
    line.append(element("td", null, process.python || "–"), element("td", { class: "number" }, grouped(process.events)));
    line.append(element("td", { class: "number" }, grouped(process.threads)), element("td", null, process.stacks), element("td", null, process.end));
    body.append(line);
  }
  byId("processes").replaceChildren(element("thead", null, row), body);
}

function startSections() {
  draws(["gpu", "process", "memory"], drawLeaks);
  draws(["gpu", "process"], drawWindows);
  draws(["gpu", "process"], drawFrameworks);
  draws(["gpu", "process"], drawHoles);
  draws(["gpu", "process", "memory", "flame"], paintHoles); // its colours are the flame graph's
  draws(["gpu", "process"], drawFailures);
  draws(["process"], drawProcesses);
}
