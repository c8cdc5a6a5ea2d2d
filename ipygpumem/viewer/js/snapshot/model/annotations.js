/** Annotated regions: `record_function` and the optimizer's steps. */

import { Spans } from "./spans.js";

/** @typedef {{name: string, device: number, start_us: number|null, end_us: number|null, depth: number, ambiguous: boolean}} Annotation */

export class Annotations {
  /** @param {Annotation[]} all of one device, ordered by start */
  constructor(all) {
    this.all = all;
    this.spans = new Spans(
      all.map(({ start_us }) => start_us ?? -1),
      all.map(({ end_us }) => end_us ?? Number.POSITIVE_INFINITY),
      all.map(({ depth }) => depth),
    );
  }

  /** The index of the deepest region at a time, or of the later one if two are equally deep; -1 if there is none. @param {number} time */
  innermost(time) {
    return time < 0 ? -1 : this.spans.at(time);
  }
}
