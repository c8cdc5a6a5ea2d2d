/** The axes of all charts, drawn on a canvas. */

import { byteStep, byteTick, byteTicks, count, elapsed } from "../data/units.js";
import { drawLine, setPen, setText } from "./canvas.js";

/**
 * @typedef {{left: number, top: number, width: number, height: number}} Box the plot, in CSS pixels
 * @typedef {{x: number, label: string}} Tick
 * @typedef {{grid: string, border: string, soft: string}} AxisColors
 */

const BYTE_SPACING = 52;
const SPACING = 110;
const LABEL_GAP = 8;

/**
 * Draw grid lines and labels of a byte axis at the left of the plot.
 * @param {CanvasRenderingContext2D} context @param {Box} box @param {[number, number]} bytes the visible range
 * @param {(bytes: number) => number} y @param {AxisColors} colors
 */
export function drawByteAxis(context, { left, width, height }, [low, high], y, colors) {
  const step = byteStep(low, high, Math.max(2, Math.round(height / BYTE_SPACING)));
  setText(context, colors.soft, "right");
  for (const value of byteTicks(low, high, step)) {
    const position = Math.round(y(value)) + 0.5;
    setPen(context, value ? colors.grid : colors.border, 1);
    drawLine(context, left, position, left + width, position);
    // A single byte within many GiB needs more digits than the margin has room for
    context.fillText(byteTick(value, step, high), left - LABEL_GAP, position, left - LABEL_GAP - 2);
  }
}

/**
 * Draw the line, tick marks and labels of the horizontal axis below the plot. Labels that do not fit are omitted.
 * @param {CanvasRenderingContext2D} context @param {Box} box @param {Tick[]} ticks @param {AxisColors} colors @param {string} [name]
 */
export function drawHorizontalAxis(context, { left, top, width, height }, ticks, colors, name = "") {
  const bottom = top + height + 0.5;
  setPen(context, colors.border, 1);
  drawLine(context, left, bottom, left + width, bottom);
  setText(context, colors.soft, "right");
  if (name) context.fillText(name, left + width, bottom + 13);
  const limit = left + width - (name ? context.measureText(name).width + 12 : -LABEL_GAP);
  context.textAlign = "center";
  let end = Number.NEGATIVE_INFINITY;
  for (const { x, label } of ticks) {
    const half = context.measureText(label).width / 2;
    drawLine(context, x, bottom, x, bottom + 4);
    if (x - half < end + LABEL_GAP || x + half > limit) continue;
    context.fillText(label, x, bottom + 13);
    end = x + half;
  }
}

/** Ticks of an axis of whole numbers, such as events. @param {import("d3-scale").ScaleLinear<number, number>} scale @param {number} [last] */
export function countTicks(scale, last = Number.POSITIVE_INFINITY) {
  return ticksOf(scale)
    .filter((value) => Number.isInteger(value) && value >= 0 && value <= last)
    .map((value) => ({ x: scale(value), label: count(value) }));
}

/** Ticks of an axis of elapsed time. @param {import("d3-scale").ScaleLinear<number, number>} scale @param {number} [unit] microseconds per unit of the axis */
export function elapsedTicks(scale, unit = 1) {
  const values = ticksOf(scale);
  const [low, high] = scale.domain();
  const step = values.length > 1 ? values[1] - values[0] : high - low;
  return values.map((value) => ({ x: scale(value), label: elapsed(value * unit, step * unit) }));
}

/** @param {import("d3-scale").ScaleLinear<number, number>} scale */
function ticksOf(scale) {
  const [left, right] = scale.range();
  return scale.ticks(Math.max(2, Math.round((right - left) / SPACING)));
}
