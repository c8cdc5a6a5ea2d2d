/** What allocations can be grouped and colored by. */

export const KEYS = [
  "line",
  "function",
  "file",
  "cell",
  "stack",
  "annotation",
  "pool",
  "stream",
  "context",
  "metadata",
  "size",
  "allocation",
];

export const MODES = [
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
