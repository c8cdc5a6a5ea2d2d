/** The recorded history of one device, with indexes that make requests fast. */

import { addressKey, countWhile, getOrCreate } from "../../data/collections.js";
import { Axis } from "./axis.js";
import { Checkpoints } from "./checkpoints.js";
import { Replay } from "./replay.js";
import { requestedCurve, reservedCurve } from "./curve.js";
import { ACTION, Allocations, shifted, Trace } from "./trace.js";

/**
 * @typedef {object} DeviceFacts the device in the header
 * @property {number} device
 * @property {string|null} name
 * @property {number|null} total
 * @property {number|null} [end_reserved]
 * @property {Record<string, number>} device_free
 * @property {string[]} [notes] about missing or inconsistent data
 * @property {number} only_in_segments
 * @property {number} only_in_events
 * @property {import("./replay.js").ReplayFacts} [replay]
 * @property {number} [zero_us] the origin of time, for several files with one clock
 */

export class Device {
  /** @param {import("./trace.js").Columns} columns @param {DeviceFacts} facts */
  constructor(columns, facts) {
    this.facts = facts;
    this.index = facts.device;
    this.trace = new Trace(columns, facts.device);
    if (this.trace.timed && Number.isFinite(facts.zero_us))
      this.trace.origin = Math.min(this.trace.origin, /** @type {number} */ (facts.zero_us));
    this.allocations = new Allocations(columns, facts.device);
    this.requested = requestedCurve(this.allocations, this.trace.length);
    this.reserved = reservedCurve(this.trace, facts.end_reserved);
    this.replay = facts.replay ? new Replay(columns, this, facts.replay) : undefined;
    this.checkpoints = new Checkpoints(this.allocations);
    /** @type {Record<string, Axis>} */
    this.axes = {};
    /** @type {Int32Array|undefined} */
    this.ends = undefined;
    /** @type {Map<number, number[]>|undefined} */
    this.annotations = undefined;
  }

  /** Use an address base that all devices of a snapshot share. @param {bigint} base */
  rebase(base) {
    const { allocations } = this;
    allocations.address = shifted({ values: allocations.address, base: allocations.base }, base);
    allocations.base = base;
    this.trace.base = base;
  }

  /** @param {"event"|"time"} kind */
  axis(kind) {
    const available = kind === "time" && !this.trace.timed ? "event" : kind;
    this.axes[available] ??= new Axis(available, this.trace);
    return this.axes[available];
  }

  /** Rows ordered by end. */
  get byEnd() {
    if (!this.ends) {
      const { end, length } = this.allocations;
      const count = new Int32Array(this.trace.length + 2);
      for (let row = 0; row < length; row++) count[end[row] + 1]++;
      for (let event = 1; event < count.length; event++) count[event] += count[event - 1];
      this.ends = new Int32Array(length);
      for (let row = 0; row < length; row++) this.ends[count[end[row]]++] = row;
    }
    return this.ends;
  }

  /** The annotate events of each annotated allocation, by row: texts that were attached after the allocation. */
  get annotateEvents() {
    if (!this.annotations) {
      const { trace, allocations } = this;
      const events = trace.events(ACTION.ANNOTATE);
      /** By `addressKey`. @type {Map<number, number[]>} */
      const rowsAt = new Map(Array.from(events, (event) => [addressKey(trace.address[event]), []]));
      for (let row = 0; events.length && row < allocations.length; row++)
        rowsAt.get(addressKey(allocations.address[row]))?.push(row);
      this.annotations = new Map();
      for (const event of events) {
        const rows = /** @type {number[]} */ (rowsAt.get(addressKey(trace.address[event])));
        const row = rows[countWhile(rows.length, (i) => allocations.start[rows[i]] < event) - 1];
        if (row !== undefined && allocations.end[row] > event)
          getOrCreate(this.annotations, row, () => /** @type {number[]} */ ([])).push(event);
      }
    }
    return this.annotations;
  }

  /** The number of allocations that ended up to an event. @param {number} event */
  ended(event) {
    const { byEnd } = this;
    const { end } = this.allocations;
    return countWhile(byEnd.length, (i) => end[byEnd[i]] <= event);
  }

  /** Microseconds since the Unix epoch of an event; null if unknown. @param {number} event */
  time(event) {
    return this.trace.timed && event >= 0 && event < this.trace.length ? this.trace.time[event] : null;
  }

  /** The lifetime of an allocation within the recording, in microseconds; null if unknown. @param {number} row */
  lifetime(row) {
    const { trace } = this;
    if (!trace.timed) return null;
    const { start, end } = this.allocations;
    return trace.time[Math.min(end[row], trace.length - 1)] - trace.time[Math.max(start[row], 0)];
  }
}
