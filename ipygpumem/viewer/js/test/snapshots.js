/** Snapshots made by hand, in the shape that the decoder gives; and the plain way to answer what the model answers fast. */

import { Snapshot } from "../snapshot/model/snapshot.js";

/** Numbers that look random and are the same each time. */
export function dice(seed) {
  let state = seed >>> 0 || 1;
  return (most) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 4294967296) * most);
  };
}

/** A column of values as the decoder hands it over. */
function column(values) {
  return {
    into: (Type) => Type.from(values, Number),
    exact: () => ({ values: Float64Array.from(values, Number), base: 0n }),
  };
}

const TRACE = ["action", "address", "size", "stream", "time", "stack", "context", "metadata", "pool"];

/**
 * @param {object[]} events action, address, size, time and what else an event has
 * @param {object[]} allocations start, end, size, address; by their start
 * @param {object} [facts] more of the header and of the columns
 */
export function made(events, allocations, { header = {}, device = {}, columns = {} } = {}) {
  const table = {};
  const missing = { stream: 0, size: 0, address: 0 };
  for (const name of TRACE) table[`trace/0/${name}`] = events.map((one) => one[name] ?? missing[name] ?? -1);
  const of = (name, none) => allocations.map((one) => one[name] ?? none);
  table["allocations/0/address"] = of("address", 4096);
  table["allocations/0/size"] = of("size", 0);
  table["allocations/0/start"] = of("start", -1);
  table["allocations/0/stack"] = of("stack", -1);
  table["allocations/0/block"] = of("block", -1);
  table["allocations/0/asked_after"] = allocations.map((one) => (one.asked ?? one.end) - one.start);
  table["allocations/0/freed_after"] = allocations.map((one) => one.end - (one.asked ?? one.end));
  Object.assign(table, columns);
  const facts = {
    device: 0,
    name: null,
    total: null,
    device_free: {},
    end_reserved: null,
    only_in_segments: 0,
    only_in_events: 0,
    ...device,
  };
  const actions = [
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "annotate",
    "other",
  ];
  const all = { actions, devices: [facts], frames: [], texts: [], pools: [[0, 0]], ...header };
  return new Snapshot(all, (name) => (table[name] ? column(table[name]) : undefined), "made");
}

/** A recording with many lives, long and short. */
export function random(seed, count, { old = 5, times = true, sizes = 1000 } = {}) {
  const roll = dice(seed);
  const events = [];
  const allocations = [];
  const open = [];
  for (let i = 0; i < old; i++) {
    const one = { start: -1, size: 1 + roll(sizes), address: 4096 * (i + 1) };
    allocations.push(one);
    open.push(one);
  }
  let time = 1_700_000_000_000_000;
  for (let event = 0; event < count; event++) {
    time += roll(3) ? 0 : roll(40);
    if (open.length && roll(100) < 48) {
      const [one] = open.splice(roll(4) ? Math.max(open.length - 1 - roll(3), 0) : roll(open.length), 1);
      one.end = event;
      events.push({ action: 2, address: one.address, size: one.size, time: times ? time : -1 });
    } else {
      const one = {
        start: event,
        size: roll(20) ? 1 + roll(sizes) : sizes * (1 + roll(30)),
        address: 4096 * (event + 100),
      };
      allocations.push(one);
      open.push(one);
      events.push({ action: 0, address: one.address, size: one.size, time: times ? time : -1 });
    }
  }
  for (const one of allocations) one.end ??= count;
  return { snapshot: made(events, allocations), events, allocations };
}

/** Rows alive after an event. */
export function alive(allocations, event) {
  return allocations
    .map((_, row) => row)
    .filter((row) => allocations[row].start <= event && allocations[row].end > event);
}

/** Bytes after an event. */
export function bytes(allocations, event) {
  return alive(allocations, event).reduce((sum, row) => sum + allocations[row].size, 0);
}
