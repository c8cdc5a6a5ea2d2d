/** The view as a short text, for the part of an address behind the #. */

import { atFirst } from "./store.js";

/** @typedef {import("./store.js").Shown} Shown */

const TABS = ["live", "state", "events", "compare", "about"];
const WORD = /^[a-z]{1,20}$/;

/** @param {Shown} now @param {number} [home] the device that is shown where none is asked for @returns {string} */
export function toHash(now, home = 0) {
  const first = atFirst();
  const found = new URLSearchParams();
  const put = (/** @type {string} */ key, /** @type {string} */ value) => found.set(key, value);
  if (now.device !== home) put("d", String(now.device));
  if (now.axis !== first.axis) put("a", now.axis);
  if (now.x) put("x", now.x.map(short).join("~"));
  if (now.y) put("y", now.y.map(short).join("~"));
  if (now.source) put("f", String(now.source));
  if (now.event !== null) put("e", String(now.event));
  if (now.range) put("r", now.range.join("~"));
  if (now.row !== null) put("n", String(now.row));
  if (now.mode !== first.mode) put("c", now.mode);
  if (now.hidden.length) put("h", now.hidden.join("~"));
  if (now.mark.kind === "group") put("m", `${now.mark.key}~${now.mark.code}`);
  if (now.key !== first.key) put("g", now.key);
  if (now.measure !== first.measure) put("v", now.measure);
  if (now.tab !== first.tab) put("t", now.tab);
  if (now.search) put("q", now.search);
  return found.toString();
}

/** @param {number} value */
function short(value) {
  return String(Number(value.toPrecision(10)));
}

/**
 * What a text says of the view; what is no view is left out. Numbers are held against the snapshot where they are used.
 * @param {string} text @returns {Partial<Shown>}
 */
export function fromHash(text) {
  const given = new URLSearchParams(text.replace(/^#/, ""));
  /** @type {Partial<Shown>} */
  const found = {};
  const whole = (/** @type {string} */ key, least = 0) => {
    const value = Number(given.get(key) ?? Number.NaN);
    return Number.isSafeInteger(value) && value >= least ? value : undefined;
  };
  const pair = (/** @type {string} */ key) => {
    const values = (given.get(key) ?? "").split("~").map(Number);
    return values.length === 2 && values.every(Number.isFinite) && values[0] < values[1]
      ? /** @type {[number, number]} */ (values)
      : undefined;
  };
  found.device = whole("d", -1);
  if (given.get("a") === "time" || given.get("a") === "event")
    found.axis = /** @type {"time"|"event"} */ (given.get("a"));
  found.x = pair("x");
  found.y = pair("y");
  found.source = whole("f");
  found.event = whole("e", -1);
  const range = pair("r");
  if (range?.every(Number.isSafeInteger)) found.range = range;
  found.row = whole("n");
  const word = (/** @type {string} */ key) =>
    WORD.test(given.get(key) ?? "") ? /** @type {string} */ (given.get(key)) : undefined;
  found.mode = word("c");
  found.key = word("g");
  if (given.get("v") === "time") found.measure = "time";
  if (TABS.includes(given.get("t") ?? "")) found.tab = /** @type {string} */ (given.get("t"));
  const hidden = (given.get("h") ?? "").split("~").map((one) => (one ? Number(one) : Number.NaN));
  if (hidden.every(Number.isSafeInteger)) found.hidden = hidden;
  const mark = /^([a-z]+)~(-?\d+)$/.exec(given.get("m") ?? "");
  if (mark) found.mark = { kind: "group", key: mark[1], code: Number(mark[2]) };
  const search = given.get("q");
  if (search) {
    found.search = search.slice(0, 200);
    if (!mark) found.mark = { kind: "search", text: found.search };
  }
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined));
}
