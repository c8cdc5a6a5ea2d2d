/** Compares the groups of two moments, of one file or two, as `ipygpumem.snapshot.queries.diff` does. */

import { getOrCreate } from "../../data/collections.js";

const KERNEL = /ipykernel_\d+/g;

/** @typedef {{label: string, before: number, after: number, countBefore: number, countAfter: number, frames?: string[]}} Change */

/**
 * @param {import("./groups.js").Group[]} before @param {import("./groups.js").Group[]} after
 * @param {(group: import("./groups.js").Group, later: boolean) => string[]|undefined} framesOf the stack of a group by stack
 * @returns {Change[]} the largest change first
 */
export function diff(before, after, framesOf) {
  /** @type {Map<string, Change>} */
  const changes = new Map();
  const add = (/** @type {import("./groups.js").Group} */ group, /** @type {boolean} */ later) => {
    const frames = framesOf(group, later);
    const id = frames
      ? JSON.stringify(frames)
      : group.file !== undefined
        ? JSON.stringify([group.file, group.line, group.name])
        : group.label;
    const key = id.replace(KERNEL, "");
    const none = { before: 0, after: 0, countBefore: 0, countAfter: 0 };
    const change = getOrCreate(changes, key, () => ({ label: group.label, frames, ...none }));
    change[later ? "after" : "before"] += group.bytes;
    change[later ? "countAfter" : "countBefore"] += group.count;
  };
  for (const group of before) add(group, false);
  for (const group of after) add(group, true);
  return [...changes.values()]
    .filter(({ before, after, countBefore, countAfter }) => before !== after || countBefore !== countAfter)
    .sort(
      (a, b) =>
        Math.abs(b.after - b.before) - Math.abs(a.after - a.before) ||
        Math.abs(b.countAfter - b.countBefore) - Math.abs(a.countAfter - a.countBefore) ||
        (a.label < b.label ? -1 : 1),
    );
}
