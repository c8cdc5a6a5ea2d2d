/** The facts about a snapshot that a viewer needs before it draws anything. */

import { cellLabel } from "../model/cells.js";
import { ACTION } from "../model/trace.js";
import { oneLine, plural } from "../../data/units.js";

const MAX_BANDS = 20000;

/**
 * @typedef {{label: string, start: number|null, end: number|null, first: number|null, last: number|null, depth: number}} Band
 *   start and end: microseconds since the first event; first and last: places on the axis by event
 * @typedef {{label: string, time: number[], events: number[], bytes: number[], low: number, top: number, sampled: boolean}} Level bytes measured at some times
 * @typedef {ReturnType<typeof overviewOf>} Overview
 * @typedef {ReturnType<typeof deviceFacts>} DeviceFacts
 */

/** @param {import("../model/snapshot.js").Snapshot} snapshot */
export function overviewOf(snapshot) {
  return {
    name: oneLine(snapshot.name),
    plain: oneLine(snapshot.name),
    actions: /** @type {string[]} */ (snapshot.header.actions ?? []),
    settings: /** @type {Record<string, unknown>} */ (snapshot.header.settings ?? {}),
    stacks: snapshot.stacks.length,
    sources: Object.keys(snapshot.sources).length,
    devices: snapshot.devices.map((device) => deviceFacts(snapshot, device)),
  };
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device */
function deviceFacts(snapshot, device) {
  const { trace, facts, requested, reserved } = device;
  const peak = requested.peak() - 1;
  const { origin } = trace;
  const relative = (/** @type {number|null} */ time) => (time === null ? null : time - origin);
  const byEvent = device.axis("event");
  const byTime = device.axis("time");
  return {
    index: device.index,
    name: facts.name === null || facts.name === undefined ? null : oneLine(facts.name),
    events: trace.length,
    allocations: device.allocations.length,
    segments: snapshot.segments.device.filter((index) => index === device.index).length,
    timed: trace.timed,
    origin,
    span: trace.timed ? trace.time[trace.length - 1] - origin : 0,
    domains: { event: byEvent.domain, time: byTime.domain },
    peak: { event: peak, bytes: requested.bytes[peak + 1] ?? 0, time: relative(device.time(peak)) },
    reserved: reserved ? reserved.bytes[reserved.peak()] : null,
    total: facts.total ?? null,
    ooms: Array.from(trace.events(ACTION.OOM)).map((event) => ({
      event,
      requested: trace.size[event],
      time: relative(device.time(event)),
    })),
    cells: trace.timed
      ? snapshot.cells.cells
          .slice(0, MAX_BANDS)
          .map((cell) => band(trace, cellLabel(cell), cell.start_us, cell.end_us, 0))
      : [],
    annotations: trace.timed
      ? snapshot
          .annotations(device.index)
          .all.slice(0, MAX_BANDS)
          .map(({ name, start_us, end_us, depth }) => band(trace, name, start_us, end_us, depth))
      : [],
    levels: trace.timed ? measuredLevels(snapshot, device, origin) : [],
    notes: notes(facts, trace.timed, reserved !== undefined, trace.length > 0),
  };
}

/**
 * @param {import("../model/trace.js").Trace} trace @param {string} label @param {number|null} start @param {number|null} end
 * @param {number} depth
 * @returns {Band}
 */
function band(trace, label, start, end, depth) {
  const { origin } = trace;
  return {
    label: oneLine(label),
    start: start === null ? null : start - origin,
    end: end === null ? null : end - origin,
    first: start === null ? null : trace.at(start - 1) + 1,
    last: end === null ? null : trace.at(end) + 1,
    depth,
  };
}

/**
 * What was measured in addition to the allocator: device memory in use, sampled or at both ends.
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device @param {number} origin
 * @returns {Level[]}
 */
function measuredLevels(snapshot, device, origin) {
  /** @type {Level[]} */
  const levels = [];
  for (const [label, curve] of Object.entries(snapshot.header.curves ?? {})) {
    const { device: index, time_us: time, bytes } = curve ?? {};
    if (index !== device.index || !Array.isArray(time) || !Array.isArray(bytes) || !time.length) continue;
    if (time.length !== bytes.length || !time.every(Number.isFinite) || !bytes.every(Number.isFinite)) continue;
    levels.push({
      label: oneLine(label),
      time: time.map((us) => us - origin),
      events: time.map((us) => device.trace.at(us) + 1),
      bytes,
      ...bounds(bytes),
      sampled: true,
    });
  }
  const used = ["before", "after"].map((when) => {
    const counters = snapshot.header.readings?.[when];
    const reading = counters?.[`cuda:${device.index}`] ?? counters?.[String(device.index)];
    return typeof reading?.used === "number" ? reading.used : null;
  });
  if (!levels.length && used[0] !== null && used[1] !== null) {
    const { trace } = device;
    levels.push({
      label: "device used",
      time: [trace.time[0] - origin, trace.time[trace.length - 1] - origin],
      events: [0, trace.length],
      bytes: /** @type {number[]} */ (used),
      ...bounds(/** @type {number[]} */ (used)),
      sampled: false,
    });
  }
  return levels;
}

/** @param {number[]} bytes */
function bounds(bytes) {
  let low = bytes[0];
  let top = bytes[0];
  for (const value of bytes) {
    if (value < low) low = value;
    if (value > top) top = value;
  }
  return { low, top };
}

/** Limitations of the snapshot, for the user. @param {import("../model/device.js").DeviceFacts} facts @param {boolean} timed @param {boolean} reserved @param {boolean} events */
export function notes(facts, timed, reserved, events = true) {
  /** @type {string[]} */
  const texts = [];
  const add = (
    /** @type {number|null} */ number,
    /** @type {string} */ singular,
    /** @type {string} */ many,
    text = "",
  ) => {
    if (number) texts.push(plural(number, singular, many) + text);
  };
  add(facts.dropped, "allocation was", "allocations were", " lost from the ring buffer");
  add(facts.out_of_order, "event was", "events were", " out of order; all events were sorted by time");
  add(facts.frees_without_allocation, "free without an allocation was", "frees without an allocation were", " ignored");
  const reused = " at an address in use: the earlier allocation is shown as freed then";
  add(facts.missing_frees, "allocation", "allocations", reused);
  if (facts.ended_by_request)
    texts.push("allocations end when they are requested to be freed, because completed frees were not recorded");
  add(facts.only_in_segments, "block at the end is", "blocks at the end are", " not in the events");
  add(facts.only_in_events, "allocation has", "allocations have", " no block at the end");
  if (!events) texts.push("no events were recorded on this device: only its final state is known");
  else if (!timed) texts.push("the file has no timestamps");
  if (!reserved)
    texts.push(
      typeof facts.end_reserved === "number"
        ? "reserved memory is unknown because the final segments do not match the events"
        : "reserved memory is unknown because the file has no segments",
    );
  return texts;
}
