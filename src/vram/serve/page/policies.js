// Policies that are configured, those that only say what they would do, and their last decisions.

import { byId, bytes, counted, element } from "./kit.js";
import { cut, duration, moment, setText, when } from "./elements.js";
import { ask } from "./service.js";

const MAX_DECISIONS = 50;
let shown = null; // the name of what is shown

const MODES = { act: ["acts", "good"], "dry-run": ["dry run", "plain"] };
const VERDICTS = { act: ["act", "warning"], "dry-run": ["dry run", "plain"], capped: ["held back by the cap", "warning"], refused: ["refused", "warning"] };
const STATUSES = { failed: "bad", refused: "warning", unkillable: "bad" };

const badge = ([text, tone]) => element("span", { class: `badge ${tone}` }, text);
const list = (value) => (Array.isArray(value) ? value : []);

function draw({ body }) {
  const policies = list(body.policies), decisions = list(body.decisions);
  byId("policies-empty").hidden = policies.length > 0;
  setText(byId("policies-empty"), "No policy is configured: the service only reads.");
  const dry = policies.filter(({ mode }) => mode !== "act").length;
  setText(byId("policies-sum"), policies.length ? `${counted(policies.length, "policy", "policies")}${dry ? `, ${dry} in dry run` : ""}` : "");
  table("policies", ["Name", "Does", "Mode", "After", "At most"], policies.map((policy) => [
    policy.name, String(policy.do ?? "").replaceAll("-", " "), badge(MODES[policy.mode] ?? [policy.mode ?? "?", "plain"]),
    Number.isFinite(policy.after_s) ? duration(policy.after_s) : "-", Number.isFinite(policy.most_per_hour) ? `${policy.most_per_hour} an hour` : "-"]));
  byId("decisions-part").hidden = !decisions.length;
  const newest = [...decisions].sort((a, b) => (b.number ?? 0) - (a.number ?? 0)).slice(0, MAX_DECISIONS);
  table("decisions", ["When", "Policy", "Decision", "About", "Why"], newest.map(decisionCells));
}

function decisionCells(decision) {
  const result = decision.verdict === "act" && decision.status !== "decided" ? [badge([decision.status ?? "?", STATUSES[decision.status] ?? "good"])] : [];
  const pids = list(decision.targets).map(({ pid }) => pid);
  const about = [pids.length ? `pid ${pids.slice(0, 8).join(", ")}` : decision.subject, list(decision.gpus).length ? `GPU ${decision.gpus.join(", ")}` : "", decision.nbytes ? bytes(decision.nbytes) : ""];
  const freed = Number.isFinite(decision.freed_bytes) ? `${bytes(decision.freed_bytes)} freed` : "";
  return [when(moment(decision.at)), decision.policy,
    element("span", { class: "badges" }, `${String(decision.do ?? "")} `, badge(VERDICTS[decision.verdict] ?? [decision.verdict ?? "?", "plain"]), ...result),
    about.filter(Boolean).join(" · "), cut([decision.reason, decision.message, freed].filter(Boolean).join("; "))];
}

function table(id, headings, rows) {
  const cells = (row) => row.map((cell) => element("td", null, typeof cell === "string" ? cut(cell) : cell));
  byId(id).replaceChildren(element("thead", null, element("tr", null, ...headings.map((heading) => element("th", { scope: "col" }, heading)))),
    element("tbody", null, ...rows.map((row) => element("tr", null, ...cells(row)))));
  byId(id).hidden = !rows.length;
}

// Called at each answer about now, with the name of what there is.
export async function keepPolicies(name) {
  byId("policies-section").hidden = name === null;
  if (name === null || name === shown) return;
  shown = name;
  try {
    draw(await ask("/api/v1/policies"));
  } catch (error) {
    shown = null; // at the next answer again; whether there is one, the page says elsewhere
  }
}
