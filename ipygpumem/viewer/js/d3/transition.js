/** Replaces d3-transition, which d3-zoom and d3-brush import: nothing is animated. */

import { selection } from "d3-selection";

/** @type {any} */ (selection.prototype).interrupt = function interrupt() {
  return this;
};

export function interrupt() {}
