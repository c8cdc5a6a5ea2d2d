/** Annotated regions: `record_function` and the optimizer's steps. */

import { Spans } from "./spans.js";

/** @typedef {{name: string, device: number, start_us: number|null, end_us: number|null, depth: number, ambiguous: boolean}} Annotation */

export class Annotations {
  /** @param {Annotation[]} all of one device, by their beginning */
  constructor(all) {
    this.all = all;
    this.spans = new Spans(
      all.map((one) => one.start_us ?? -1),
      all.map((one) => one.end_us ?? Number.POSITIVE_INFINITY),
      all.map((one) => one.depth),
    );
  }

  /** The deepest region around a time, the younger of two; -1 outside of all. @param {number} time */
  innermost(time) {
    return time < 0 ? -1 : this.spans.at(time);
  }
}
