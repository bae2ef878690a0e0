// The page of one machine: asks the service for the newest reading, and hands it to each section.

import { button, byId, element, startSkipLink } from "./kit.js";
import { duration, setText, when } from "./elements.js";
import { startAddress } from "./address.js";
import { Poll, ask, serviceNow, setClock } from "./service.js";
import { learn, words } from "./words.js";
import { drawForecasts, drawGpus, startGpus } from "./gpus.js";
import { drawFindings, drawSince, startFindings } from "./findings.js";
import { drawAges, drawProcesses, startProcesses } from "./processes.js";
import { keepUp, setGpus, startChart } from "./chart.js";
import { startMoment } from "./moment.js";
import { startSearch } from "./search.js";
import { keepPolicies } from "./policies.js";

const OLD_READINGS = 3, OLD_S = 15; // a reading is old when so many are missing, and not before so many seconds

const seen = {
  now: null, // the last answer about now
  hasClock: false, // whether the service's time is known
  answeredAt: 0, // performance.now() then
  goodAt: null, // unix seconds of the last good reading
  reading: "", // name of the one that is shown
  noDriver: null, // why it has no GPU
  failure: null, // what the last question met
  retryAt: 0,
};

const sinceAnswer = () => (performance.now() - seen.answeredAt) / 1000;
const interval = () => Math.min(60, Math.max(0.2, seen.now?.interval_s ?? 5));

// The reading itself is asked for where it is another one than the page shows.
async function question() {
  const { body: now } = await ask("/page/now.json");
  const reading = now.reading !== null && now.reading !== seen.reading ? await ask("/page/reading.json") : null;
  return { now, reading };
}

function onAnswer({ now, reading }) {
  seen.now = now;
  seen.answeredAt = performance.now();
  seen.failure = null;
  setClock(now.now);
  if (!seen.hasClock) startPast();
  const goodAt = now.good_age_s === null ? null : serviceNow() - now.good_age_s;
  // The same reading is not a second older because an answer took longer.
  if (goodAt === null || seen.goodAt === null || Math.abs(goodAt - seen.goodAt) > 1.5) seen.goodAt = goodAt;
  if (reading) {
    seen.reading = reading.headers.get("Vram-Reading");
    show(reading.body);
  } else {
    drawAges();
    drawSince();
  }
  drawForecasts(now.forecasts);
  keepUp(now, Boolean(reading));
  keepPolicies(now.policies);
  drawStatus();
}

// What a link asks of the past is asked when it is known what time it is.
function startPast() {
  seen.hasClock = true;
  startMoment();
  startSearch();
}

function onFailure(error, retryAt) {
  seen.failure = error;
  seen.retryAt = retryAt;
  drawStatus();
}

function show(reading) {
  const began = performance.now();
  for (const section of ["gpus", "processes"]) byId(`${section}-section`).hidden = false;
  setText(byId("node"), reading.node);
  document.title = `${byId("node").textContent} · vram`;
  setText(byId("about"), reading.driver ? `driver ${reading.driver}` : "");
  seen.noDriver = reading.no_driver;
  drawGpus(reading);
  drawFindings(reading);
  drawProcesses(reading, () => seen.now.ages_behind_s + sinceAnswer());
  setGpus(reading.gpus);
  const { dataset } = document.documentElement;
  dataset.drawMs = (performance.now() - began).toFixed(1);
  dataset.drawn = String(Number(dataset.drawn ?? 0) + 1);
  if (dataset.drawn === "1") performance.mark("vram-drawn");
}

// ---- is what is shown true now? ----

// {tone, line, banner}: a line that is always there, and a banner where the reader should know.
function health() {
  const { now } = seen;
  const age = now === null || now.good_age_s === null ? null : now.good_age_s + sinceAnswer();
  const from = age === null ? "" : `What is shown was read at ${when(seen.goodAt)}.`;
  if (seen.failure) {
    const again = Math.max(0, Math.ceil((seen.retryAt - performance.now()) / 1000));
    const next = again > 0 ? `Trying again in ${again} s.` : "Trying again…";
    const line = seen.failure.status === 0 ? "service unreachable" : "service has a problem";
    return { tone: "bad", line, banner: [seen.failure.message, seen.failure.hint, from], next };
  }
  if (now === null) return { tone: "plain", line: "asking the service…" };
  if (age === null) return { tone: "warning", line: "no reading yet", banner: [now.error && sentence(now.error) || "The service has started and has not read the GPUs yet."] };
  const line = `read ${duration(age)} ago`;
  if (now.error) return { tone: "bad", line, banner: [sentence(now.error), from] };
  const isOld = age > Math.max(OLD_S, OLD_READINGS * interval());
  if (isOld) return { tone: "bad", line, banner: ["The GPUs are not read now: the driver or the machine does not answer.", from] };
  if (seen.noDriver) return { tone: "bad", line, banner: [sentence(seen.noDriver)] };
  if (now.version !== words.version) return { tone: "warning", line, banner: [`vram ${now.version} is running now: reload this page.`] };
  return { tone: "good", line };
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

let toldTone = "";

function drawStatus() {
  const { tone, line, banner, next } = health();
  const status = byId("status");
  setText(status, line);
  status.dataset.tone = tone;
  document.documentElement.dataset.service = tone;
  const box = byId("banner");
  box.hidden = !banner;
  if (banner) {
    box.dataset.tone = tone;
    const words = banner.filter(Boolean).join(" ");
    if (box.firstChild?.textContent !== words) {
      box.replaceChildren(element("span", null, words), element("span", { class: "next", "aria-hidden": "true" }),
        ...(next ? [button("Try now", () => tryNow())] : []));
    }
    setText(box.querySelector(".next"), next ?? "");
  }
  // Said once when it changes: an age that counts up would never let a screen reader finish.
  if (tone !== toldTone && (toldTone || tone !== "good") && tone !== "plain") setText(byId("told"), tone === "good" ? "The figures are up to date." : line);
  toldTone = tone;
}

const live = new Poll(question, { every: interval, onAnswer, onFailure });
let tryNow = () => live.now();

async function start() {
  startAddress();
  startSkipLink();
  for (let wait_s = 1; ; wait_s = Math.min(30, 2 * wait_s)) {
    try {
      learn((await ask("/page/words.json")).body);
      break;
    } catch (error) {
      onFailure(error, performance.now() + 1000 * wait_s);
      await new Promise((done) => {
        tryNow = done;
        setTimeout(done, 1000 * wait_s);
      });
    }
  }
  setText(byId("version"), `vram ${words.version}`);
  startGpus();
  startFindings();
  startProcesses();
  startChart();
  tryNow = () => live.now();
  live.start();
  setInterval(() => !document.hidden && drawStatus(), 1000);
}

start();
