/** The allocations that are alive at any event, from lists that are kept for some events. */

import { countWhile } from "../../data/collections.js";

const MINIMUM = 4096;

/**
 * Lists of live rows at some events. A list is kept as soon as the number of allocations that began or ended since the
 * previous list exceeds its length, and at least 4,096. Creating them therefore takes linear time for any recording, and
 * all lists together are at most four times as long as the number of allocations.
 */
export class Checkpoints {
  /** @param {import("./trace.js").Allocations} allocations */
  constructor(allocations) {
    this.allocations = allocations;
    /** @type {{event: number, next: number, rows: Int32Array}[]} next: the first row that begins later */
    this.lists = [];
    /** The largest number of allocations alive at once. */
    this.maxLive = 0;
    /** Steps that creating the lists took, for tests. */
    this.steps = 0;
    const { start, end, length } = allocations;
    const last = length ? start[length - 1] : 0;
    const endCounts = new Int32Array(last + 2);
    for (let row = 0; row < length; row++) if (end[row] <= last) endCounts[Math.max(end[row], 0)]++;
    const rows = new Int32Array(length);
    let listed = 0; // rows in the list, including those that have ended
    let base = 0; // length of the previous list
    let changes = 0; // since the previous list
    let live = 0;
    let next = 0; // first event whose ends are not counted yet
    for (let row = 0; row < length; ) {
      const event = start[row];
      for (; next <= event; next++) {
        live -= endCounts[next];
        changes += endCounts[next];
      }
      for (; row < length && start[row] === event; row++) {
        rows[listed++] = row;
        live++;
        changes++;
      }
      this.maxLive = Math.max(this.maxLive, live);
      if (this.lists.length && changes < Math.max(2 * MINIMUM, base)) continue;
      this.steps += listed;
      base = 0;
      for (let i = 0; i < listed; i++) if (end[rows[i]] > event) rows[base++] = rows[i];
      listed = base;
      changes = 0;
      this.lists.push({ event, next: row, rows: rows.slice(0, base) });
    }
  }

  /**
   * Rows alive right after an event, ordered by start.
   * @param {number} event
   * @returns {Int32Array}
   */
  live(event) {
    const { allocations, lists } = this;
    const { end } = allocations;
    const index = countWhile(lists.length, (i) => lists[i].event <= event) - 1;
    const { next, rows } = lists[index] ?? { next: 0, rows: new Int32Array(0) };
    const after = Math.max(allocations.after(event), next);
    const live = new Int32Array(rows.length + after - next);
    let count = 0;
    for (const row of rows) if (end[row] > event) live[count++] = row;
    for (let row = next; row < after; row++) if (end[row] > event) live[count++] = row;
    return live.subarray(0, count);
  }
}
