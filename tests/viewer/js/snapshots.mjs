/** Small snapshots in the form that the decoder returns, and simple reference implementations of what the model computes. */

import { Snapshot } from "../../../ipygpumem/viewer/js/snapshot/model/snapshot.js";

/** A random number generator with a seed: returns integers below a limit. */
export function randomNumbers(seed) {
  let state = seed >>> 0 || 1;
  return (limit) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 4294967296) * limit);
  };
}

/** A column as the decoder returns it. */
function decoded(values) {
  return {
    into: (Type) => Type.from(values, Number),
    exact: () => ({ values: Float64Array.from(values, Number), base: 0n }),
  };
}

const TRACE = ["action", "address", "size", "stream", "time", "stack", "context", "metadata", "pool"];

/**
 * @param {object[]} events with action, address, size, time and other columns
 * @param {object[]} allocations with start, end, size, address; ordered by start
 * @param {object} [options] more of the header, the device and the columns
 */
export function createSnapshot(events, allocations, { header = {}, device = {}, columns = {} } = {}) {
  const table = {};
  const missing = { stream: 0, size: 0, address: 0 };
  for (const name of TRACE) table[`trace/0/${name}`] = events.map((event) => event[name] ?? missing[name] ?? -1);
  const column = (name, missingValue) => allocations.map((allocation) => allocation[name] ?? missingValue);
  table["allocations/0/address"] = column("address", 4096);
  table["allocations/0/size"] = column("size", 0);
  table["allocations/0/start"] = column("start", -1);
  table["allocations/0/stack"] = column("stack", -1);
  table["allocations/0/block"] = column("block", -1);
  table["allocations/0/free_requested_after"] = allocations.map(
    ({ start, end, freeRequested }) => (freeRequested ?? end) - start,
  );
  table["allocations/0/freed_after"] = allocations.map(({ end, freeRequested }) => end - (freeRequested ?? end));
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
  return new Snapshot(all, (name) => (table[name] ? decoded(table[name]) : undefined), "test");
}

/** A random recording with short and long lifetimes. */
export function randomRecording(seed, count, { old = 5, times = true, sizes = 1000 } = {}) {
  const random = randomNumbers(seed);
  const events = [];
  const allocations = [];
  const open = [];
  for (let i = 0; i < old; i++) {
    const allocation = { start: -1, size: 1 + random(sizes), address: 4096 * (i + 1) };
    allocations.push(allocation);
    open.push(allocation);
  }
  let time = 1_700_000_000_000_000;
  for (let event = 0; event < count; event++) {
    time += random(3) ? 0 : random(40);
    if (open.length && random(100) < 48) {
      const [allocation] = open.splice(random(4) ? Math.max(open.length - 1 - random(3), 0) : random(open.length), 1);
      allocation.end = event;
      events.push({ action: 2, address: allocation.address, size: allocation.size, time: times ? time : -1 });
    } else {
      const allocation = {
        start: event,
        size: random(20) ? 1 + random(sizes) : sizes * (1 + random(30)),
        address: 4096 * (event + 100),
      };
      allocations.push(allocation);
      open.push(allocation);
      events.push({ action: 0, address: allocation.address, size: allocation.size, time: times ? time : -1 });
    }
  }
  for (const allocation of allocations) allocation.end ??= count;
  return { snapshot: createSnapshot(events, allocations), events, allocations };
}

/** Rows that are alive after an event. */
export function liveRows(allocations, event) {
  return allocations
    .map((_, row) => row)
    .filter((row) => allocations[row].start <= event && allocations[row].end > event);
}

/** Bytes that are alive after an event. */
export function liveBytes(allocations, event) {
  return liveRows(allocations, event).reduce((sum, row) => sum + allocations[row].size, 0);
}
