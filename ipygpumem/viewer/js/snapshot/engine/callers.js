/** What tells groups by stack apart, where their innermost lines are the same. */

import { remember } from "../../data/collections.js";

const MOST = 3;

/**
 * The frames at which stacks with one name part, each a short text; empty where the name is enough.
 * @param {{label: string, frames?: string[]}[]} groups frames: the innermost first @returns {string[]}
 */
export function trails(groups) {
  /** @type {string[][]} */
  const found = groups.map(() => []);
  /** @type {Map<string, number[]>} */
  const named = new Map();
  for (const [i, { label, frames }] of groups.entries()) if (frames) remember(named, label, () => []).push(i);
  const open = [...named.values()].map((same) => ({ same, depth: 0 }));
  for (let one = open.pop(); one; one = open.pop()) {
    const { same } = one;
    if (same.length < 2) continue;
    const at = (/** @type {number} */ i, /** @type {number} */ depth) => groups[i].frames?.[depth];
    let { depth } = one;
    const deepest = Math.max(...same.map((i) => groups[i].frames?.length ?? 0));
    while (depth < deepest && same.every((i) => at(i, depth) === at(same[0], depth))) depth++;
    if (depth >= deepest) continue;
    /** @type {Map<string, number[]>} */
    const parted = new Map();
    for (const i of same) {
      const frame = at(i, depth) ?? "(outermost)";
      remember(parted, frame, () => []).push(i);
      if (found[i].length < MOST) found[i].push(frame);
    }
    for (const rest of parted.values()) open.push({ same: rest, depth: depth + 1 });
  }
  return found.map((texts) => texts.join(" ← "));
}
