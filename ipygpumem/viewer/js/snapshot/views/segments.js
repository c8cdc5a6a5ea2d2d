/** Draws the segments of the allocator with their blocks and free gaps. */

import { getOrCreate } from "../../data/collections.js";
import { count, size } from "../../data/units.js";
import { setPen, setText } from "../../ui/canvas.js";

const HEIGHT = 15; // of a segment, in pixels
const GAP = 4;
const TITLE = 24;
const LEFT = 4;
const ROWS = 14; // of a group, if its largest segment fits into one

/**
 * @typedef {{x: number, y: number, width: number, segment: number}} Place of a segment
 * @typedef {{segment: number, block: number}} Selection block -1: the segment itself, or a gap
 * @typedef {{places: Place[], titles: {y: number, text: string}[], height: number}} Layout
 */

/** @param {any} segment */
function groupOf({ expandable, small, pool, poolLabel, stream }) {
  const kind = expandable ? "expandable segments" : small === 1 ? "small segments" : "large segments";
  const streamName = stream === 0 ? "default stream" : `stream 0x${stream.toString(16)}`;
  return `${kind} · ${pool >= 0 ? poolLabel : "unknown pool"} · ${streamName}`;
}

/** Arrange segments by group, with one scale per group and several segments per row. @param {any[]} segments @param {number} width @returns {Layout} */
export function layoutSegments(segments, width) {
  /** @type {Map<string, number[]>} */
  const groups = new Map();
  for (const [i, { segment }] of segments.entries()) getOrCreate(groups, groupOf(segment), () => []).push(i);
  /** @type {Place[]} */
  const places = [];
  const titles = [];
  const room = width - LEFT;
  const sizeOf = (/** @type {number} */ i) => segments[i].segment.size;
  let y = 0;
  for (const [name, members] of groups) {
    members.sort((a, b) => sizeOf(b) - sizeOf(a) || segments[a].segment.address - segments[b].segment.address);
    const bytes = members.reduce((sum, i) => sum + sizeOf(i), 0);
    titles.push({ y: y + TITLE / 2, text: `${name}: ${count(members.length)}, ${size(bytes)}` });
    y += TITLE;
    const scale = Math.min(room / sizeOf(members[0]), (room * ROWS) / bytes);
    let x = 0;
    for (const segment of members) {
      const segmentWidth = Math.max(Math.min(sizeOf(segment) * scale, room), 5);
      if (x && x + segmentWidth > room) {
        x = 0;
        y += HEIGHT + GAP;
      }
      places.push({ x: x + LEFT, y, width: segmentWidth, segment });
      x += segmentWidth + GAP;
    }
    y += HEIGHT + GAP + 4;
  }
  return { places, titles, height: Math.max(y, 30) };
}

/**
 * @param {CanvasRenderingContext2D} context @param {any[]} segments @param {Layout} layout @param {Selection|null} selection
 * @param {string[]} swatches by class @param {import("../../ui/theme.js").ChartColors} colors
 */
export function drawSegments(context, segments, { places, titles, height }, selection, swatches, colors) {
  context.clearRect(0, 0, context.canvas.width, height);
  setText(context, colors.soft, "left");
  for (const { y, text } of titles) context.fillText(text, LEFT, y + 2);
  if (!places.length) context.fillText("No segments here.", LEFT, 14);
  for (const place of places) {
    const selected = selection?.segment === place.segment ? selection.block : null;
    drawSegment(context, segments[place.segment], place, selected, swatches, colors);
  }
}

/**
 * @param {CanvasRenderingContext2D} context @param {any} filled @param {Place} place @param {number|null} selected block
 * @param {string[]} swatches @param {import("../../ui/theme.js").ChartColors} colors
 */
function drawSegment(context, { segment, blocks }, { x: left, y, width }, selected, swatches, colors) {
  const scale = width / segment.size;
  context.fillStyle = colors.free;
  context.fillRect(left, y, width, HEIGHT);
  for (const [i, { address, requested, rounded, pending, class: number }] of blocks.entries()) {
    const x = left + (address - segment.address) * scale;
    const blockWidth = Math.max(rounded * scale, 0.6);
    const rounding = (rounded - requested) * scale;
    context.fillStyle = swatches[number] ?? colors.soft;
    context.fillRect(x, y, Math.max(requested * scale, 0.6), HEIGHT);
    if (rounding > 0.5) {
      context.globalAlpha = 0.45;
      context.fillRect(x + requested * scale, y, rounding, HEIGHT);
      context.globalAlpha = 1;
    }
    if (blockWidth > 3) {
      context.fillStyle = colors.background;
      context.fillRect(x + blockWidth - 1, y, 1, HEIGHT);
    }
    if (pending) {
      context.fillStyle = colors.oom;
      context.fillRect(x, y + HEIGHT - 3, blockWidth, 3);
    }
    if (selected === i) {
      setPen(context, colors.peak, 2);
      context.strokeRect(x, y, Math.max(blockWidth, 2), HEIGHT);
    }
  }
  setPen(context, selected !== null && selected < 0 ? colors.peak : colors.border, 1);
  context.strokeRect(left - 0.5, y - 0.5, width + 1, HEIGHT + 1);
}

/** The segment and the block at a point. @param {any[]} segments @param {Place[]} places @param {number} x @param {number} y @returns {Selection|null} */
export function segmentAt(segments, places, x, y) {
  const near = (/** @type {number} */ value, /** @type {number} */ from, /** @type {number} */ length) =>
    value >= from - 2 && value <= from + length + 2;
  const place = places.find((candidate) => near(x, candidate.x, candidate.width) && near(y, candidate.y, HEIGHT));
  if (!place) return null;
  const { segment, blocks } = segments[place.segment];
  const pixel = segment.size / place.width; // bytes
  const address = segment.address + (x - place.x) * pixel;
  const block = blocks.findIndex(
    (/** @type {any} */ candidate) =>
      address >= candidate.address && address < candidate.address + Math.max(candidate.rounded, pixel),
  );
  return { segment: place.segment, block };
}
