/** Finds the segment that contained an address at an event. */

import { addressKey, countWhile, getOrCreate } from "../../data/collections.js";

const MAX_LOWER_BASES = 2000; // as in `ipygpumem.snapshot.model.segment_history`

/** @template {{address: number, size: number, start: number, end: number}} T */
export class SegmentLookup {
  /** @param {T[]} segments each from the event that allocated it to the one that freed it */
  constructor(segments) {
    /** By `addressKey`. @type {Map<number, T[]>} */
    const bases = new Map();
    for (const segment of segments) getOrCreate(bases, addressKey(segment.address), () => []).push(segment);
    this.bases = Array.from(bases.values(), (periods) => ({ address: periods[0].address, periods }));
    this.bases.sort((a, b) => a.address - b.address);
    for (const { periods } of this.bases) periods.sort((a, b) => a.start - b.start);
    let end = Number.NEGATIVE_INFINITY;
    /** The end of all segments up to each base: a search backwards may stop there. */
    this.ends = this.bases.map(({ address, periods }) => {
      for (const { size } of periods) end = Math.max(end, address + size);
      return end;
    });
  }

  /** @param {number} address @param {number} event @returns {T|undefined} */
  at(address, event) {
    const { bases, ends } = this;
    const nearest = countWhile(bases.length, (n) => bases[n].address <= address) - 1;
    const last = Math.max(nearest - MAX_LOWER_BASES + 1, 0);
    for (let i = nearest; i >= last && ends[i] > address; i--) {
      const { address: base, periods } = bases[i];
      const segment = periods[countWhile(periods.length, (n) => periods[n].start <= event) - 1];
      if (segment && event < segment.end && address < base + segment.size) return segment;
    }
    return undefined;
  }
}
