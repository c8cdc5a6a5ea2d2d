/** The two horizontal axes: by event, where each has the same width, and by time. */

/**
 * By event, event e lies from e to e + 1, and what was before the first from -1 to 0. By time (microseconds from the first
 * event), the state after an event lasts until the next; a little room at both ends shows what was before and after.
 */
export class Axis {
  /** @param {"event"|"time"} kind @param {import("./trace.js").Trace} trace */
  constructor(kind, trace) {
    this.kind = kind;
    this.trace = trace;
    this.origin = trace.origin;
    const span = trace.timed ? trace.time[trace.length - 1] - this.origin : 0;
    const room = Math.max(span * 0.005, 1);
    this.domain = kind === "time" ? [-room, span + room] : [-1, Math.max(trace.length, 1)];
  }

  /** The state (event + 1) at a place. @param {number} x */
  state(x) {
    const last = this.trace.length;
    if (this.kind === "event") return Math.min(Math.max(Math.floor(x) + 1, 0), last);
    return this.begun(x, true);
  }

  /** How many events lie before a time, or at it; from the first event on: since 1970 a double has quarters of µs only. @param {number} x @param {boolean} at */
  begun(x, at) {
    const { trace, origin } = this;
    let low = 0;
    let high = trace.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      const time = trace.time[middle] - origin;
      if (time < x || (at && time === x)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Where the state after an event begins. @param {number} event */
  place(event) {
    if (this.kind === "event") return event;
    if (event < 0) return this.domain[0];
    return (this.trace.time[Math.min(event, this.trace.length - 1)] ?? this.origin) - this.origin;
  }

  /** Where it ends. @param {number} event */
  until(event) {
    return event + 1 >= this.trace.length ? this.domain[1] : this.place(event + 1);
  }

  /**
   * First and last state of each pixel column, and which columns lie inside the recording.
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
      // states that begin at the right edge are the next column's, all of them
      const begins = next > edge && this.place(next - 1) >= right;
      last[column] = begins ? this.before(right, edge) : next;
      edge = begins ? Math.min(last[column] + 1, next) : next;
    }
    // beside a longer recording some columns lie outside of this one
    const inside = (/** @type {number} */ column) => Math.min(Math.max(column, 0), width);
    const from = inside(Math.floor((this.domain[0] - x0) / step + 1e-9));
    const to = inside(Math.ceil((this.domain[1] - x0) / step - 1e-9));
    return { first, last, from, to };
  }

  /** The last state that begins before a place. @param {number} x @param {number} least */
  before(x, least) {
    if (this.kind === "event") return Math.max(Math.ceil(x), least);
    return Math.max(this.begun(x, false), least);
  }
}
