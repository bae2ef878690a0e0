// The beginning of the page, the filters for everything, and the first drawing.

function drawHead() {
  const first = trace.processes[0];
  const others = trace.processes.length - 1;
  byId("title").replaceChildren(element("bdi", { class: "command" }, first ? first.command : trace.title));
  if (others > 0) byId("title").append(element("span", { class: "others" }, ` and ${counted(others, "more process", "more processes")}`));
  byId("product").textContent = ["vram report", trace.title, trace.recorded].filter(Boolean).join(" · ");
  byId("sentences").replaceChildren(...trace.sentences.map(({ tone, text }) => element("li", { class: tone }, text)));
}

// ---- cards: the figures of each GPU ----

function drawCards() {
  const cards = [];
  for (const gpu of trace.gpus.filter((each) => hasGpu(each.gpu))) cards.push(gpuCard(gpu));
  const left = { leaked: 0, growing: 0, "not freed": 0, "in use at exit": 0 };
  for (const leak of trace.leaks) if (isLeakShown(leak)) left[leak.verdict] += leak.nbytes;
  const lines = Object.entries(left).filter(([, nbytes]) => nbytes).map(([verdict, nbytes]) => element("p", null, `${bytes(nbytes)} ${verdict}`));
  const what = state.memory === "gpu" ? "Leaks" : `Leaks, ${trace.groups[state.memory].toLowerCase()}`;
  const leaked = left.leaked + left.growing + left["not freed"];
  const tone = left.leaked ? "large bad" : leaked ? "large warning" : "large good";
  if (placeCount) cards.push(element("div", { class: "card" }, element("h3", null, what), element("p", { class: tone }, leaked ? bytes(leaked) : "nothing"), ...lines));
  if (trace.host_peak_nbytes > 0 && state.gpu === "" && state.process === "") {
    cards.push(element("div", { class: "card" }, element("h3", null, "Host memory"), element("p", { class: "large" }, bytes(trace.host_peak_nbytes)),
      element("p", null, "pinned or registered for the GPU, at its highest")));
  }
  byId("cards").replaceChildren(...cards);
}

function gpuCard(gpu) {
  const card = element("div", { class: "card" }, element("h3", null, `${gpuName(gpu.gpu)}, peak`), element("p", { class: "large" }, bytes(gpu.peak_nbytes)));
  const name = gpu.name ? `${gpu.name}, ` : "";
  if (gpu.total_nbytes) card.append(element("p", null, `${percent(gpu.peak_nbytes, gpu.total_nbytes)} of ${name}${bytes(gpu.total_nbytes)}`));
  for (const window of trace.windows.filter((each) => each.gpu === gpu.gpu)) card.append(element("p", null, window.title));
  card.append(element("p", null, `after ${time(gpu.peak_ns)}; ${bytes(gpu.end_nbytes)} at the end`));
  card.append(element("p", null, `${bytes(gpu.allocated_nbytes)} in ${counted(gpu.allocations, "allocation")}`));
  if (state.process !== "") {
    let nbytes = 0;
    for (let place = 0; place < placeCount; place++) {
      if (places.gpu[place] === gpu.gpu && hasProcess(places.process[place]) && groupOf(place) === "gpu") nbytes += places.peak[place];
    }
    card.append(element("p", { class: "part" }, `${bytes(nbytes)} of the peak: ${pidName(Number(state.process))}`));
  }
  return card;
}

// ---- filters ----

function fill(id, choices) {
  const select = byId(id);
  for (const [value, text] of choices) select.append(element("option", { value }, text));
  byId(`${id}-label`).hidden = choices.length < 2;
  select.addEventListener("change", () => change({ [id]: select.value, zoom: "" }, { step: true }));
}

function startFilters() {
  const gpus = trace.gpus.map(({ gpu }) => [gpuKey(gpu), gpuName(gpu)]);
  const processes = trace.processes.map(({ index, pid, command }) => [String(index), `${pid} ${command.length > 40 ? `${command.slice(0, 39)}…` : command}`]);
  fill("gpu", gpus.length > 1 ? [["", "all"], ...gpus] : []);
  fill("process", processes.length > 1 ? [["", "all"], ...processes] : []);
  const present = new Set(["gpu", ...trace.kinds.map((kind) => kind.group)]);
  fill("memory", Object.entries(trace.groups).filter(([key]) => present.has(key)));
  byId("reset").addEventListener("click", () => change({ ...DEFAULTS }, { step: true }));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  draws(Object.keys(DEFAULTS), () => {
    for (const id of ["gpu", "process", "memory"]) byId(id).value = state[id];
    byId("reset").disabled = address() === "#";
  });
}

function start() {
  startSkipLink();
  startState(DEFAULTS, KNOWN);
  drawHead();
  startFilters();
  draws(["gpu", "process", "memory"], drawCards);
  for (const id of ["filters", "flame-section", "leaks-section", "places-section"]) byId(id).hidden = !placeCount;
  byId("nothing").hidden = placeCount > 0;
  startTimeline();
  startFlame();
  startPlaces();
  startSections();
  drawAll();
  let width = document.documentElement.clientWidth;
  addEventListener("resize", () => {
    if (width === document.documentElement.clientWidth) return; // a phone's address bar came or went
    width = document.documentElement.clientWidth;
    drawTimeline();
    drawFlame();
    paintHoles();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    paint();
    paintHoles();
  });
  // Two frames later what was drawn is on the screen.
  requestAnimationFrame(() => requestAnimationFrame(() => {
    performance.mark("vram-drawn");
    document.documentElement.dataset.drawnMs = performance.now().toFixed(1);
  }));
}

start();
