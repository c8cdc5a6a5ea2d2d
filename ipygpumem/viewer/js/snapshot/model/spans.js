/** Nested and overlapping spans of time: finds the topmost one at a time. */

import { countWhile } from "../../data/collections.js";

export class Spans {
  /**
   * @param {number[]} starts whole microseconds, ascending @param {number[]} ends the last microsecond inside
   * @param {number[]} [ranks] the span with the higher rank is on top; of equal ranks, and by default, the later one
   */
  constructor(starts, ends, ranks) {
    const order = starts.map((_, span) => span);
    if (ranks) order.sort((a, b) => ranks[a] - ranks[b] || a - b);
    const place = new Int32Array(starts.length);
    for (const [index, span] of order.entries()) place[span] = index;
    const boundaries = [...starts, ...ends.filter(Number.isFinite).map((end) => end + 1)].sort((a, b) => a - b);
    /** Times at which the topmost span may change. */
    this.boundaries = boundaries.filter((time, i) => time !== boundaries[i - 1]);
    /** @type {number[]} a heap of the spans that have begun: by their place in the order, the highest first */
    const heap = [];
    let next = 0;
    /** The topmost span from each boundary on; -1: none. */
    this.top = this.boundaries.map((time) => {
      for (; next < starts.length && starts[next] <= time; next++) push(heap, place[next]);
      while (heap.length && ends[order[heap[0]]] < time) pop(heap);
      return heap.length ? order[heap[0]] : -1;
    });
  }

  /** The topmost span at a time; -1: none. @param {number} time */
  at(time) {
    const { boundaries, top } = this;
    return top[countWhile(boundaries.length, (i) => boundaries[i] <= time) - 1] ?? -1;
  }
}

/** @param {number[]} heap @param {number} value */
function push(heap, value) {
  let node = heap.push(value) - 1;
  for (let up = (node - 1) >> 1; node && heap[up] < value; node = up, up = (node - 1) >> 1) heap[node] = heap[up];
  heap[node] = value;
}

/** @param {number[]} heap */
function pop(heap) {
  const value = /** @type {number} */ (heap.pop());
  if (!heap.length) return;
  let node = 0;
  for (let down = 1; down < heap.length; down = 2 * node + 1) {
    if (heap[down + 1] > heap[down]) down++;
    if (heap[down] <= value) break;
    heap[node] = heap[down];
    node = down;
  }
  heap[node] = value;
}
