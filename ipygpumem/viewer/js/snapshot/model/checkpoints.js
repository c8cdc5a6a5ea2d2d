/** What lives at any event, from lists kept on the way. */

const EVERY = 4096;

/**
 * Lists of live rows at some states. A list is made and kept once as many allocations have begun or ended since the last
 * one as that was long, and at least 4,096. So each step of the making is paid by a birth or a death, whatever the shape,
 * and all lists together are at most four times as long as there are allocations.
 */
export class Checkpoints {
  /** @param {import("./trace.js").Allocations} allocations */
  constructor(allocations) {
    this.allocations = allocations;
    /** @type {{event: number, next: number, rows: Int32Array}[]} next: the first row that begins later */
    this.kept = [];
    /** The most that ever lived at once. */
    this.most = 0;
    /** Steps over lists in the making: for those who doubt it. */
    this.steps = 0;
    const { start, end, length } = allocations;
    const last = length ? start[length - 1] : 0;
    const deaths = new Int32Array(last + 2);
    for (let row = 0; row < length; row++) if (end[row] <= last) deaths[Math.max(end[row], 0)]++;
    const live = new Int32Array(length);
    let listed = 0; // rows in the list, the dead among them
    let base = 0; // its length when it was made
    let since = 0;
    let alive = 0;
    let before = 0; // events whose deaths are counted
    for (let row = 0; row < length; ) {
      const event = start[row];
      for (; before <= event; before++) {
        alive -= deaths[before];
        since += deaths[before];
      }
      for (; row < length && start[row] === event; row++) {
        live[listed++] = row;
        alive++;
        since++;
      }
      this.most = Math.max(this.most, alive);
      if (this.kept.length && since < Math.max(2 * EVERY, base)) continue;
      this.steps += listed;
      base = 0;
      for (let i = 0; i < listed; i++) if (end[live[i]] > event) live[base++] = live[i];
      listed = base;
      since = 0;
      this.kept.push({ event, next: row, rows: live.slice(0, base) });
    }
  }

  /**
   * Rows alive right after an event, in the order of their beginning.
   * @param {number} event
   * @returns {Int32Array}
   */
  live(event) {
    const { allocations, kept } = this;
    const { end } = allocations;
    let low = 0;
    let high = kept.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (kept[middle].event <= event) low = middle + 1;
      else high = middle;
    }
    const { next, rows } = kept[low - 1] ?? { next: 0, rows: new Int32Array(0) };
    const after = Math.max(allocations.after(event), next);
    const found = new Int32Array(rows.length + after - next);
    let count = 0;
    for (const row of rows) if (end[row] > event) found[count++] = row;
    for (let row = next; row < after; row++) if (end[row] > event) found[count++] = row;
    return found.subarray(0, count);
  }
}
