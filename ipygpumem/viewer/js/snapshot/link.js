/** The view as a short text, for the fragment of an address (the part after #). */

import { COLOR_MODES, GROUP_KEYS } from "./options.js";
import { initialState } from "./store.js";

/** @typedef {import("./store.js").Shown} Shown */

const TABS = ["live", "state", "events", "compare", "about"];

/** @param {Shown} now @param {number} [home] the device that is shown by default @returns {string} */
export function toHash(now, home = 0) {
  const initial = initialState();
  const text = new URLSearchParams();
  const add = (/** @type {string} */ key, /** @type {unknown} */ value, condition = true) => {
    if (condition) text.set(key, String(value));
  };
  add("d", now.device, now.device !== home);
  add("a", now.axis, now.axis !== initial.axis);
  add("x", now.x?.map(short).join("~"), now.x !== null);
  add("y", now.y?.map(short).join("~"), now.y !== null);
  add("f", now.source, now.source > 0);
  add("e", now.event, now.event !== null);
  add("r", now.range?.join("~"), now.range !== null);
  add("n", now.row, now.row !== null);
  add("c", now.mode, now.mode !== initial.mode);
  add("h", now.hidden.join("~"), now.hidden.length > 0);
  if (now.mark.kind === "group") add("m", `${now.mark.key}~${now.mark.code}`);
  add("g", now.key, now.key !== initial.key);
  add("v", now.measure, now.measure !== initial.measure);
  add("t", now.tab, now.tab !== initial.tab);
  add("s", "replayed", now.replayed);
  add("q", now.search, now.search !== "");
  return text.toString();
}

/** @param {number} value */
function short(value) {
  return String(Number(value.toPrecision(10)));
}

/**
 * The view that a text describes. Invalid values are ignored; numbers are checked against the snapshot by `Viewer`.
 * @param {string} text @returns {Partial<Shown>}
 */
export function fromHash(text) {
  const parameters = new URLSearchParams(text.replace(/^#/, ""));
  const get = (/** @type {string} */ key) => parameters.get(key) ?? "";
  const integer = (/** @type {string} */ key, minimum = 0) => {
    const value = get(key) ? Number(get(key)) : Number.NaN;
    return Number.isSafeInteger(value) && value >= minimum ? value : undefined;
  };
  const pair = (/** @type {string} */ key) => {
    const [low, high, ...rest] = get(key).split("~").map(Number);
    const valid = Number.isFinite(low) && Number.isFinite(high) && low < high && !rest.length;
    return valid ? /** @type {[number, number]} */ ([low, high]) : undefined;
  };
  const option = (/** @type {string} */ key, /** @type {readonly string[]} */ options) =>
    options.find((value) => value === get(key));
  const range = pair("r");
  const hidden = get("h")
    .split("~")
    .map((number) => (number ? Number(number) : Number.NaN));
  const mark = /^([a-z]+)~(-?\d+)$/.exec(get("m"));
  const search = get("q").slice(0, 200) || undefined;
  /** @type {Partial<Shown>} */
  const view = {
    device: integer("d", -1),
    axis: /** @type {"event"|"time"|undefined} */ (option("a", ["event", "time"])),
    x: pair("x"),
    y: pair("y"),
    source: integer("f"),
    event: integer("e", -1),
    range: range?.every(Number.isSafeInteger) ? range : undefined,
    row: integer("n"),
    mode: option("c", COLOR_MODES),
    hidden: hidden.every(Number.isSafeInteger) ? hidden : undefined,
    key: option("g", GROUP_KEYS),
    measure: /** @type {"time"|undefined} */ (option("v", ["time"])),
    tab: option("t", TABS),
    replayed: get("s") === "replayed" || undefined,
    search,
  };
  if (mark && GROUP_KEYS.includes(mark[1])) view.mark = { kind: "group", key: mark[1], code: Number(mark[2]) };
  else if (search) view.mark = { kind: "search", text: search };
  return Object.fromEntries(Object.entries(view).filter(([, value]) => value !== undefined));
}
