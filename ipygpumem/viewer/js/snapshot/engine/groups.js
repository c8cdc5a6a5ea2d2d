/** Sums over sets of allocations, by group. */

import { getOrCreate } from "../../data/collections.js";

const SAMPLE = 1000; // rows that help to describe a group

/**
 * @typedef {import("../model/keys.js").Description & {code: number, bytes: number, count: number, byteTime: number|null, aliveAtEnd: number, open: boolean}} Group
 * `aliveAtEnd`: bytes still alive at the end of the range; `open`: some began before the range or outlived it, so that `byteTime`
 * is a lower bound
 */

/**
 * Rows that were alive at some moment between two events.
 * @param {import("../model/device.js").Device} device @param {number} first @param {number} last
 */
export function aliveBetween(device, first, last) {
  const { allocations } = device;
  const rows = Array.from(device.checkpoints.live(first));
  for (let row = allocations.after(first); row < allocations.length && allocations.start[row] <= last; row++)
    rows.push(row);
  return Int32Array.from(rows);
}

/**
 * Bytes times lifetime within a range of events, in microseconds, or in events if the file has no times.
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
 * @param {Int32Array} rows @param {string} key @param {number} first @param {number} last the range for lifetimes
 * @param {number} [limit] number of groups that are described; the others are left empty
 * @returns {Group[]} the largest first
 */
export function groups(snapshot, device, rows, key, first, last, limit = Number.POSITIVE_INFINITY) {
  const { codes, describe } = snapshot.key(device, key);
  const { start, size, end } = device.allocations;
  const until = Math.min(last, device.trace.length - 1);
  /** @type {Map<number, {bytes: number, count: number, byteTime: number, aliveAtEnd: number, open: boolean, rows: number[]}>} */
  const sums = new Map();
  for (const row of rows) {
    const empty = () => ({ bytes: 0, count: 0, byteTime: 0, aliveAtEnd: 0, open: false, rows: [] });
    const sum = getOrCreate(sums, codes[row], empty);
    sum.bytes += size[row];
    sum.count++;
    sum.byteTime += byteTime(device, row, first, last);
    sum.open ||= start[row] < Math.max(first, 0) || end[row] > until;
    if (end[row] > last) sum.aliveAtEnd += size[row];
    if (sum.rows.length < SAMPLE) sum.rows.push(row);
  }
  const sorted = [...sums].sort(([a, first], [b, second]) => second.bytes - first.bytes || a - b);
  const described = sorted
    .slice(0, limit)
    .map(([code, { rows: sample, ...sum }]) => ({ ...describe(code, sample), code, ...sum }));
  described.length = sorted.length;
  return described;
}
