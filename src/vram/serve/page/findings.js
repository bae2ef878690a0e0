// Ghosts with their evidence and the command that frees them, then what else `vram why` would report.

import { button, byId, bytes, counted, draws, element, state } from "./kit.js";
import { arrange, commandLine, duration, moment, setText, when } from "./elements.js";
import { serviceNow } from "./service.js";
import { words } from "./words.js";

const items = new Map(); // by what is found; each remembers what it shows
const AT_FIRST = 5;
const MARKS = { problem: "●", warning: "▲" };
let reading = null, made = 0, most = AT_FIRST, ghostCount = null;

export function drawFindings(given) {
  reading = given;
  const ofGpu = reading.findings.filter((finding) => state.gpu === "" || !finding.gpus.length || finding.gpus.includes(Number(state.gpu)));
  const keys = new Set();
  const nodes = ofGpu.slice(0, most).map((finding) => {
    const key = `${finding.code} ${finding.gpus} ${finding.pids} ${finding.pids.length ? "" : finding.title}`;
    keys.add(key);
    const shown = JSON.stringify({ ...finding, since: null });
    let item = items.get(key);
    if (!item || item.shown !== shown) {
      const isOpen = item?.node.querySelector(".more")?.getAttribute("aria-expanded") === "true";
      item = { shown, since: moment(finding.since), node: makeFinding(finding, isOpen) };
      items.set(key, item);
    }
    return item.node;
  });
  for (const key of items.keys()) if (!keys.has(key)) items.delete(key);
  arrange(byId("findings"), nodes);
  byId("more-findings").hidden = nodes.length === ofGpu.length;
  setText(byId("more-findings"), `Show all ${ofGpu.length}`);
  byId("findings-section").hidden = !nodes.length;
  const ghosts = ofGpu.filter((finding) => finding.ghost);
  const nbytes = ghosts.reduce((sum, finding) => sum + (finding.nbytes || 0), 0);
  const others = ofGpu.length - ghosts.length;
  const parts = [ghosts.length && `${counted(ghosts.length, "ghost")}, ${bytes(nbytes)}`, others && counted(others, ghosts.length ? "other finding" : "finding")];
  if (reading.left_out) parts.push(`${reading.left_out} more: vram why -v`);
  setText(byId("findings-sum"), parts.filter(Boolean).join(" · "));
  // A screen reader says once that there is a new one.
  if (ghostCount !== null && ghosts.length > ghostCount) setText(byId("told"), `${counted(ghosts.length, "ghost")}, ${bytes(nbytes)}`);
  ghostCount = ghosts.length;
  setText(byId("findings-title"), ghosts.length ? "Ghosts and findings" : "Findings");
  drawSince();
}

// For how long it is there: this grows while nothing else changes.
export function drawSince() {
  for (const { node, since } of items.values()) {
    if (since !== null) setText(node.querySelector(".since"), `since ${when(since)} (${duration(serviceNow() - since)})`);
  }
}

function makeFinding(finding, isOpen) {
  const where = finding.gpus.length && !finding.title.includes("GPU") ? `GPU${finding.gpus.length > 1 ? "s" : ""} ${finding.gpus.join(", ")}: ` : "";
  const since = moment(finding.since);
  const head = element("p", { class: "finding-title" },
    element("span", { class: `mark ${finding.severity}`, "aria-hidden": "true" }, MARKS[finding.severity] ?? "○"),
    element("span", { class: "unseen" }, finding.ghost ? "Ghost: " : `${finding.severity}: `),
    element("b", null, `${where}${finding.title}`), element("span", { class: "code" }, finding.code),
    since === null ? null : element("span", { class: "note since", title: finding.since }));
  const node = element("li", { class: finding.ghost ? "finding ghost" : "finding", "data-code": finding.code }, head);
  const remedy = element("p", { class: "remedy" });
  if (finding.command) {
    remedy.append(element("span", { class: "lead" }, `${finding.lead}:`), commandLine(finding.command));
    if (finding.harm && finding.harm !== "none") remedy.append(element("span", { class: "note" }, words.harms[finding.harm] ?? finding.harm));
  } else if (finding.advice) {
    remedy.append(element("span", null, finding.advice));
  }
  const known = element("div", { class: "known", id: `known-${++made}`, hidden: !isOpen }, ...evidence(finding));
  const more = button("Evidence", () => {
    known.hidden = !known.hidden;
    more.setAttribute("aria-expanded", String(!known.hidden));
  }, { class: "more", "aria-expanded": String(Boolean(isOpen)), "aria-controls": known.id });
  remedy.append(more);
  node.append(remedy, known);
  return node;
}

function evidence(finding) {
  const parts = [element("p", null, finding.cause)];
  if (finding.evidence.length) parts.push(element("ul", { class: "evidence" }, ...finding.evidence.slice(0, 30).map((line) => element("li", null, line))));
  if (finding.command && finding.advice) parts.push(element("p", null, finding.advice));
  const details = finding.pids.length ? `vram why ${finding.pids[0]}` : `vram explain ${finding.code}`;
  parts.push(element("p", { class: "remedy" }, element("span", { class: "lead" }, "Why:"), commandLine(details)));
  if (finding.command) parts.push(element("p", { class: "note" }, `Run it on ${reading.node}, as ${reading.user || "root"} or as the owner of the process.`));
  return parts;
}

export function startFindings() {
  byId("more-findings").addEventListener("click", () => { most = Infinity; drawFindings(reading); });
  draws(["gpu"], () => reading && drawFindings(reading));
}
