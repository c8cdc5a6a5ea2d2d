/** Spans of time that may lie in each other: which one is on top at a time. As `ipygpumem.snapshot.model.intervals`. */

export class Spans {
  /**
   * @param {number[]} starts whole microseconds, ascending @param {number[]} ends the last microsecond inside
   * @param {number[]} [ranks] of two at one time that with the higher rank is on top; the later one of equals, or by default
   */
  constructor(starts, ends, ranks) {
    const order = starts.map((_, span) => span);
    if (ranks) order.sort((a, b) => ranks[a] - ranks[b] || a - b);
    const place = new Int32Array(starts.length);
    for (const [at, span] of order.entries()) place[span] = at;
    const marks = [...starts, ...ends.filter(Number.isFinite).map((end) => end + 1)].sort((a, b) => a - b);
    /** From each mark on, up to the next, one is on top; -1: none. */
    this.marks = marks.filter((mark, i) => mark !== marks[i - 1]);
    /** @type {number[]} a heap of those that have begun: by their place, the highest first */
    const heap = [];
    let next = 0;
    this.top = this.marks.map((mark) => {
      for (; next < starts.length && starts[next] <= mark; next++) push(heap, place[next]);
      while (heap.length && ends[order[heap[0]]] < mark) pop(heap);
      return heap.length ? order[heap[0]] : -1;
    });
  }

  /** The span on top at a time; -1: outside of all. @param {number} time */
  at(time) {
    let low = 0;
    let high = this.marks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.marks[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return this.top[low - 1] ?? -1;
  }
}

/** @param {number[]} heap @param {number} value */
function push(heap, value) {
  let at = heap.push(value) - 1;
  for (let up = (at - 1) >> 1; at && heap[up] < value; at = up, up = (at - 1) >> 1) heap[at] = heap[up];
  heap[at] = value;
}

/** @param {number[]} heap */
function pop(heap) {
  const value = /** @type {number} */ (heap.pop());
  if (!heap.length) return;
  let at = 0;
  for (let down = 1; down < heap.length; down = 2 * at + 1) {
    if (heap[down + 1] > heap[down]) down++;
    if (heap[down] <= value) break;
    heap[at] = heap[down];
    at = down;
  }
  heap[at] = value;
}
