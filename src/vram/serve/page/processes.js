// The table of processes: sorted, filtered, workers folded into the process that they belong to.

import { address, button, byId, bytes, change, counted, draws, element, grouped, state } from "./kit.js";
import { age, arrange, commandLine, cut, exact, setText } from "./elements.js";
import { statesByName, words } from "./words.js";

const PAGE = 100, MORE = 200; // so many rows at first, and more when asked: 2,000 would take long to lay out
const texts = new WeakMap(); // what the filter looks at, by row
const rowNodes = new Map(); // by key; only of rows that are shown
let rows = [], workers = new Map(), agesBehind = () => 0, most = PAGE;

const stateOrder = (row) => words.states.findIndex((each) => each.state === row.state);
const isTrouble = (row) => Boolean(statesByName.get(row.state)?.trouble);
const firstGpu = (row) => (row.places.length ? Number(row.places[0].replace(":", ".")) : Infinity);

// heading, how two rows compare, where it is shown; the service sends them in the order "trouble".
const COLUMNS = [
  { key: "gpu", heading: "GPU", compare: (a, b) => firstGpu(a) - firstGpu(b), class: "number" },
  { key: "size", heading: "Size", compare: (a, b) => (b.nbytes ?? -1) - (a.nbytes ?? -1), class: "number" },
  { key: "pid", heading: "PID", compare: (a, b) => (a.pid ?? Infinity) - (b.pid ?? Infinity), class: "number" },
  { key: "user", heading: "User", compare: (a, b) => compareText(a.user, b.user), class: "wide" },
  { key: "age", heading: "Age", compare: (a, b) => (b.age_s ?? -1) - (a.age_s ?? -1), class: "number wide" },
  { key: "state", heading: "State", compare: (a, b) => stateOrder(a) - stateOrder(b), class: "" },
  { key: "command", heading: "Command", compare: (a, b) => compareText(programOf(a.command), programOf(b.command)), class: "command-column" },
];
const compareText = (a, b) => (a ?? "").localeCompare(b ?? "", "en");

// The command line without the folder of its program.
function programOf(command) {
  if (!command) return "-";
  const blank = command.indexOf(" ");
  const program = blank < 0 ? command : command.slice(0, blank);
  return (program.slice(program.lastIndexOf("/") + 1) || program) + (blank < 0 ? "" : command.slice(blank));
}

// "0-3,7"
function gpuNames(row) {
  if (!row.places.every((place) => /^\d+$/.test(place))) return row.places.join(",") || "-";
  const runs = [];
  for (const number of row.places.map(Number)) {
    const last = runs[runs.length - 1];
    if (last && number === last[1] + 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([from, to]) => (from === to ? from : `${from}-${to}`)).join(",") || "-";
}

const keyOf = (row) => (row.pid !== null && row.started_at !== null ? `${row.pid}.${row.started_at}` : `${row.pid ?? ""}/${row.state}/${row.places.join()}`);
const onGpu = (row) => state.gpu === "" || row.places.some((place) => place.split(":")[0] === state.gpu);

function chosen() {
  const typed = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = rows.filter((row) => onGpu(row) && (state.state === "" || (state.state === "trouble" ? isTrouble(row) : row.state === state.state)) &&
    (!typed.length || typed.every((word) => textOf(row).includes(word))));
  const column = COLUMNS.find((each) => each.key === state.sort.replace("-", ""));
  if (column) found.sort(column.compare);
  if (state.sort.startsWith("-")) found.reverse();
  return found;
}

export function drawProcesses(reading, behind) {
  agesBehind = behind;
  workers = new Map(reading.workers.map((worker) => [worker.pid, worker]));
  rows = reading.processes;
  drawRows();
}

// What the filter looks at; made when there is a filter.
function textOf(row) {
  if (texts.has(row)) return texts.get(row);
  const folded = row.workers.map((pid) => `${pid} ${workers.get(pid)?.command ?? ""}`).join(" ");
  const label = statesByName.get(row.state)?.label ?? row.state;
  const text = [row.pid, row.user, row.command, label, row.note, row.group, row.dead_pids, folded, `gpu${gpuNames(row)}`].join(" ").toLowerCase();
  texts.set(row, text);
  return text;
}

function drawRows() {
  const found = chosen();
  const shown = found.slice(0, most);
  const keys = new Set();
  const nodes = [];
  for (const row of shown) {
    let key = keyOf(row);
    while (keys.has(key)) key += "'";
    keys.add(key);
    const made = rowNodes.get(key) ?? makeRow(key);
    updateRow(made, row);
    nodes.push(made.node);
    if (state.open === key) nodes.push(detailsOf(made, row));
    else made.details = null;
  }
  for (const key of rowNodes.keys()) if (!keys.has(key)) rowNodes.delete(key);
  arrange(byId("processes").tBodies[0], nodes);
  byId("more").hidden = shown.length === found.length;
  setText(byId("more"), `Show ${grouped(Math.min(found.length - shown.length, MORE))} more of ${grouped(found.length)}`);
  drawSum(found);
}

function drawSum(found) {
  const nbytes = found.reduce((sum, row) => sum + (row.nbytes || 0), 0);
  const all = found.length === rows.length ? "" : ` of ${grouped(rows.length)}`;
  setText(byId("processes-sum"), rows.length ? `${grouped(found.length)}${all} ${found.length === 1 && !all ? "row" : "rows"}, ${bytes(nbytes)}` : "");
  byId("processes-scroll").hidden = !found.length;
  byId("processes-empty").hidden = found.length > 0;
  const empty = byId("processes-empty");
  if (rows.length) empty.replaceChildren("No process matches. ", button("Show all", () => change({ filter: "", state: "", gpu: "" })));
  else setText(empty, "No process holds GPU memory.");
}

// Ages grow while nothing else changes.
export function drawAges() {
  for (const { cells, row } of rowNodes.values()) setText(cells.age, ageOf(row));
}

const ageOf = (row) => age(row.age_s === null || row.age_s === undefined ? null : row.age_s + agesBehind());

function makeRow(key) {
  const cells = {};
  const node = element("tr", { role: "row", "data-key": key });
  for (const column of COLUMNS) node.append((cells[column.key] = element("td", { role: "cell", class: column.class || null })));
  const toggle = button("", () => toggleRow(key), { class: "toggle", "aria-expanded": "false" });
  const command = element("span", { class: "command" });
  const note = element("span", { class: "row-note" });
  const badge = element("span", { class: "badge" });
  cells.command.append(element("div", { class: "what-line" }, toggle, element("span", { class: "what" }, command, note)));
  cells.state.append(badge);
  node.addEventListener("click", (event) => {
    if (!event.target.closest("button, a") && getSelection().isCollapsed) toggleRow(key);
  });
  const made = { key, node, cells, toggle, command, note, badge, row: null, details: null };
  rowNodes.set(key, made);
  return made;
}

function toggleRow(key) {
  change({ open: state.open === key ? "" : key });
}

function updateRow(made, row) {
  made.row = row;
  const { cells } = made;
  const facts = statesByName.get(row.state) ?? { label: row.state, trouble: false, meaning: "" };
  setText(cells.gpu, gpuNames(row));
  setText(cells.size, bytes(row.nbytes));
  cells.size.title = exact(row.nbytes);
  setText(cells.pid, row.pid ?? "-");
  setText(cells.user, cut(row.user ?? "-", 40));
  setText(cells.age, ageOf(row));
  setText(made.badge, facts.label);
  made.badge.title = facts.meaning;
  made.badge.className = `badge ${["ghost", "unattributed"].includes(row.state) ? "bad" : facts.trouble ? "warning" : "plain"}`;
  made.node.classList.toggle("trouble", facts.trouble);
  setText(made.command, cut(programOf(row.command)));
  setText(made.note, cut(row.note));
  const isOpen = state.open === made.key;
  made.toggle.setAttribute("aria-expanded", String(isOpen));
  made.toggle.setAttribute("aria-label", row.pid === null ? "Details" : `Details of pid ${row.pid}`);
}

// ---- the row that is open ----

function detailsOf(made, row) {
  const told = JSON.stringify([row, row.workers.map((pid) => workers.get(pid))]);
  if (made.details?.told === told) return made.details.node;
  const node = element("tr", { role: "row", class: "details" }, element("td", { role: "cell", colspan: COLUMNS.length }, ...facts(row)));
  made.details = { told, node };
  return node;
}

function facts(row) {
  const list = element("dl", { class: "facts" });
  const add = (name, ...value) => list.append(element("dt", null, name), element("dd", null, ...value));
  for (const [place, nbytes] of Object.entries(row.nbytes_by_place)) add(`GPU ${place}`, `${bytes(nbytes)}, ${exact(nbytes)}`);
  add("State", `${statesByName.get(row.state)?.label ?? row.state}: ${statesByName.get(row.state)?.meaning ?? ""}${row.certain ? "" : " (likely, not proven)"}`);
  if (row.user) add("User", row.user);
  if (row.group) add("Group", row.group);
  if (row.parent) add("Parent", row.parent);
  if (row.dead_pids.length) add("Memory of dead", cut(row.dead_pids.join(", "), 400));
  if (row.co_holders.length) add("Held together with", ...people(row.co_holders));
  if (row.workers.length) add(counted(row.workers.length, "worker"), ...people(row.workers));
  if (row.command) add("Command", element("code", { class: "whole-command" }, cut(row.command, 16_384)));
  const parts = [list];
  if (row.pid !== null && row.state !== "windows") {
    parts.push(element("p", { class: "remedy" }, element("span", { class: "lead" }, "Why:"), commandLine(`vram why ${row.pid}`),
      element("a", { href: address({ q: String(row.pid), what: "", within: "7d", open: "" }) }, "Its history")));
  }
  return parts;
}

function people(pids) {
  const line = (pid) => {
    const known = workers.get(pid);
    return element("li", null, known ? `${pid} · ${known.user ?? "-"} · ${age(known.age_s)} · ${cut(programOf(known.command), 120)}` : String(pid));
  };
  const list = element("ul", { class: "people" }, ...pids.slice(0, 20).map(line));
  if (pids.length <= 20) return [list];
  const more = button(`Show all ${pids.length}`, () => {
    list.append(...pids.slice(20).map(line));
    more.remove();
  });
  return [list, more];
}

// ---- headings and filters ----

function drawHeadings() {
  const reversed = state.sort.startsWith("-"), key = state.sort.replace("-", "");
  for (const cell of byId("processes").tHead.rows[0].cells) {
    const isSorted = cell.dataset.key === key;
    // Sizes and ages start with the largest.
    const isFalling = ["size", "age"].includes(cell.dataset.key) !== reversed;
    if (isSorted) cell.setAttribute("aria-sort", isFalling ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
    cell.querySelector(".arrow").textContent = isSorted ? (isFalling ? "▼" : "▲") : "";
  }
}

function sortButton(column) {
  const made = button(column.heading, () => sortBy(column.key));
  made.append(element("span", { class: "arrow", "aria-hidden": "true" }));
  return made;
}

function sortBy(key) {
  const next = state.sort === key ? `-${key}` : state.sort === `-${key}` ? "trouble" : key;
  change({ sort: next });
}

function drawFilters() {
  if (byId("filter").value !== state.filter) byId("filter").value = state.filter;
  byId("state").value = state.state;
  for (const only of document.querySelectorAll(".only-gpu")) {
    only.hidden = state.gpu === "";
    setText(only, `Only GPU ${state.gpu} ✕`);
    only.setAttribute("aria-label", `Only GPU ${state.gpu}: show all GPUs`);
  }
}

export function startProcesses() {
  const heads = COLUMNS.map((column) => element("th", { scope: "col", role: "columnheader", "data-key": column.key, class: column.class || null },
    sortButton(column)));
  // The roles are said aloud: on a narrow screen a row is laid out in two lines, and browsers then forget them.
  byId("processes").append(element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...heads)), element("tbody", { role: "rowgroup" }));
  byId("state").append(element("option", { value: "" }, "all"), element("option", { value: "trouble" }, "trouble"),
    ...words.states.filter((each) => each.state !== "open").map((each) => element("option", { value: each.state }, each.label)));
  byId("filter").addEventListener("input", () => change({ filter: byId("filter").value }));
  byId("state").addEventListener("change", () => change({ state: byId("state").value }));
  byId("processes-tools").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", () => { most += MORE; drawRows(); });
  for (const only of document.querySelectorAll(".only-gpu")) only.addEventListener("click", () => change({ gpu: "" }, { step: true }));
  draws(["sort"], drawHeadings);
  draws(["sort", "filter", "state", "gpu"], () => { most = PAGE; drawFilters(); });
  draws(["sort", "filter", "state", "gpu", "open"], drawRows);
  draws(["filter", "state", "gpu"], () => setText(byId("told"), byId("processes-sum").textContent));
  drawHeadings();
  drawFilters();
}
