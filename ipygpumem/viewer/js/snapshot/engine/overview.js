/** What a viewer has to know of a snapshot before anything is drawn. */

import { cellLabel } from "../model/cells.js";
import { ACTION } from "../model/trace.js";
import { oneLine, plural } from "../../data/units.js";

const MOST_BANDS = 20000;

/**
 * @typedef {{label: string, start: number|null, end: number|null, first: number|null, last: number|null, depth: number}} Band
 *   microseconds from the first event, and places on the axis by event
 * @typedef {{label: string, time: number[], events: number[], bytes: number[], low: number, top: number, sampled: boolean}} Level bytes at some times
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
    segments: snapshot.segments.device.reduce((count, one) => count + (one === device.index ? 1 : 0), 0),
    timed: trace.timed,
    origin,
    span: trace.timed ? trace.time[trace.length - 1] - origin : 0,
    domains: { event: byEvent.domain, time: byTime.domain },
    peak: { event: peak, bytes: requested.bytes[peak + 1] ?? 0, time: relative(device.time(peak)) },
    reserved: reserved ? reserved.bytes[reserved.peak()] : null,
    total: facts.total ?? null,
    ooms: Array.from(trace.events(ACTION.OOM)).map((event) => ({
      event,
      asked: trace.size[event],
      time: relative(device.time(event)),
    })),
    cells: trace.timed
      ? snapshot.cells.cells
          .slice(0, MOST_BANDS)
          .map((cell) => band(trace, cellLabel(cell), cell.start_us, cell.end_us, 0))
      : [],
    annotations: trace.timed
      ? snapshot
          .annotations(device.index)
          .all.slice(0, MOST_BANDS)
          .map((one) => band(trace, one.name, one.start_us, one.end_us, one.depth))
      : [],
    levels: trace.timed ? levels(snapshot, device, origin) : [],
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
 * What was measured beside the allocator: device memory in use, sampled or at both ends.
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device @param {number} origin
 * @returns {Level[]}
 */
function levels(snapshot, device, origin) {
  /** @type {Level[]} */
  const found = [];
  for (const [label, curve] of Object.entries(snapshot.header.curves ?? {})) {
    const { device: of, time_us: time, bytes } = curve ?? {};
    if (
      of !== device.index ||
      !Array.isArray(time) ||
      !Array.isArray(bytes) ||
      time.length !== bytes.length ||
      !time.length
    )
      continue;
    if (![...time, ...bytes].every(Number.isFinite)) continue;
    found.push({
      label: oneLine(label),
      time: time.map((one) => one - origin),
      events: time.map((one) => device.trace.at(one) + 1),
      bytes,
      ...ends(bytes),
      sampled: true,
    });
  }
  const used = ["before", "after"].map((when) => {
    const counters = snapshot.header.readings?.[when];
    const one = counters?.[`cuda:${device.index}`] ?? counters?.[String(device.index)];
    return typeof one?.used === "number" ? one.used : null;
  });
  if (!found.length && used[0] !== null && used[1] !== null) {
    const { trace } = device;
    found.push({
      label: "device used",
      time: [trace.time[0] - origin, trace.time[trace.length - 1] - origin],
      events: [0, trace.length],
      bytes: /** @type {number[]} */ (used),
      ...ends(/** @type {number[]} */ (used)),
      sampled: false,
    });
  }
  return found;
}

/** The least and the most. @param {number[]} bytes */
function ends(bytes) {
  let low = bytes[0];
  let top = bytes[0];
  for (const one of bytes) {
    if (one < low) low = one;
    if (one > top) top = one;
  }
  return { low, top };
}

/** What the file does not tell. @param {import("../model/device.js").DeviceFacts} facts @param {boolean} timed @param {boolean} reserved @param {boolean} events */
export function notes(facts, timed, reserved, events = true) {
  /** @type {string[]} */
  const found = [];
  const tell = (
    /** @type {number|null} */ number,
    /** @type {string} */ one,
    /** @type {string} */ many,
    text = "",
  ) => {
    if (number) found.push(plural(number, one, many) + text);
  };
  tell(facts.dropped, "allocation was", "allocations were", " lost from the ring buffer");
  tell(facts.out_of_order, "event was out of order: events", "events were out of order, and", " were sorted by time");
  tell(
    facts.frees_without_allocation,
    "free without an allocation was",
    "frees without an allocation were",
    " left out",
  );
  const taken = " at an address that was still taken: the older one ends there";
  tell(facts.missing_frees, "allocation", "allocations", taken);
  if (facts.ended_by_request)
    found.push("allocations end with the request to free them: completed frees were not recorded");
  tell(facts.only_in_segments, "block at the end is", "blocks at the end are", " not in the events");
  tell(facts.only_in_events, "allocation has", "allocations have", " no block at the end");
  if (!events) found.push("no events were recorded on this device: only the state at the end is known");
  else if (!timed) found.push("the file has no times");
  if (!reserved)
    found.push(
      typeof facts.end_reserved === "number"
        ? "the segments at the end and the events do not fit together: the reserved bytes are unknown"
        : "the file has no segments, so the reserved bytes are unknown",
    );
  return found;
}
