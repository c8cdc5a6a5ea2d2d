/** Cells and annotated regions as bands above the timeline. */

import { clipText } from "../../ui/canvas.js";

const HEIGHT = 17;
const GAP = 2;
const MAX_DEPTH = 3; // deeper regions share the last row
const MIN_LABEL = 8; // shorter clipped labels are left out

/** @typedef {import("../engine/overview.js").Band} Band */

/** @type {WeakMap<object, Band[][]>} */
const cache = new WeakMap();

/** Rows of bands: cells first, then annotations by depth. @param {import("../engine/overview.js").DeviceFacts} facts @returns {Band[][]} */
function bandRows(facts) {
  let rows = cache.get(facts);
  if (!rows) {
    rows = facts.cells.length ? [facts.cells] : [];
    const depthOf = (/** @type {Band} */ band) => Math.min(band.depth, MAX_DEPTH);
    const deepest = facts.annotations.reduce((depth, band) => Math.max(depth, depthOf(band)), -1);
    for (let depth = 0; depth <= deepest; depth++)
      rows.push(facts.annotations.filter((band) => depthOf(band) === depth));
    cache.set(facts, rows);
  }
  return rows;
}

/** The height of all bands, in pixels. @param {import("../engine/overview.js").DeviceFacts} facts */
export function bandsHeight(facts) {
  const rows = bandRows(facts).length;
  return rows ? rows * (HEIGHT + GAP) + 6 : 8;
}

/** Where a band begins and ends, in pixels. @param {import("./timeline.js").Timeline} timeline @param {Band} band @returns {[number, number]} */
function extent(timeline, band) {
  const { events } = timeline.context.facts(timeline.source);
  if (timeline.context.axis() === "event") return [timeline.toX(band.first ?? 0), timeline.toX(band.last ?? events)];
  return [
    band.start === null ? -1 : timeline.toX(band.start),
    band.end === null ? timeline.size.plotWidth + 1 : timeline.toX(band.end),
  ];
}

/** @param {import("./timeline.js").Timeline} timeline @param {CanvasRenderingContext2D} context @param {import("../../ui/theme.js").ChartColors} colors */
export function drawBands(timeline, context, colors) {
  const { plotWidth } = timeline.size;
  context.save();
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (const [number, row] of bandRows(timeline.context.facts(timeline.source)).entries()) {
    const y = number * (HEIGHT + GAP) + 2;
    let filled = -2; // the pixel up to which the row is filled: several bands within one pixel are drawn once
    for (const [i, band] of row.entries()) {
      const [from, to] = extent(timeline, band);
      if (to < 0 || from > plotWidth) continue;
      const left = Math.max(from, 0);
      const width = Math.max(Math.min(to, plotWidth) - left, 1);
      if (left + width <= filled + 1 && width <= 1) continue;
      filled = left + width;
      context.fillStyle = colors.bands[hash(band.label) % colors.bands.length];
      context.globalAlpha = i % 2 ? 0.75 : 1;
      context.fillRect(left, y, Math.max(width - (width > 4 ? 1 : 0), 1), HEIGHT);
      context.globalAlpha = 1;
      // A label ends where the next band covers this one
      const next = row[i + 1];
      const room = Math.min(width, next ? extent(timeline, next)[0] - left : width) - 10;
      const text = room > 8 ? clipText(context, band.label, room) : "";
      if (!text || (text !== band.label && text.length <= MIN_LABEL)) continue;
      context.fillStyle = colors.text;
      context.fillText(text, left + 5, y + HEIGHT / 2 + 0.5);
    }
  }
  context.restore();
}

/** The topmost band at a point. @param {import("./timeline.js").Timeline} timeline @param {number} x @param {number} y from the top of the element */
export function bandAt(timeline, x, y) {
  const rows = bandRows(timeline.context.facts(timeline.source));
  return rows[Math.floor((y - 2) / (HEIGHT + GAP))]?.findLast((band) => {
    const [from, to] = extent(timeline, band);
    return x >= from - 1 && x <= Math.max(to, from + 1);
  });
}

/** A number for a text, to choose its color. @param {string} text */
function hash(text) {
  let sum = 0;
  for (let i = 0; i < text.length; i++) sum = (sum * 31 + text.charCodeAt(i)) >>> 0;
  return sum;
}
