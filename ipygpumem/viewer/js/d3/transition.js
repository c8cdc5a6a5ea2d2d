/** Stands for d3-transition, which d3-zoom and d3-brush would use to move things by themselves. Nothing does here. */

import { selection } from "d3-selection";

/** @type {any} */ (selection.prototype).interrupt = function interrupt() {
  return this;
};

export function interrupt() {}
