// Search in history: by text, GPU and time; each result leads to its moment.

import { byId, change, counted, draws, element, state } from "./kit.js";
import { setText } from "./elements.js";
import { RANGES } from "./address.js";
import { ask, serviceNow } from "./service.js";
import { fillTable, heldRow } from "./moment.js";

const MOST = 200;
let asking = null;

async function search() {
  byId("search").value = state.q;
  byId("search-what").value = state.what;
  byId("search-gpu").value = state.on_gpu;
  byId("search-within").value = state.within;
  asking?.abort();
  if (!state.q && !state.what) return show(null);
  asking = new AbortController();
  const { signal } = asking;
  const question = new URLSearchParams({ limit: String(MOST) });
  if (state.within !== "all") question.set("from", String(Math.floor(serviceNow() - RANGES[state.within][0])));
  if (state.q) question.set("q", state.q);
  if (state.on_gpu !== "") question.set("gpu", state.on_gpu);
  setText(byId("search-sum"), "searching…");
  try {
    const { body } = await ask(`/api/v1/history/${state.what === "ghosts" ? "ghosts" : "search"}?${question}`, { signal });
    show(state.what === "ghosts" ? body.ghosts : body.rows, "", body.more === true);
  } catch (error) {
    if (signal.aborted) return;
    show(null, [error.message, error.hint].filter(Boolean).join(" "));
  }
}

function matches(row) {
  const typed = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [row.pid, row.dead_pid, row.user, row.command, row.kind, row.code].join(" ").toLowerCase();
  return (state.on_gpu === "" || String(row.gpu) === state.on_gpu) && (state.what !== "ghosts" || typed.every((word) => text.includes(word)));
}

function show(rows, problem = "", more = false) {
  const found = (rows ?? []).filter(matches);
  const headings = ["GPU", "Size", "Kind", "PID", "User", "Held from", "Until", "Command"];
  fillTable(byId("found"), headings, found.slice(0, MOST).map((row) => {
    const made = heldRow(row, { links: true });
    made.prepend(element("td", { role: "cell", class: "number", "data-label": "GPU" }, row.gpu ?? "-"));
    return made;
  }));
  const within = state.within === "all" ? "everything that is kept" : RANGES[state.within][2];
  byId("search-empty").hidden = rows !== null && found.length > 0 || (rows === null && !problem);
  setText(byId("search-empty"), problem || `Nothing was found in ${within}.`);
  setText(byId("search-sum"), rows === null ? "" : `${counted(found.length, "result")} in ${within}${more ? "; there are more" : ""}`);
}

export function startSearch() {
  byId("search-within").append(...Object.entries(RANGES).map(([key, [, , long]]) => element("option", { value: key }, long)), element("option", { value: "all" }, "all that is kept"));
  byId("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!byId("search").value.trim() && !byId("search-what").value) return show(null, "Type a part of a command, a user or a pid.");
    change({ q: byId("search").value.trim(), what: byId("search-what").value, on_gpu: byId("search-gpu").value, within: byId("search-within").value }, { step: true });
  });
  draws(["q", "what", "on_gpu", "within"], () => {
    search();
    if (state.q || state.what) byId("search-section").scrollIntoView({ block: "nearest" });
  });
  if (state.q || state.what) search();
  else byId("search-within").value = state.within;
}
