/** The keys that allocations can be grouped and colored by, and labels. */

/** Allocations that belong to no notebook cell, and to no annotated region, as in `ipygpumem.snapshot`. */
export const NO_CELL = "(no cell)";
export const NO_REGION = "(outside all regions)";

/** @type {Record<string, string>} */
export const GROUP_LABELS = {
  line: "line",
  function: "function",
  file: "file",
  cell: "cell",
  stack: "stack",
  annotation: "region",
  pool: "pool",
  stream: "stream",
  context: "compile context",
  metadata: "metadata",
  size: "size",
  allocation: "single allocation",
};
export const GROUP_KEYS = Object.keys(GROUP_LABELS);

export const COLOR_MODES = [
  "line",
  "category",
  "size",
  "lifetime",
  "stream",
  "function",
  "file",
  "cell",
  "annotation",
  "pool",
  "context",
  "metadata",
];
