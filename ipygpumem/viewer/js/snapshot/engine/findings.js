/** What is worth a look: places to go to. */

import { remember } from "../../data/collections.js";
import { ACTION, BEFORE } from "../model/trace.js";
import { count, duration, fine, plural, size } from "../../data/units.js";

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

const OOMS = 5; // one by one
const LEAST_LEAK = 2;
const LEAST_EIGHTHS = 3; // of the recording's eighths
const NAMED = 1000; // rows that help to name a line
const LATE = 0.9; // what was made in the last tenth may still be in use
const SHOWN = 3;
const LEAST_CHURN = 100;
const LONG_PENDING_US = 1000;
const LONG_PENDING_EVENTS = 100;

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device @returns {Finding[]} */
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

/** @param {import("../model/device.js").Device} device */
function ooms(device) {
  const all = device.trace.events(ACTION.OOM);
  const found = Array.from(all.slice(0, OOMS), (event) => {
    const free = device.facts.device_free[event];
    const asked = device.trace.size[event];
    const why =
      free === undefined
        ? "."
        : free < asked
          ? `; the device had ${size(free)} free.`
          : `; the device had ${size(free)} free: perhaps there was a limit (torch.cuda.set_per_process_memory_fraction).`;
    return finding({
      kind: "oom",
      title: `Out of memory at event ${count(event)}`,
      text: `${fine(asked)} were asked for${why}`,
      event,
    });
  });
  const more = all.length - OOMS;
  if (more > 0) {
    const last = all[all.length - 1];
    const text = `${plural(all.length, "time")} in all, the last at event ${count(last)}: ${fine(device.trace.size[last])} were asked for.`;
    found.push(finding({ kind: "oom", title: `… and out of memory ${count(more)} more times`, text, event: last }));
  }
  return found;
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device */
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

/**
 * The lines with the most bytes among some allocations.
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device
 * @param {(row: number) => boolean} counts
 */
function lines(snapshot, device, counts) {
  const { codes, describe } = snapshot.key(device, "line");
  const { start, size: sizes, length } = device.allocations;
  /** @type {Map<number, {code: number, bytes: number, count: number, eighths: number, rows: number[]}>} */
  const found = new Map();
  for (let row = 0; row < length; row++) {
    if (!counts(row)) continue;
    const one = remember(found, codes[row], () => ({ code: codes[row], bytes: 0, count: 0, eighths: 0, rows: [] }));
    one.bytes += sizes[row];
    one.count++;
    one.eighths |= 1 << Math.floor((8 * Math.max(start[row], 0)) / device.trace.length);
    if (one.rows.length < NAMED) one.rows.push(row);
  }
  return [...found.values()]
    .sort((a, b) => b.bytes - a.bytes)
    .map((one) => ({ ...one, label: () => describe(one.code, one.rows).label }));
}

/** How many bits are set. @param {number} bits */
function bitsOf(bits) {
  return bits.toString(2).replaceAll("0", "").length;
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device */
function leaks(snapshot, device) {
  const { start, end } = device.allocations;
  const events = device.trace.length;
  // made throughout, and not at one moment
  return lines(snapshot, device, (row) => start[row] !== BEFORE && start[row] < events * LATE && end[row] >= events)
    .filter((line) => line.count >= LEAST_LEAK && bitsOf(line.eighths) >= LEAST_EIGHTHS)
    .slice(0, SHOWN)
    .map((line) =>
      finding({
        kind: "leak",
        title: "May leak",
        text: `${plural(line.count, "allocation")} (${fine(line.bytes)}) made again and again and never freed: ${line.label()}`,
        event: events - 1,
        mark: { key: "line", code: line.code },
      }),
    );
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device */
function pending(snapshot, device) {
  const { asked, end, size: sizes, length } = device.allocations;
  const { trace } = device;
  const last = trace.length - 1;
  let best = -1;
  let most = 0;
  for (let row = 0; row < length; row++) {
    if (end[row] === asked[row] || asked[row] < 0 || asked[row] > last) continue;
    // neighbours are mostly one call, in which the program may have been interrupted; but they may lie seconds apart
    const near = end[row] - asked[row] === 1;
    if (near && !trace.timed) continue;
    const to = Math.min(end[row], last);
    const wait = trace.timed ? trace.time[to] - trace.time[asked[row]] : to - asked[row];
    if (wait < (trace.timed ? (near ? 10 : 1) * LONG_PENDING_US : LONG_PENDING_EVENTS)) continue;
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

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device */
function churn(snapshot, device) {
  const { start, end } = device.allocations;
  const events = device.trace.length;
  return lines(snapshot, device, (row) => start[row] !== BEFORE && end[row] < events)
    .filter((line) => line.count >= LEAST_CHURN)
    .slice(0, SHOWN)
    .map((line) =>
      finding({
        kind: "churn",
        title: "Churn",
        text: `${plural(line.count, "allocation")} made and freed, ${fine(line.bytes)} in all: ${line.label()}`,
        mark: { key: "line", code: line.code },
      }),
    );
}

/** Segments given back right before a new one was taken. @param {import("../model/device.js").Device} device */
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
      text: `${found.length === 1 ? "Once" : `Up to ${count(found.length)} times`}: cached memory was in the way (or the program called empty_cache).`,
      event: found[0],
    }),
  ];
}
