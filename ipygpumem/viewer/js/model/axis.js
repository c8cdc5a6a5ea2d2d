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
    this.origin = trace.timed ? trace.time[0] : 0;
    const span = trace.timed ? trace.time[trace.length - 1] - this.origin : 0;
    const room = Math.max(span * 0.005, 1);
    this.domain = kind === "time" ? [-room, span + room] : [-1, Math.max(trace.length, 1)];
  }

  /** The state (event + 1) at a place. @param {number} x */
  state(x) {
    const last = this.trace.length;
    if (this.kind === "event") return Math.min(Math.max(Math.floor(x) + 1, 0), last);
    return this.trace.at(x + this.origin) + 1;
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
   * First and last state of each pixel column.
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
    return { first, last };
  }

  /** The last state that begins before a place. @param {number} x @param {number} least */
  before(x, least) {
    if (this.kind === "event") return Math.max(Math.ceil(x), least);
    let low = 0;
    let high = this.trace.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.trace.time[middle] - this.origin < x) low = middle + 1;
      else high = middle;
    }
    return Math.max(low, least);
  }
}
