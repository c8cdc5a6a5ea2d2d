/** Bytes after each event, with a fast search for the maximum of any range. State 0 precedes the first event. */

const BLOCK = 128;

export class Curve {
  /** @param {Float64Array} bytes of each state */
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

  /** The first state with the maximum between two states, both included. @param {number} first @param {number} last */
  highest(first, last) {
    const { bytes, best } = this;
    let highest = first;
    const scan = (/** @type {number} */ from, /** @type {number} */ to) => {
      for (let state = from; state < to; state++) if (bytes[state] > bytes[highest]) highest = state;
    };
    const firstBlock = Math.ceil(first / BLOCK);
    const lastBlock = Math.floor((last + 1) / BLOCK); // the first block that is not completely inside
    if (firstBlock >= lastBlock) {
      scan(first + 1, last + 1);
      return highest;
    }
    scan(first + 1, firstBlock * BLOCK);
    for (let block = firstBlock; block < lastBlock; block++)
      if (bytes[best[block]] > bytes[highest]) highest = best[block];
    scan(lastBlock * BLOCK, last + 1);
    return highest;
  }

  /** The state of the peak. */
  peak() {
    return this.bytes.length ? this.highest(0, this.bytes.length - 1) : 0;
  }
}

/**
 * Requested bytes of all allocations until their frees are completed.
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
 * Bytes of all segments, computed backwards from the final ones; undefined if the file has none.
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
  // Negative bytes: the final segments do not match the events
  return bytes.every((value) => value >= 0) ? new Curve(bytes) : undefined;
}
