/** Compares the groups at two points in time, in one file or in two, as `ipygpumem.snapshot.queries.diff` does. */

import { getOrCreate, TextMap } from "../../data/collections.js";
import { withStackTexts } from "./callers.js";
import { groups } from "./groups.js";

const KERNEL = /ipykernel_\d+/g;

/** @typedef {{label: string, before: number, after: number, countBefore: number, countAfter: number, frames?: string[]}} Change */

/**
 * @param {import("./groups.js").Group[]} before @param {import("./groups.js").Group[]} after
 * @param {(group: import("./groups.js").Group, later: boolean) => string[]|undefined} framesOf the stack of a group by stack
 * @returns {Change[]} the largest change first
 */
function diff(before, after, framesOf) {
  /** @type {TextMap<Change>} */
  const changes = new TextMap();
  /** @type {Map<string, number>} */
  const numbers = new Map();
  /** @type {Map<string, number>} */
  const numbersOfTexts = new Map();
  // Numbers, because the text of all frames could be very long
  const numberOf = (/** @type {string} */ text) =>
    getOrCreate(numbersOfTexts, text, () => getOrCreate(numbers, text.replace(KERNEL, ""), () => numbers.size));
  const add = (/** @type {import("./groups.js").Group} */ group, /** @type {boolean} */ later) => {
    const frames = framesOf(group, later);
    const id = frames
      ? JSON.stringify(frames.map(numberOf))
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

/**
 * The groups that changed between two points in time, and their totals.
 * @param {import("./pane.js").Pane} before @param {number} eventBefore
 * @param {import("./pane.js").Pane} after @param {number} eventAfter
 * @param {string} key @param {number} limit number of changes
 */
export function compare(before, eventBefore, after, eventAfter, key, limit) {
  const live = (/** @type {import("./pane.js").Pane} */ { snapshot, device }, /** @type {number} */ event) =>
    groups(snapshot, device, device.checkpoints.live(event), key, event, event);
  const bytes = (/** @type {import("./groups.js").Group[]} */ all) => all.reduce((sum, group) => sum + group.bytes, 0);
  const first = live(before, eventBefore);
  const second = live(after, eventAfter);
  /** @type {Map<import("../model/stacks.js").Frame, string>} */
  const texts = new Map(); // shared by all stacks
  const changes = diff(first, second, (group, later) => {
    if (group.stack === undefined) return undefined;
    const { stacks } = (later ? after : before).snapshot;
    return stacks.numbers(group.stack).map((number) => {
      const frame = stacks.frames[number];
      return getOrCreate(texts, frame, () => `${frame.file}:${frame.line} ${frame.name}`);
    });
  });
  return {
    before: bytes(first),
    after: bytes(second),
    changes: withStackTexts(changes.slice(0, limit), limit),
    more: Math.max(changes.length - limit, 0),
  };
}
