/** Annotated regions: `record_function` and the optimizer's steps. */

/** @typedef {{name: string, device: number, start_us: number|null, end_us: number|null, depth: number, ambiguous: boolean}} Annotation */

export class Annotations {
  /** @param {Annotation[]} all of one device, by their beginning */
  constructor(all) {
    this.all = all;
    this.starts = all.map((one) => one.start_us ?? -1);
    this.ends = all.map((one) => one.end_us ?? Number.POSITIVE_INFINITY);
    /** The latest end of this and all before: a search backwards may stop there. */
    this.latest = [];
    let latest = -1;
    for (const end of this.ends) {
      latest = Math.max(latest, end);
      this.latest.push(latest);
    }
  }

  /** The deepest region around a time, the younger of two; -1 outside of all. @param {number} time */
  innermost(time) {
    if (time < 0) return -1;
    let low = 0;
    let high = this.starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= time) low = middle + 1;
      else high = middle;
    }
    let found = -1;
    for (let i = low - 1; i >= 0 && this.latest[i] >= time; i--) {
      if (this.ends[i] >= time && (found < 0 || this.all[i].depth > this.all[found].depth)) found = i;
    }
    return found;
  }
}
