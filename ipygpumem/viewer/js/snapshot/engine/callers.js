/** Distinguishes groups by stack whose innermost lines are the same. */

import { getOrCreate } from "../../data/collections.js";
import { shorten } from "../../data/units.js";

const MAX_CALLERS = 3;
const MAX_FRAMES = 200; // in the text of a stack on the screen

/**
 * A stack as text. On the screen, where the number of groups is limited, it is truncated.
 * @param {string[]} frames the innermost first @param {number} limit number of groups
 */
export function joinFrames(frames, limit) {
  return Number.isFinite(limit) ? shorten(frames.slice(0, MAX_FRAMES).join(" ← ")) : frames.join(" ← ");
}

/**
 * The callers at which stacks with the same label differ, as text; empty if the label is unique.
 * @param {{label: string, frames?: string[]}[]} groups frames: the innermost first @returns {string[]}
 */
export function distinguishingCallers(groups) {
  /** @type {string[][]} */
  const callers = groups.map(() => []);
  /** @type {Map<string, number[]>} */
  const byLabel = new Map();
  for (const [i, { label, frames }] of groups.entries()) if (frames) getOrCreate(byLabel, label, () => []).push(i);
  const frameAt = (/** @type {number} */ i, /** @type {number} */ depth) => groups[i].frames?.[depth];
  const pending = [...byLabel.values()].map((same) => ({ same, depth: 0 }));
  for (let next = pending.pop(); next; next = pending.pop()) {
    const { same } = next;
    if (same.length < 2) continue;
    let { depth } = next;
    const deepest = Math.max(...same.map((i) => groups[i].frames?.length ?? 0));
    while (depth < deepest && same.every((i) => frameAt(i, depth) === frameAt(same[0], depth))) depth++;
    if (depth >= deepest) continue;
    /** @type {Map<string, number[]>} */
    const byFrame = new Map();
    for (const i of same) {
      const frame = frameAt(i, depth) ?? "(outermost)";
      getOrCreate(byFrame, frame, () => []).push(i);
      if (callers[i].length < MAX_CALLERS) callers[i].push(frame);
    }
    for (const group of byFrame.values()) pending.push({ same: group, depth: depth + 1 });
  }
  return callers.map((texts) => texts.join(" ← "));
}
