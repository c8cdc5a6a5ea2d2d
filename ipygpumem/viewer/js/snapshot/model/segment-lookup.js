/** Which segment held an address at an event. As `ipygpumem.snapshot.model.segment_lookup`. */

import { remember } from "../../data/collections.js";

/** @template {{address: number, size: number, start: number, end: number}} T */
export class Stays {
  /** @param {T[]} all segments, each from the event that made it to the one that gave it back */
  constructor(all) {
    /** @type {Map<number, T[]>} */
    const bases = new Map();
    for (const one of all) remember(bases, one.address, () => []).push(one);
    this.bases = [...bases].sort(([a], [b]) => a - b).map(([address, stays]) => ({ address, stays }));
    for (const { stays } of this.bases) stays.sort((a, b) => a.start - b.start);
    let last = Number.NEGATIVE_INFINITY;
    /** How far all up to this base reach: a search backwards may stop there. */
    this.reach = this.bases.map(({ address, stays }) => {
      for (const { size } of stays) last = Math.max(last, address + size);
      return last;
    });
  }

  /** @param {number} address @param {number} event @returns {T|undefined} */
  at(address, event) {
    for (let i = below(this.bases, (one) => one.address <= address) - 1; i >= 0 && this.reach[i] > address; i--) {
      const { address: base, stays } = this.bases[i];
      const one = stays[below(stays, ({ start }) => start <= event) - 1];
      if (one && event < one.end && address < base + one.size) return one;
    }
    return undefined;
  }
}

/** How many at the front pass. @template T @param {T[]} all @param {(one: T) => boolean} passes */
function below(all, passes) {
  let low = 0;
  let high = all.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (passes(all[middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}
