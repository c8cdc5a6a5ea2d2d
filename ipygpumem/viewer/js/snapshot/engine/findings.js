/** Findings: events, allocations and lines of code that deserve attention. */

import { getOrCreate } from "../../data/collections.js";
import { ACTION, BEFORE } from "../model/trace.js";
import { count, duration, fine, plural, size } from "../../data/units.js";

/**
 * @typedef {object} Finding
 * @property {"peak"|"oom"|"leak"|"pending"|"churn"|"retry"} kind
 * @property {string} title
 * @property {string} text
 * @property {number|null} event to move the cursor to
 * @property {number|null} row allocation to select
 * @property {{key: string, code: number}|null} mark group to highlight
 */

const MAX_OOMS = 5; // that are listed one by one
const MIN_LEAK_COUNT = 2;
const MIN_EIGHTHS = 3; // eighths of the recording in which a leaking line allocates
const SAMPLE = 1000; // rows that help to describe a line
const LATE = 0.9; // what was allocated in the last tenth may still be in use
const MAX_LINES = 3; // findings of one kind
const MIN_CHURN_COUNT = 100;
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
  return { event: null, row: null, mark: null, ...facts };
}

/** @param {import("../model/device.js").Device} device */
function ooms(device) {
  const all = device.trace.events(ACTION.OOM);
  const listed = Array.from(all.slice(0, MAX_OOMS), (event) => {
    const free = device.facts.device_free[event];
    const requested = device.trace.size[event];
    let text = `Tried to allocate ${fine(requested)}`;
    if (free !== undefined) text += `; ${size(free)} of device memory was free`;
    if (free >= requested) text += ". A limit may apply (torch.cuda.set_per_process_memory_fraction)";
    return finding({ kind: "oom", title: `Out of memory at event ${count(event)}`, text: `${text}.`, event });
  });
  const more = all.length - MAX_OOMS;
  if (more > 0) {
    const last = all[all.length - 1];
    const text = `${plural(all.length, "time")} in total. The last, at event ${count(last)}, tried to allocate ${fine(device.trace.size[last])}.`;
    listed.push(finding({ kind: "oom", title: `Out of memory ${plural(more, "more time")}`, text, event: last }));
  }
  return listed;
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device */
function largestAtPeak(snapshot, device) {
  const event = device.requested.peak() - 1;
  const { size: sizes } = device.allocations;
  let largest = -1;
  for (const row of device.checkpoints.live(event)) if (largest < 0 || sizes[row] > sizes[largest]) largest = row;
  if (largest < 0) return [];
  const text = `${fine(sizes[largest])}, ${lineOf(snapshot, device, largest)}`;
  return [finding({ kind: "peak", title: "Largest allocation at the peak", text, event, row: largest })];
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device @param {number} row */
function lineOf(snapshot, device, row) {
  const { codes, describe } = snapshot.key(device, "line");
  return describe(codes[row], [row]).label;
}

/**
 * The lines with the most bytes among some allocations.
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device
 * @param {(row: number) => boolean} condition which allocations count
 */
function largestLines(snapshot, device, condition) {
  const { codes, describe } = snapshot.key(device, "line");
  const { start, size: sizes, length } = device.allocations;
  /** @type {Map<number, {code: number, bytes: number, count: number, eighths: number, rows: number[]}>} */
  const lines = new Map();
  for (let row = 0; row < length; row++) {
    if (!condition(row)) continue;
    const code = codes[row];
    const line = getOrCreate(lines, code, () => ({ code, bytes: 0, count: 0, eighths: 0, rows: [] }));
    line.bytes += sizes[row];
    line.count++;
    line.eighths |= 1 << Math.floor((8 * Math.max(start[row], 0)) / device.trace.length);
    if (line.rows.length < SAMPLE) line.rows.push(row);
  }
  return [...lines.values()]
    .sort((a, b) => b.bytes - a.bytes)
    .map((line) => ({ ...line, label: () => describe(line.code, line.rows).label }));
}

/** The number of bits that are set. @param {number} bits */
function countBits(bits) {
  return bits.toString(2).replaceAll("0", "").length;
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device */
function leaks(snapshot, device) {
  const { start, end } = device.allocations;
  const events = device.trace.length;
  const stays = (/** @type {number} */ row) =>
    start[row] !== BEFORE && start[row] < events * LATE && end[row] >= events;
  return largestLines(snapshot, device, stays)
    .filter((line) => line.count >= MIN_LEAK_COUNT && countBits(line.eighths) >= MIN_EIGHTHS)
    .slice(0, MAX_LINES)
    .map((line) =>
      finding({
        kind: "leak",
        title: "Possible leak",
        text: `${plural(line.count, "allocation")} (${fine(line.bytes)}) were made throughout the recording and never freed: ${line.label()}`,
        event: events - 1,
        mark: { key: "line", code: line.code },
      }),
    );
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device */
function pending(snapshot, device) {
  const { freeRequested, end, size: sizes, length } = device.allocations;
  const { trace } = device;
  const last = trace.length - 1;
  const waitOf = (/** @type {number} */ row) => {
    const to = Math.min(end[row], last);
    return trace.timed ? trace.time[to] - trace.time[freeRequested[row]] : to - freeRequested[row];
  };
  let largest = -1;
  let maximum = 0;
  for (let row = 0; row < length; row++) {
    const event = freeRequested[row];
    if (end[row] === event || event < 0 || event > last) continue;
    // Adjacent events mostly belong to one call, which may have been interrupted; only a much longer wait counts
    const adjacent = end[row] - event === 1;
    if (adjacent && !trace.timed) continue;
    const wait = waitOf(row);
    if (wait < (trace.timed ? (adjacent ? 10 : 1) * LONG_PENDING_US : LONG_PENDING_EVENTS)) continue;
    if (wait * sizes[row] > maximum) {
      maximum = wait * sizes[row];
      largest = row;
    }
  }
  if (largest < 0) return [];
  const wait = trace.timed ? duration(waitOf(largest)) : plural(waitOf(largest), "event");
  const text = `${fine(sizes[largest])} was freed, but another stream still used it for ${wait}: ${lineOf(snapshot, device, largest)}`;
  return [finding({ kind: "pending", title: "Long pending free", text, event: freeRequested[largest], row: largest })];
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device */
function churn(snapshot, device) {
  const { start, end } = device.allocations;
  const events = device.trace.length;
  return largestLines(snapshot, device, (row) => start[row] !== BEFORE && end[row] < events)
    .filter((line) => line.count >= MIN_CHURN_COUNT)
    .slice(0, MAX_LINES)
    .map((line) =>
      finding({
        kind: "churn",
        title: "Frequent allocations",
        text: `${plural(line.count, "allocation")} that were freed again, ${fine(line.bytes)} in total: ${line.label()}`,
        mark: { key: "line", code: line.code },
      }),
    );
}

/** Segments that were released right before the allocator needed a new one. @param {import("../model/device.js").Device} device */
function retries(device) {
  const { action, length } = device.trace;
  const events = [];
  for (let event = 1; event < length; event++) {
    const released = [ACTION.SEGMENT_FREE, ACTION.UNMAP].includes(/** @type {any} */ (action[event - 1]));
    const needed = [ACTION.SEGMENT_ALLOC, ACTION.MAP, ACTION.OOM].includes(/** @type {any} */ (action[event]));
    if (released && needed) events.push(event);
  }
  if (!events.length) return [];
  const times = events.length === 1 ? "Once" : `Up to ${count(events.length)} times`;
  const text = `${times}, cached segments had to be released before a new segment could be allocated (or the program called empty_cache).`;
  return [finding({ kind: "retry", title: "Segments released and allocated again", text, event: events[0] })];
}
