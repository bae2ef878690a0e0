// What can be chosen on the page of a service, and which values a link may give it.

import { startState } from "./kit.js";

const DEFAULTS = {
  gpu: "", // number of the only GPU that is shown
  filter: "", // text of the table of processes
  state: "", // state of the processes that are shown; "trouble" for all that need attention
  sort: "trouble", // column, with "-" for the other direction
  open: "", // key of the row that is open
  range: "1h", // key of RANGES
  at: "", // moment that was chosen, in unix seconds
  on: "", // its GPU
  q: "", // text searched for
  what: "", // "ghosts"
  on_gpu: "", // GPU searched
  within: "7d", // key of RANGES, or "all"
};

export const RANGES = {
  "15m": [900, "15 min", "the last 15 minutes"],
  "1h": [3600, "1 h", "the last hour"],
  "6h": [6 * 3600, "6 h", "the last 6 hours"],
  "24h": [24 * 3600, "24 h", "the last 24 hours"],
  "7d": [7 * 86400, "7 d", "the last 7 days"],
  "30d": [30 * 86400, "30 d", "the last 30 days"],
};

// What no control can set is not taken.
const NUMBER = /^\d{1,4}$/;
const KNOWN = {
  gpu: (value) => NUMBER.test(value),
  on: (value) => NUMBER.test(value),
  on_gpu: (value) => NUMBER.test(value),
  at: (value) => /^\d{1,11}(\.\d{1,6})?$/.test(value),
  range: (value) => Object.hasOwn(RANGES, value),
  within: (value) => value === "all" || Object.hasOwn(RANGES, value),
  what: (value) => value === "ghosts",
  sort: (value) => /^-?[a-z]{1,10}$/.test(value),
};
const LONGEST = 200;

export const startAddress = () => startState(DEFAULTS, KNOWN, LONGEST);
