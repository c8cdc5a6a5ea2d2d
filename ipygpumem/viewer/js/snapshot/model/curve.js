/** Bytes after each event, with the highest point of any stretch at hand. A state is an event plus one: 0 is before the first. */

const BLOCK = 128;

export class Curve {
  /** @param {Float64Array} bytes one more than there are events: the first is the moment before the first event */
  constructor(bytes) {
    this.bytes = bytes;
    const blocks = Math.ceil(bytes.length / BLOCK);
    /** The state of the first maximum in each block. */
    this.best = new Int32Array(blocks);
    for (let block = 0; block < blocks; block++) {
      let best = block * BLOCK;
      const end = Math.min(best + BLOCK, bytes.length);
      for (let state = best + 1; state < end; state++) if (bytes[state] > bytes[best]) best = state;
      this.best[block] = best;
    }
  }

  /** The first state with the most bytes between two, both included. @param {number} first @param {number} last */
  highest(first, last) {
    const { bytes, best } = this;
    let found = first;
    const firstBlock = Math.ceil(first / BLOCK);
    const lastBlock = Math.floor((last + 1) / BLOCK); // blocks before this one lie inside
    if (firstBlock >= lastBlock) {
      for (let state = first + 1; state <= last; state++) if (bytes[state] > bytes[found]) found = state;
      return found;
    }
    for (let state = first + 1; state < firstBlock * BLOCK; state++) if (bytes[state] > bytes[found]) found = state;
    for (let block = firstBlock; block < lastBlock; block++) if (bytes[best[block]] > bytes[found]) found = best[block];
    for (let state = lastBlock * BLOCK; state <= last; state++) if (bytes[state] > bytes[found]) found = state;
    return found;
  }

  /** The state of the peak. */
  peak() {
    return this.bytes.length ? this.highest(0, this.bytes.length - 1) : 0;
  }
}

/**
 * Requested bytes of all allocations that are not freed completely.
 * @param {import("./trace.js").Allocations} allocations @param {number} events
 */
export function requestedCurve(allocations, events) {
  const { start, end, size } = allocations;
  const bytes = new Float64Array(events + 2);
  for (let row = 0; row < allocations.length; row++) {
    bytes[start[row] + 1] += size[row];
    bytes[end[row] + 1] -= size[row];
  }
  for (let state = 1; state <= events; state++) bytes[state] += bytes[state - 1];
  return new Curve(bytes.subarray(0, events + 1));
}

/**
 * Bytes of all segments, reckoned back from those at the end; undefined where the file does not tell them.
 * @param {import("./trace.js").Trace} trace @param {number|null|undefined} atEnd
 */
export function reservedCurve(trace, atEnd) {
  if (atEnd === null || atEnd === undefined) return undefined;
  const bytes = new Float64Array(trace.length + 1);
  bytes[trace.length] = atEnd;
  for (let event = trace.length - 1; event >= 0; event--) {
    const action = trace.action[event];
    const change =
      action === 3 || action === 5 ? trace.size[event] : action === 4 || action === 6 ? -trace.size[event] : 0;
    bytes[event] = bytes[event + 1] - change;
  }
  // less than nothing: the segments at the end and the events do not fit together
  return bytes.every((one) => one >= 0) ? new Curve(bytes) : undefined;
}
