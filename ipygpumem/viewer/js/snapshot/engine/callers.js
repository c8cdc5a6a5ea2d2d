/** Distinguishes groups by stack whose innermost lines are the same. */

import { getOrCreate, TextMap } from "../../data/collections.js";
import { shorten } from "../../data/units.js";

const MAX_CALLERS = 3;
const MAX_FRAMES = 200; // in a truncated text
const MAX_SHOWN = 2000; // characters in a truncated text
const MAX_TEXT = 1 << 25; // characters: a file can repeat a frame with a long name in two bytes
const ARROW = " ← ";

/**
 * Groups with the texts of their stacks instead of their frames.
 * @template {{label: string, frames?: string[]}} T
 * @param {T[]} groups frames: the innermost first @param {number} limit number of groups
 */
export function withStackTexts(groups, limit) {
  const callers = distinguishingCallers(groups);
  const texts = joinFrames(groups, limit);
  return groups.map(({ frames: _, ...group }, i) => ({ ...group, via: callers[i], text: texts[i] }));
}

/**
 * Stacks as texts. On the screen, where the number of groups is limited, texts are truncated, and also in an export after
 * many characters.
 * @param {{frames?: string[]}[]} groups @param {number} limit number of groups
 */
export function joinFrames(groups, limit) {
  let left = Number.isFinite(limit) ? 0 : MAX_TEXT;
  return groups.map(({ frames }) => {
    if (!frames) return undefined;
    const length = frames.reduce((sum, frame) => sum + frame.length + ARROW.length, 0);
    if (length <= left) {
      left -= length;
      return frames.join(ARROW);
    }
    let shown = 0;
    for (let characters = 0; shown < Math.min(frames.length, MAX_FRAMES) && characters < MAX_SHOWN; shown++)
      characters += frames[shown].length;
    return shorten(frames.slice(0, shown).join(ARROW));
  });
}

/**
 * The callers at which stacks with the same label differ, as text; empty if the label is unique.
 * @param {{label: string, frames?: string[]}[]} groups frames: the innermost first @returns {string[]}
 */
export function distinguishingCallers(groups) {
  /** @type {string[][]} */
  const callers = groups.map(() => []);
  /** @type {TextMap<number[]>} */
  const byLabel = new TextMap();
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
    /** @type {TextMap<number[]>} */
    const byFrame = new TextMap();
    for (const i of same) {
      const frame = frameAt(i, depth) ?? "(outermost)";
      getOrCreate(byFrame, frame, () => []).push(i);
      if (callers[i].length < MAX_CALLERS) callers[i].push(frame);
    }
    for (const group of byFrame.values()) pending.push({ same: group, depth: depth + 1 });
  }
  return callers.map((texts) => texts.join(ARROW));
}
