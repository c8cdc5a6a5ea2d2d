/** The two horizontal axes: by event, all of the same width, and by time. */

import { clamp, countWhile } from "../../data/collections.js";

/**
 * On the event axis, event e extends from e to e + 1, and the state before the first event from -1 to 0. On the time axis
 * (microseconds since the first event), the state after an event lasts until the next event; margins at both ends show the
 * states before and after.
 */
export class Axis {
  /** @param {"event"|"time"} kind @param {import("./trace.js").Trace} trace */
  constructor(kind, trace) {
    this.kind = kind;
    this.trace = trace;
    this.origin = trace.origin;
    const span = trace.timed ? trace.time[trace.length - 1] - this.origin : 0;
    const margin = Math.max(span * 0.005, 1);
    this.domain = kind === "time" ? [-margin, span + margin] : [-1, Math.max(trace.length, 1)];
  }

  /** The state (event + 1) at a position. @param {number} x */
  state(x) {
    const last = this.trace.length;
    if (this.kind === "event") return clamp(Math.floor(x) + 1, 0, last);
    return this.countUntil(x, true);
  }

  /** The number of events before a time. Differences to the first event are exact, times since the Unix epoch are not. @param {number} x @param {boolean} inclusive */
  countUntil(x, inclusive) {
    const { trace, origin } = this;
    return countWhile(trace.length, (event) => {
      const time = trace.time[event] - origin;
      return time < x || (inclusive && time === x);
    });
  }

  /** Where the state after an event begins. @param {number} event */
  place(event) {
    if (this.kind === "event") return event;
    if (event < 0) return this.domain[0];
    return (this.trace.time[Math.min(event, this.trace.length - 1)] ?? this.origin) - this.origin;
  }

  /** Where the state after an event ends. @param {number} event */
  until(event) {
    return event + 1 >= this.trace.length ? this.domain[1] : this.place(event + 1);
  }

  /**
   * The first and last state of each pixel column, and the range of columns inside the recording.
   * @param {number} x0 @param {number} x1 @param {number} width
   */
  columns(x0, x1, width) {
    const first = new Int32Array(width);
    const last = new Int32Array(width);
    const step = (x1 - x0) / width;
    let edge = this.state(x0);
    for (let column = 0; column < width; column++) {
      first[column] = edge;
      const right = x0 + (column + 1) * step;
      const next = this.state(right);
      // States that begin exactly at the right edge belong to the next column
      const begins = next > edge && this.place(next - 1) >= right;
      last[column] = begins ? this.before(right, edge) : next;
      edge = begins ? Math.min(last[column] + 1, next) : next;
    }
    // Next to a longer recording, some columns are outside of this one
    const inside = (/** @type {number} */ column) => clamp(column, 0, width);
    const from = inside(Math.floor((this.domain[0] - x0) / step + 1e-9));
    const to = inside(Math.ceil((this.domain[1] - x0) / step - 1e-9));
    return { first, last, from, to };
  }

  /** The last state that begins before a position. @param {number} x @param {number} minimum */
  before(x, minimum) {
    return Math.max(this.kind === "event" ? Math.ceil(x) : this.countUntil(x, false), minimum);
  }
}
