// A bar for each GPU: what is free, what is used by kind, what is left over and what no process accounts for.

import { byId, bytes, change, counted, draws, element, hideTip, showTip, state } from "./kit.js";
import { arrange, exact, setText } from "./elements.js";
import { inOrder, kindOf, paint, sums, swatch } from "./words.js";

const cards = new Map(); // by label
let shown = [], forecasts = [];

export function drawGpus(reading) {
  shown = reading.gpus;
  const nodes = shown.map((gpu) => {
    const card = cards.get(gpu.label) ?? makeCard(gpu.label);
    updateCard(card, gpu);
    return card.node;
  });
  for (const label of cards.keys()) if (!shown.some((gpu) => gpu.label === label)) cards.delete(label);
  arrange(byId("gpus"), nodes);
  byId("gpus").dataset.many = String(shown.length > 4);
  byId("gpus-empty").hidden = shown.length > 0;
  setText(byId("gpus-empty"), reading.no_driver ? `No GPU can be read: ${reading.no_driver}.` : "No GPU was found on this machine.");
  drawSum();
  drawLegend();
  arrange(byId("gaps"), reading.gaps.map((gap) => element("li", null, gap)));
  byId("gaps").hidden = !reading.gaps.length;
}

// When each GPU will be full: said anew with every answer, for the time until then runs on.
export function drawForecasts(given) {
  forecasts = given;
  const ofGpu = forecasts.filter(({ gpu }) => state.gpu === "" || gpu === Number(state.gpu));
  const items = [...byId("forecasts").children];
  arrange(byId("forecasts"), ofGpu.map(({ text }, at) => {
    const item = items[at] ?? element("li");
    setText(item, text);
    return item;
  }));
  byId("forecasts").hidden = !ofGpu.length;
}

function drawSum() {
  const all = sums(shown.reduce((found, gpu) => {
    for (const [kind, nbytes] of Object.entries(gpu.kinds)) found[kind] = (found[kind] || 0) + nbytes;
    return found;
  }, {}));
  const left = [all.left && `${bytes(all.left)} left over`, all.unexplained && `${bytes(all.unexplained)} unexplained`].filter(Boolean);
  const count = new Set(shown.map(({ gpu }) => gpu)).size;
  const where = `${counted(count, "GPU")}${count < shown.length ? `, ${shown.length} MIG instances` : ""}`;
  setText(byId("gpus-sum"), shown.length ? [`${bytes(all.free)} free on ${where}`, ...left].join(" · ") : "");
}

function drawLegend() {
  const present = new Set(shown.flatMap((gpu) => Object.keys(gpu.kinds)));
  const kinds = [...present].sort((a, b) => kindOf(a).order - kindOf(b).order);
  const legend = byId("legend");
  if (legend.dataset.kinds === kinds.join()) return;
  legend.dataset.kinds = kinds.join();
  legend.replaceChildren(...kinds.map((kind) => element("span", { class: "key" }, swatch(kind), kind)));
  byId("meanings").replaceChildren(...kinds.flatMap((kind) => [element("dt", null, swatch(kind), kind), element("dd", null, kindOf(kind).meaning)]));
}

function makeCard(label) {
  const name = element("button", { type: "button", class: "gpu-name" });
  const figures = element("span", { class: "figures" });
  const bar = element("div", { class: "bar", role: "img", tabindex: "0" });
  const line = element("p", { class: "gpu-line" });
  const node = element("li", { class: "gpu" }, element("div", { class: "gpu-head" }, name, figures), bar, line);
  const card = { node, name, figures, bar, line, segments: new Map(), gpu: null };
  name.addEventListener("click", () => change({ gpu: state.gpu === String(card.gpu.gpu) ? "" : String(card.gpu.gpu) }, { step: true }));
  bar.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, ...tipOf(card.gpu, event.target.dataset.kind)));
  bar.addEventListener("pointerleave", hideTip);
  // A finger leaves as soon as it has touched; a touch is a click, too.
  bar.addEventListener("click", (event) => showTip(event.clientX, event.clientY, ...tipOf(card.gpu, event.target.dataset.kind)));
  bar.addEventListener("blur", hideTip);
  bar.addEventListener("focus", () => {
    const box = bar.getBoundingClientRect();
    if (bar.matches(":focus-visible")) showTip(box.left, box.bottom - 10, ...tipOf(card.gpu));
  });
  cards.set(label, card);
  return card;
}

function updateCard(card, gpu) {
  card.gpu = gpu;
  setText(card.name, gpu.label);
  card.name.setAttribute("aria-pressed", String(state.gpu === String(gpu.gpu)));
  setText(card.figures, gpu.complaint ? "" : gpu.figures);
  card.node.classList.toggle("lost", Boolean(gpu.complaint));
  card.bar.hidden = Boolean(gpu.complaint) || !gpu.total_bytes;
  const kinds = inOrder(gpu.kinds);
  if (card.bar.hidden) hideTip();
  const segments = kinds.map(([kind, nbytes]) => {
    const segment = card.segments.get(kind) ?? element("span", { class: paint(kind), "data-kind": kind });
    card.segments.set(kind, segment);
    segment.style.flexGrow = String(nbytes / 2 ** 20);
    return segment;
  });
  arrange(card.bar, segments);
  card.bar.setAttribute("aria-label", `${gpu.label}: ${kinds.map(([kind, nbytes]) => `${bytes(nbytes)} ${kind}`).join(", ")}`);
  updateLine(card.line, gpu);
}

function updateLine(line, gpu) {
  if (gpu.complaint) {
    if (line.textContent !== gpu.complaint) line.replaceChildren(element("strong", { class: "bad" }, gpu.complaint));
    return;
  }
  const { free, left, unexplained } = sums(gpu.kinds);
  const parts = [[`${bytes(free)} free`, "good"], left && [`${bytes(left)} left over`, "bad"], unexplained && [`${bytes(unexplained)} unexplained`, "warning"]];
  const nodes = parts.filter(Boolean).map(([text, tone]) => element("span", { class: tone }, text));
  const text = nodes.map((node) => node.textContent).join("");
  if (line.textContent !== text) line.replaceChildren(...(gpu.total_bytes ? nodes : []));
}

// Every kind with its exact bytes; the one under the pointer stands out.
function tipOf(gpu, pointed) {
  const table = element("table", { class: "tip-table" });
  for (const [kind, nbytes] of inOrder(gpu.kinds)) {
    table.append(element("tr", { class: kind === pointed ? "pointed" : null },
      element("th", null, swatch(kind), kind), element("td", null, bytes(nbytes)), element("td", null, exact(nbytes))));
  }
  const meaning = pointed ? [element("p", { class: "note" }, kindOf(pointed).meaning)] : [];
  return [element("p", null, `${gpu.label}, ${exact(gpu.total_bytes)}`), table, ...meaning];
}

export function startGpus() {
  draws(["gpu"], () => {
    for (const card of cards.values()) card.name.setAttribute("aria-pressed", String(state.gpu === String(card.gpu.gpu)));
    drawForecasts(forecasts);
  });
  addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
}
