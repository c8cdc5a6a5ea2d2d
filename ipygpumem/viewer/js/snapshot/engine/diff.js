/** Two moments compared, of one file or two. As `ipygpumem.snapshot.queries.diff`. */

import { remember } from "../../data/collections.js";

const KERNEL = /ipykernel_\d+/g;

/** @typedef {{label: string, before: number, after: number, countBefore: number, countAfter: number, frames?: string[]}} Change */

/**
 * @param {import("./groups.js").Group[]} before @param {import("./groups.js").Group[]} after
 * @param {(group: import("./groups.js").Group, second: boolean) => string[]|undefined} frames of a group by stack
 * @returns {Change[]} what changed, the largest change first
 */
export function diff(before, after, frames) {
  /** @type {Map<string, Change>} */
  const found = new Map();
  const add = (/** @type {import("./groups.js").Group} */ group, /** @type {boolean} */ second) => {
    const stack = frames(group, second);
    const id = stack
      ? JSON.stringify(stack)
      : group.file !== undefined
        ? JSON.stringify([group.file, group.line, group.name])
        : group.label;
    const key = id.replace(KERNEL, "");
    const one = remember(found, key, () => ({
      label: group.label,
      frames: stack,
      before: 0,
      after: 0,
      countBefore: 0,
      countAfter: 0,
    }));
    if (second) {
      one.after += group.bytes;
      one.countAfter += group.count;
    } else {
      one.before += group.bytes;
      one.countBefore += group.count;
    }
  };
  for (const group of before) add(group, false);
  for (const group of after) add(group, true);
  return [...found.values()]
    .filter((one) => one.before !== one.after || one.countBefore !== one.countAfter)
    .sort(
      (a, b) =>
        Math.abs(b.after - b.before) - Math.abs(a.after - a.before) ||
        Math.abs(b.countAfter - b.countBefore) - Math.abs(a.countAfter - a.countBefore) ||
        (a.label < b.label ? -1 : 1),
    );
}
