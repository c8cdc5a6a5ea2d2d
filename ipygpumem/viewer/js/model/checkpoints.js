/** What lives at any event, from lists kept on the way. */

const EVERY = 4096;

/**
 * Lists of live rows at some states. A list is kept once as many allocations were begun since the last one as it is long,
 * and at least 4,096: so all lists together are no longer than the allocations.
 */
export class Checkpoints {
  /** @param {import("./trace.js").Allocations} allocations */
  constructor(allocations) {
    this.allocations = allocations;
    /** @type {{event: number, next: number, rows: Int32Array}[]} next: the first row that begins later */
    this.kept = [];
    const { start, end, length } = allocations;
    /** @type {number[]} */
    let live = [];
    let since = 0;
    let row = 0;
    while (row < length) {
      const event = start[row];
      while (row < length && start[row] === event) {
        live.push(row++);
        since++;
      }
      if (since >= EVERY || !this.kept.length) {
        live = live.filter((one) => end[one] > event);
        if (since >= live.length || !this.kept.length) {
          this.kept.push({ event, next: row, rows: Int32Array.from(live) });
          since = 0;
        }
      }
    }
  }

  /**
   * Rows alive right after an event, in the order of their beginning.
   * @param {number} event
   * @returns {Int32Array}
   */
  live(event) {
    const { start, end, length } = this.allocations;
    let low = 0;
    let high = this.kept.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.kept[middle].event <= event) low = middle + 1;
      else high = middle;
    }
    const { next, rows } = this.kept[low - 1] ?? { next: 0, rows: new Int32Array(0) };
    const found = [];
    for (const row of rows) if (end[row] > event) found.push(row);
    for (let row = next; row < length && start[row] <= event; row++) if (end[row] > event) found.push(row);
    return Int32Array.from(found);
  }
}
