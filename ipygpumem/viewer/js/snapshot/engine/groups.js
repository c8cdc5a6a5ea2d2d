/** Sets of allocations, added up. */

import { remember } from "../../data/collections.js";

/**
 * @typedef {import("../model/keys.js").Named & {code: number, bytes: number, count: number, byteTime: number|null, kept: number, open: boolean}} Group
 * `kept`: bytes of those alive at the last event of the range (at a moment: all);
 * `open`: some were there before the stretch or outlived it, so their time is longer than told
 */

/**
 * Rows that lived at some moment between two events.
 * @param {import("../model/device.js").Device} device @param {number} first @param {number} last
 */
export function between(device, first, last) {
  const { allocations } = device;
  const found = Array.from(device.checkpoints.live(first));
  for (let row = allocations.after(first); row < allocations.length && allocations.start[row] <= last; row++)
    found.push(row);
  return Int32Array.from(found);
}

/**
 * Bytes times the time that they lived, inside a stretch; microseconds, or events where the file has no times.
 * @param {import("../model/device.js").Device} device @param {number} row @param {number} first @param {number} last
 */
export function byteTime(device, row, first, last) {
  const { start, end, size } = device.allocations;
  const from = Math.max(start[row], first, 0);
  const to = Math.min(end[row], last, device.trace.length - 1);
  if (to <= from) return 0;
  return size[row] * (device.trace.timed ? device.trace.time[to] - device.trace.time[from] : to - from);
}

/**
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device
 * @param {Int32Array} rows @param {string} key @param {number} first @param {number} last the stretch: for what lived how long
 * @param {number} [most] so many are described, the others are empty
 * @returns {Group[]} the largest first
 */
export function groups(snapshot, device, rows, key, first, last, most = Number.POSITIVE_INFINITY) {
  const { codes, describe } = snapshot.key(device, key);
  const { start, size, end } = device.allocations;
  const until = Math.min(last, device.trace.length - 1);
  /** @type {Map<number, {bytes: number, count: number, byteTime: number, kept: number, open: boolean, rows: number[]}>} */
  const found = new Map();
  for (const row of rows) {
    const code = codes[row];
    const one = remember(found, code, () => ({ bytes: 0, count: 0, byteTime: 0, kept: 0, open: false, rows: [] }));
    one.bytes += size[row];
    one.count++;
    one.byteTime += byteTime(device, row, first, last);
    one.open ||= start[row] < Math.max(first, 0) || end[row] > until;
    if (end[row] > last) one.kept += size[row];
    if (one.rows.length < 1000) one.rows.push(row);
  }
  const sorted = [...found].sort(([a, one], [b, other]) => other.bytes - one.bytes || a - b);
  const described = sorted
    .slice(0, most)
    .map(([code, { rows: some, ...sums }]) => ({ ...describe(code, some), code, ...sums }));
  described.length = sorted.length;
  return described;
}
