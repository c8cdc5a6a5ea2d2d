/** What is worth a look: places to go to. */

import { groups } from "./live.js";
import { ACTION, BEFORE } from "./trace.js";
import { duration, fine, plural, size } from "./units.js";

/**
 * @typedef {object} Finding
 * @property {"peak"|"oom"|"leak"|"pending"|"churn"|"retry"|"gap"} kind
 * @property {string} title
 * @property {string} text
 * @property {number|null} event where to go
 * @property {number[]|null} range events
 * @property {number|null} row allocation to select
 * @property {{key: string, code: number}|null} mark group to mark
 */

const LEAST_LEAK = 2;
const LATE = 0.9; // what was made in the last tenth may still be in use
const SHOWN = 3;
const LEAST_CHURN = 100;
const LONG_PENDING_US = 1000;
const LONG_PENDING_EVENTS = 100;

/** @param {import("./snapshot.js").Snapshot} snapshot @param {import("./device.js").Device} device @returns {Finding[]} */
export function findings(snapshot, device) {
  return [
    ...ooms(device),
    ...largestAtPeak(snapshot, device),
    ...leaks(snapshot, device),
    ...pending(snapshot, device),
    ...churn(snapshot, device),
    ...retries(device),
  ];
}

/** @param {Partial<Finding> & {kind: Finding["kind"], title: string, text: string}} facts @returns {Finding} */
function finding(facts) {
  return { event: null, range: null, row: null, mark: null, ...facts };
}

/** @param {import("./device.js").Device} device */
function ooms(device) {
  return Array.from(device.trace.events(ACTION.OOM).slice(0, 20), (event) => {
    const free = device.facts.device_free[event];
    return finding({
      kind: "oom",
      title: `Out of memory at event ${event.toLocaleString("en")}`,
      text: `${size(device.trace.size[event])} were asked for${free === undefined ? "" : `; the device had ${size(free)} free`}.`,
      event,
    });
  });
}

/** @param {import("./snapshot.js").Snapshot} snapshot @param {import("./device.js").Device} device */
function largestAtPeak(snapshot, device) {
  const event = device.requested.peak() - 1;
  const { size: sizes } = device.allocations;
  let largest = -1;
  for (const row of device.checkpoints.live(event)) if (largest < 0 || sizes[row] > sizes[largest]) largest = row;
  if (largest < 0) return [];
  const key = snapshot.key(device, "line");
  const label = key.describe(key.codes[largest], [largest]).label;
  return [
    finding({
      kind: "peak",
      title: "Largest allocation at the peak",
      text: `${fine(sizes[largest])}, ${label}`,
      event,
      row: largest,
    }),
  ];
}

/** @param {import("./snapshot.js").Snapshot} snapshot @param {import("./device.js").Device} device */
function leaks(snapshot, device) {
  const { start, end, length } = device.allocations;
  const events = device.trace.length;
  /** @type {number[]} */
  const rows = [];
  for (let row = 0; row < length; row++) {
    if (start[row] !== BEFORE && start[row] < events * LATE && end[row] >= events) rows.push(row);
  }
  const last = events - 1;
  return groups(snapshot, device, Int32Array.from(rows), "line", -1, last)
    .filter((group) => group.count >= LEAST_LEAK && grows(snapshot, device, rows, group.code))
    .slice(0, SHOWN)
    .map((group) =>
      finding({
        kind: "leak",
        title: "May leak",
        text: `${plural(group.count, "allocation")} (${fine(group.bytes)}) made again and again and never freed: ${group.label}`,
        event: rows.find((row) => snapshot.key(device, "line").codes[row] === group.code) === undefined ? null : last,
        mark: { key: "line", code: group.code },
      }),
    );
}

/** Whether a line's remaining allocations were made throughout, and not at one moment. @param {import("./snapshot.js").Snapshot} snapshot @param {import("./device.js").Device} device @param {number[]} rows @param {number} code */
function grows(snapshot, device, rows, code) {
  const { codes } = snapshot.key(device, "line");
  const eighths = new Set();
  for (const row of rows) {
    if (codes[row] === code) eighths.add(Math.floor((8 * device.allocations.start[row]) / device.trace.length));
  }
  return eighths.size >= 3;
}

/** @param {import("./snapshot.js").Snapshot} snapshot @param {import("./device.js").Device} device */
function pending(snapshot, device) {
  const { asked, end, size: sizes, length } = device.allocations;
  const { trace } = device;
  const last = trace.length - 1;
  let best = -1;
  let most = 0;
  for (let row = 0; row < length; row++) {
    if (end[row] - asked[row] <= 1 || asked[row] < 0 || asked[row] > last) continue;
    const to = Math.min(end[row], last);
    const wait = trace.timed ? trace.time[to] - trace.time[asked[row]] : to - asked[row];
    if (wait < (trace.timed ? LONG_PENDING_US : LONG_PENDING_EVENTS)) continue;
    if (wait * sizes[row] > most) {
      most = wait * sizes[row];
      best = row;
    }
  }
  if (best < 0) return [];
  const to = Math.min(end[best], last);
  const wait = trace.timed ? duration(trace.time[to] - trace.time[asked[best]]) : plural(to - asked[best], "event");
  const key = snapshot.key(device, "line");
  return [
    finding({
      kind: "pending",
      title: "Long in pending free",
      text: `${fine(sizes[best])} waited ${wait} for a stream after the free: ${key.describe(key.codes[best], [best]).label}`,
      event: asked[best],
      row: best,
    }),
  ];
}

/** @param {import("./snapshot.js").Snapshot} snapshot @param {import("./device.js").Device} device */
function churn(snapshot, device) {
  const { start, end, length } = device.allocations;
  const last = device.trace.length - 1;
  const rows = [];
  for (let row = 0; row < length; row++) if (start[row] !== BEFORE && end[row] <= last) rows.push(row);
  return groups(snapshot, device, Int32Array.from(rows), "line", -1, last)
    .filter((group) => group.count >= LEAST_CHURN)
    .slice(0, SHOWN)
    .map((group) =>
      finding({
        kind: "churn",
        title: "Churn",
        text: `${plural(group.count, "allocation")} made and freed, ${fine(group.bytes)} in all: ${group.label}`,
        mark: { key: "line", code: group.code },
      }),
    );
}

/** Segments given back right before a new one was taken. @param {import("./device.js").Device} device */
function retries(device) {
  const { action, length } = device.trace;
  const found = [];
  for (let event = 1; event < length; event++) {
    const back = action[event - 1] === ACTION.SEGMENT_FREE || action[event - 1] === ACTION.UNMAP;
    const again =
      action[event] === ACTION.SEGMENT_ALLOC || action[event] === ACTION.MAP || action[event] === ACTION.OOM;
    if (back && again) found.push(event);
  }
  if (!found.length) return [];
  return [
    finding({
      kind: "retry",
      title: "Segments given back and taken again",
      text: `Up to ${plural(found.length, "time")}: cached memory was in the way (or the program called empty_cache).`,
      event: found[0],
    }),
  ];
}
