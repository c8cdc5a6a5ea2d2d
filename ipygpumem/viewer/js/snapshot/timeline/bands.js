/** Cells and annotated regions as bands above the timeline. */

import { clipped } from "../../ui/dom.js";

export const BAND = 17;
const MOST_ROWS = 5;
/** Letters of a name that is cut: fewer tell nothing. */
const LEAST_LABEL = 8;

/** @typedef {{title: string, bands: import("../engine/overview.js").Band[]}} Row */

/** @type {WeakMap<object, Row[]>} */
const known = new WeakMap();

/** Rows of bands: cells first, then annotations by depth. @param {import("../engine/overview.js").DeviceFacts} facts @returns {Row[]} */
export function bandRows(facts) {
  let rows = known.get(facts);
  if (!rows) {
    rows = [];
    if (facts.cells.length) rows.push({ title: "cells", bands: facts.cells });
    const deepest = Math.min(
      facts.annotations.reduce((most, one) => Math.max(most, one.depth), -1),
      MOST_ROWS - 2,
    );
    for (let depth = 0; depth <= deepest; depth++) {
      const bands = facts.annotations.filter((one) => Math.min(one.depth, MOST_ROWS - 2) === depth);
      rows.push({ title: depth ? "" : "regions", bands });
    }
    known.set(facts, rows);
  }
  return rows;
}

/** Pixels above the plot. @param {import("../engine/overview.js").DeviceFacts} facts */
export function bandTop(facts) {
  const rows = bandRows(facts).length;
  return rows ? rows * (BAND + 2) + 6 : 8;
}

/**
 * The part of the axis that a band takes: by event through the times of the events at the columns.
 * @param {import("./timeline.js").Timeline} timeline @param {import("../engine/overview.js").Band} band
 * @returns {[number, number]} pixels
 */
function extent(timeline, band) {
  const facts = timeline.context.facts(timeline.source);
  const { plotWidth } = timeline.size;
  if (timeline.context.axis() === "time") {
    return [
      band.start === null ? -1 : timeline.toX(band.start),
      band.end === null ? plotWidth + 1 : timeline.toX(band.end),
    ];
  }
  const start = band.first ?? 0;
  const end = band.last ?? facts.events;
  return [timeline.toX(start), timeline.toX(end)];
}

/**
 * @param {import("./timeline.js").Timeline} timeline @param {CanvasRenderingContext2D} context
 * @param {{ink: string, soft: string, bands: string[]}} colors
 */
export function drawBands(timeline, context, colors) {
  const rows = bandRows(timeline.context.facts(timeline.source));
  const { plotWidth } = timeline.size;
  context.save();
  context.textBaseline = "middle";
  for (const [number, row] of rows.entries()) {
    const y = number * (BAND + 2) + 2;
    let filled = -2; // pixels so far: many bands in one pixel are drawn once
    for (const [i, band] of row.bands.entries()) {
      const [from, to] = extent(timeline, band);
      if (to < 0 || from > plotWidth) continue;
      const left = Math.max(from, 0);
      const width = Math.max(Math.min(to, plotWidth) - left, 1);
      if (left + width <= filled + 1 && width <= 1) continue;
      filled = left + width;
      context.fillStyle = colors.bands[hue(band.label) % colors.bands.length];
      context.globalAlpha = i % 2 ? 0.75 : 1;
      context.fillRect(left, y, Math.max(width - (width > 4 ? 1 : 0), 1), BAND);
      context.globalAlpha = 1;
      // words only where they fit, and nothing comes to lie on them
      const next = row.bands[i + 1];
      const room = Math.min(width, next ? extent(timeline, next)[0] - left : width) - 10;
      if (room > 8) {
        const text = clipped(context, band.label, room);
        if (text === band.label || text.length > LEAST_LABEL) {
          context.fillStyle = colors.ink;
          context.fillText(text, left + 5, y + BAND / 2 + 0.5);
        }
      }
    }
  }
  context.restore();
}

/** The band at a place. @param {import("./timeline.js").Timeline} timeline @param {number} x @param {number} y from the top of the element */
export function bandAt(timeline, x, y) {
  const rows = bandRows(timeline.context.facts(timeline.source));
  const row = rows[Math.floor((y - 2) / (BAND + 2))];
  // the youngest lies on top
  return row?.bands.findLast((band) => {
    const [from, to] = extent(timeline, band);
    return x >= from - 1 && x <= Math.max(to, from + 1);
  });
}

/** @param {string} text */
function hue(text) {
  let sum = 0;
  for (let i = 0; i < text.length; i++) sum = (sum * 31 + text.charCodeAt(i)) >>> 0;
  return sum;
}
