/** The facts about a snapshot that a viewer needs before it draws anything. */

import { cellLabel } from "../model/cells.js";
import { ACTION } from "../model/trace.js";
import { oneLine } from "../../data/units.js";

const MAX_BANDS = 20000;
const MIN_BANDS = 1000; // of each device, if there are many

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
    devices: snapshot.devices.map((device) => deviceFacts(snapshot, device)),
  };
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device */
function deviceFacts(snapshot, device) {
  const { trace, facts, requested, reserved, replay } = device;
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
    replay: replay ? { ...replay.facts, peak: replay.reserved.bytes[replay.reserved.peak()] } : null,
    total: facts.total ?? null,
    ooms: Array.from(trace.events(ACTION.OOM)).map((event) => ({
      event,
      requested: trace.size[event],
      time: relative(device.time(event)),
    })),
    cells: trace.timed
      ? snapshot.cells.cells
          .slice(0, Math.max(MAX_BANDS / snapshot.devices.length, MIN_BANDS))
          .map((cell) => band(trace, cellLabel(cell), cell.start_us, cell.end_us, 0))
      : [],
    annotations: trace.timed
      ? snapshot
          .annotations(device.index)
          .all.slice(0, MAX_BANDS)
          .map(({ name, start_us, end_us, depth }) => band(trace, name, start_us, end_us, depth))
      : [],
    levels: trace.timed ? measuredLevels(snapshot, device, origin) : [],
    notes: (facts.notes ?? []).map(oneLine),
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
