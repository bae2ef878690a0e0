// The table of places: one row for each stack, kind of memory, GPU and process.

const AT_ONCE = 100; // rows that are shown until the reader asks for more
const verdictName = (place) => trace.verdicts.order[places.verdict[place]];
const VERDICT_CLASS = { leaked: "bad", growing: "warning", "not freed": "warning", "in use at exit": "plain" };

const COLUMNS = [
  { key: "place", name: "Place", value: (place) => functionOf(placeOf(places.node[place])) },
  { key: "kind", name: "Kind", value: kindOf, class: "wide" },
  { key: "gpu", name: "GPU", value: (place) => places.gpu[place] ?? -1, number: true, shows: (place) => (places.gpu[place] ?? "?") },
  { key: "process", name: "Pid", value: (place) => (processOf(places.process[place]) || {}).pid || 0, number: true, class: "wide", shows: (place) => pidName(places.process[place]).replace("pid ", "") },
  { key: "peak", name: "At the peak", value: (place) => places.peak[place], number: true, bytes: true },
  { key: "window", name: "Highest since", value: (place) => places.window[place], number: true, bytes: true },
  { key: "allocated", name: "Allocated", value: (place) => places.allocated[place], number: true, bytes: true },
  { key: "count", name: "Allocations", value: (place) => places.allocations[place], number: true, class: "wide" },
  { key: "left", name: "Never freed", value: (place) => places.left[place], number: true, bytes: true },
];

let shownRows = AT_ONCE;

function badge(verdict) {
  return element("span", { class: `badge ${VERDICT_CLASS[verdict]}`, title: trace.verdicts.meaning[verdict] }, verdict);
}

// Every allocation goes through these.
const DRIVER = new Set(["libcuda", "libcudart"]);

// The line that people know and who called it, the innermost line of Python that it led to, and the library that
// allocated.
function placeText(node) {
  const found = framesOf(node);
  const best = placeOf(node);
  const calling = callerOf(node);
  const inner = found.find((frame) => !frames.native[frame]) ?? best;
  const parts = [element("span", { class: "frame" }, ...frameText(best, shortWhere))];
  if (calling !== undefined) parts.push(element("span", { class: "frame from" }, "called by ", ...frameText(calling, shortWhere)));
  const more = element("span", { class: "frame from" });
  if (inner !== best) more.append("in ", ...frameText(inner, shortWhere));
  const library = found.slice(0, found.indexOf(inner)).find((frame) => !DRIVER.has(packageOf(frame)));
  if (library !== undefined) more.append(element("span", { class: "through" }, `through ${packageOf(library)}`));
  if (more.childNodes.length) parts.push(more);
  return parts;
}

function chosenPlaces() {
  const { test, error } = matcher(state.filter, state.filterpattern === "1");
  byId("filter").setAttribute("aria-invalid", error ? "true" : "false");
  let found = shownPlaces();
  if (test) {
    const frameMatches = matchingFrames(test);
    // Parents come first: a node is in a match when its own frame or its parent's stack is.
    const inMatch = new Uint8Array(nodes.parent.length);
    for (let node = 0; node < inMatch.length; node++) {
      inMatch[node] = frameMatches[nodes.frame[node]] || (nodes.parent[node] >= 0 ? inMatch[nodes.parent[node]] : 0);
    }
    found = found.filter((place) => inMatch[places.node[place]]);
  }
  if (state.only) found = found.filter((place) => verdictName(place) === state.only || kindOf(place) === state.only);
  return { found, error };
}

function sorted(found) {
  const isDown = state.sort.startsWith("-");
  const column = COLUMNS.find((each) => each.key === state.sort.replace("-", "")) || COLUMNS[4];
  const keys = new Map(found.map((place) => [place, column.value(place)]));
  const side = isDown ? -1 : 1;
  return found.sort((a, b) => (keys.get(a) < keys.get(b) ? -side : keys.get(a) > keys.get(b) ? side : a - b));
}

function drawPlaces() {
  const { found, error } = chosenPlaces();
  const rows = sorted(found).slice(0, shownRows);
  const most = { peak: 0, window: 0, allocated: 0, left: 0 };
  const sum = { peak: 0, window: 0, allocated: 0, left: 0 };
  for (const place of found) {
    for (const key of Object.keys(most)) {
      most[key] = Math.max(most[key], places[key][place]);
      sum[key] += places[key][place];
    }
  }
  const body = element("tbody");
  for (const place of rows) body.append(...placeRows(place, most));
  byId("places").replaceChildren(headRow(), body);
  byId("places-count").textContent = error || (found.length
    ? `${counted(found.length, "place")}: ${bytes(sum.peak)} at the peak, ${bytes(sum.left)} never freed`
    : "No place matches.");
  byId("more").hidden = rows.length === found.length;
  byId("more").textContent = `Show ${Math.min(AT_ONCE, found.length - rows.length)} more of ${grouped(found.length)}`;
}

function visibleColumns() {
  const isOne = { gpu: trace.gpus.length < 2, process: trace.processes.length < 2, window: !trace.windows.length };
  return COLUMNS.filter((column) => !isOne[column.key]);
}

function headRow() {
  const row = element("tr");
  for (const column of visibleColumns()) {
    const isSorted = state.sort.replace("-", "") === column.key;
    const isDown = state.sort.startsWith("-");
    const next = isSorted ? !isDown : Boolean(column.number);
    const order = isSorted ? (isDown ? "descending" : "ascending") : "none";
    const sort = () => {
      change({ sort: (next ? "-" : "") + column.key });
      byId(`sort-${column.key}`).focus();
    };
    const sign = element("span", { "aria-hidden": "true", class: "arrow" }, isSorted ? (isDown ? "▼" : "▲") : "");
    const head = button(column.name, sort, { id: `sort-${column.key}` });
    head.append(sign);
    row.append(element("th", { scope: "col", "aria-sort": order, class: `${column.number ? "number " : ""}${column.class || ""}` }, head));
  }
  return element("thead", null, row);
}

function placeRows(place, most) {
  const isOpen = state.open === String(place);
  const row = element("tr", { class: isOpen ? "open" : null, "data-place": place });
  for (const column of visibleColumns()) row.append(cell(column, place, most, isOpen));
  row.addEventListener("click", (event) => {
    if (!getSelection().isCollapsed && !event.target.closest("button")) return; // the reader copies text
    toggle(place);
  });
  if (!isOpen) return [row];
  const whole = element("tr", { class: "whole" });
  whole.append(element("td", { colspan: visibleColumns().length }, placeDetails(place), stackList(places.node[place])));
  return [row, whole];
}

function cell(column, place, most, isOpen) {
  const classes = `${column.number ? "number " : ""}${column.class || ""}`;
  if (column.key === "place") {
    const arrow = element("button", { type: "button", class: "toggle", "aria-expanded": String(isOpen), "aria-label": "Whole stack" }, isOpen ? "▾" : "▸");
    return element("th", { scope: "row" }, element("div", { class: "place" }, arrow, element("div", null, ...placeText(places.node[place]))));
  }
  const value = column.value(place);
  if (!column.bytes) return element("td", { class: classes }, String(column.shows ? column.shows(place) : column.number ? grouped(value) : value));
  if (!value) return element("td", { class: `${classes} none` }, "–");
  const bar = element("span", { class: "share", "aria-hidden": "true" });
  bar.style.width = `${(100 * value) / most[column.key]}%`;
  const made = element("td", { class: classes }, element("span", { class: "figure" }, bytes(value)), bar);
  if (column.key === "left") made.append(badge(verdictName(place)));
  return made;
}

function placeDetails(place) {
  const parts = [`${kindOf(place)} memory on ${gpuName(places.gpu[place])}, ${pidName(places.process[place])}`];
  parts.push(`${counted(places.allocations[place], "allocation")}, ${bytes(places.allocated[place])}`);
  if (places.peak_count[place]) parts.push(`${grouped(places.peak_count[place])} live at the peak`);
  if (places.window_count[place]) parts.push(`${grouped(places.window_count[place])} live at the highest moment of the window`);
  if (places.left_count[place]) parts.push(`${grouped(places.left_count[place])} never freed`);
  if (places.churn_count[place]) {
    parts.push(`${grouped(places.churn_count[place])} freed again soon, half of them within ${time(places.median_life_ns[place])}`);
  }
  return element("p", null, `${parts.join("; ")}.`);
}

function toggle(place) {
  const hadFocus = document.activeElement && document.activeElement.classList.contains("toggle");
  change({ open: state.open === String(place) ? "" : String(place) });
  const arrow = document.querySelector(`tr[data-place="${place}"] .toggle`);
  if (hadFocus && arrow) arrow.focus();
}

function drawOnly() {
  const only = byId("only");
  only.replaceChildren(element("option", { value: "" }, "everything"));
  const shown = shownPlaces();
  for (const verdict of ["leaked", "growing", "not freed", "in use at exit"]) {
    if (shown.some((place) => verdictName(place) === verdict)) only.append(element("option", { value: verdict }, verdict));
  }
  const kinds = [...new Set(shown.map(kindOf))].sort();
  if (kinds.length > 1) for (const kind of kinds) only.append(element("option", { value: kind }, `${kind} memory`));
  only.value = state.only;
  if (only.value !== state.only) only.append(element("option", { value: state.only, selected: true }, state.only));
}

function startPlaces() {
  byId("filter").addEventListener("input", (event) => change({ filter: event.target.value }));
  byId("filter-pattern").addEventListener("change", (event) => change({ filterpattern: event.target.checked ? "1" : "" }));
  byId("only").addEventListener("change", (event) => change({ only: event.target.value }));
  byId("more").addEventListener("click", () => {
    shownRows += AT_ONCE;
    drawPlaces();
  });
  draws(["gpu", "process", "memory", "filter", "filterpattern", "only", "sort"], () => { shownRows = AT_ONCE; });
  draws(["gpu", "process", "memory", "only"], drawOnly);
  draws(["gpu", "process", "memory", "filter", "filterpattern", "only", "sort", "open"], drawPlaces);
  draws(["filter", "filterpattern"], () => {
    if (document.activeElement !== byId("filter")) byId("filter").value = state.filter;
    byId("filter-pattern").checked = state.filterpattern === "1";
  });
}
