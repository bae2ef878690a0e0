// Who held a GPU at a moment of the past.

import { address, byId, bytes, change, draws, element, state } from "./kit.js";
import { cut, exact, moment, setText, when, whenInFull } from "./elements.js";
import { ask, serviceNow } from "./service.js";
import { swatch } from "./words.js";

let asking = null;

async function drawMoment() {
  asking?.abort();
  const panel = byId("moment");
  panel.hidden = state.at === "" || state.on === "";
  if (panel.hidden) return;
  const at = Number(state.at);
  byId("moment-gpu").value = state.on;
  byId("moment-time").value = localTime(at);
  setText(byId("moment-title"), `Who held GPU ${state.on} on ${whenInFull(at)}`);
  asking = new AbortController();
  const { signal } = asking;
  try {
    const { body } = await ask(`/api/v1/history/holders?gpu=${state.on}&at=${state.at}`, { signal });
    show(Array.isArray(body.holders) ? body.holders : []);
    setText(byId("moment-notes"), (Array.isArray(body.notes) ? body.notes : []).join(" "));
  } catch (error) {
    if (signal.aborted) return;
    empty([error.message, error.hint].filter(Boolean).join(" "));
  }
  panel.dataset.shown = `${state.on} ${state.at}`;
}

function empty(text) {
  byId("holders").hidden = Boolean(text);
  byId("moment-empty").hidden = !text;
  setText(byId("moment-empty"), text);
}

function show(holders) {
  holders.sort((a, b) => (b.nbytes ?? 0) - (a.nbytes ?? 0));
  fillTable(byId("holders"), ["Size", "Kind", "PID", "User", "Held from", "Until", "Command"], holders.slice(0, 500).map((row) => heldRow(row)));
  empty(holders.length ? "" : "No process is recorded as holding memory of this GPU then.");
}

// A row of the tables of history. *links*: its times lead to that moment.
export function heldRow(row, { links = false } = {}) {
  const since = moment(row.since), until = moment(row.until);
  const time = (value, sign, title) => {
    const linked = links && row.gpu !== undefined && row.gpu !== null;
    // Times are whole seconds, rounded down: a second before its end it was still there.
    const at = value === since ? since : Math.max(until - 1, since ?? 0);
    const made = linked ? element("a", { href: address({ at: String(at), on: String(row.gpu) }) }, when(value)) : element("span", null, when(value));
    if (sign) made.prepend(sign);
    if (sign) made.title = title;
    return made;
  };
  const from = since === null ? "-" : time(since, row.since_seen === false && "≤ ", "It was there already when this was recorded.");
  const to = until === null ? "still held" : time(until, row.until_seen === false && "≥ ", "Recording stopped then.");
  const pid = row.pid ?? (row.dead_pid === undefined || row.dead_pid === null ? "-" : `${row.dead_pid} (dead)`);
  const cell = (attributes, ...children) => element("td", { role: "cell", ...attributes }, ...children);
  return element("tr", { role: "row" },
    cell({ class: "number", title: exact(row.nbytes ?? row.most_bytes) }, bytes(row.nbytes ?? row.most_bytes)),
    cell({ class: "kind" }, swatch(row.kind ?? ""), row.kind ?? ""),
    cell({ class: "number", "data-label": "pid" }, pid),
    cell({}, cut(row.user ?? "-", 40)),
    cell({ class: "time", "data-label": "from" }, from),
    cell({ class: "time", "data-label": until === null ? null : "until" }, to),
    cell({ class: "command-column" }, element("span", { class: "command" }, cut(row.command ?? "-", 400))));
}

// Of a narrow screen each row takes several lines; browsers then forget what is a table, unless it is said.
export function fillTable(table, headings, rows) {
  const heads = headings.map((heading) => element("th", { scope: "col", role: "columnheader", class: ["Size", "PID", "GPU"].includes(heading) ? "number" : null }, heading));
  table.setAttribute("role", "table");
  table.replaceChildren(element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...heads)), element("tbody", { role: "rowgroup" }, ...rows));
  table.hidden = !rows.length;
}

// As <input type="datetime-local"> wants it.
function localTime(at) {
  const shifted = new Date(at * 1000 - 60_000 * new Date(at * 1000).getTimezoneOffset());
  return shifted.toISOString().slice(0, 19);
}

export function startMoment() {
  byId("moment-close").addEventListener("click", () => change({ at: "", on: "" }));
  byId("moment-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const at = Date.parse(byId("moment-time").value) / 1000;
    if (Number.isFinite(at) && at >= 0 && byId("moment-gpu").value !== "") change({ at: String(Math.round(at)), on: byId("moment-gpu").value }, { step: true });
  });
  byId("moment-time").value = localTime(serviceNow());
  draws(["at", "on"], () => {
    drawMoment();
    if (!byId("moment").hidden) byId("moment").scrollIntoView({ block: "nearest" });
  });
  drawMoment();
}
