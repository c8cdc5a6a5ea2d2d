/** The stacked chart of categories: each pixel column shows the state with the most bytes inside it. */

import { scaleLinear } from "d3-scale";
import { fixed, size } from "../data/units.js";
import { countTicks, drawByteAxis, drawHorizontalAxis, elapsedTicks } from "../ui/axes.js";
import { drawDot, drawLine, drawSteps, setPen, setText } from "../ui/canvas.js";
import { chartColors } from "../ui/theme.js";
import { COUNTERS, ORDER } from "./model.js";

/** Colors by category, the same as in the still picture. @type {Record<import("../ui/theme.js").Theme, string[]>} */
export const COLORS = {
  light: ["#44bb99", "#eedd88", "#c9a27e", "#b9a0dc", "#ee8866", "#77aadd", "#99ddff", "#b4bfcc"],
  dark: ["#36997d", "#c2b163", "#a3815f", "#937bb8", "#d0704f", "#5b8fc4", "#74b6d6", "#5c6776"],
};
export const MARGIN = { left: 78, right: 18, top: 30, bottom: 30 };
const HEADROOM = 1.04;

/**
 * @typedef {ReturnType<import("./state.js").ProfileState["chartState"]>} ChartState
 * @typedef {{rows: Int32Array, top: number, box: import("../ui/axes.js").Box}} Drawn
 *   the state of each pixel column, the bytes at the upper edge, and the plot
 * @typedef {{context: CanvasRenderingContext2D, state: ChartState, colors: import("../ui/theme.js").ChartColors,
 *   x: import("d3-scale").ScaleLinear<number, number>, y: (bytes: number) => number} & Drawn} Chart
 */

/** @param {number} width @param {number} height of the canvas @returns {import("../ui/axes.js").Box} */
export function plotBox(width, height) {
  return {
    left: MARGIN.left,
    top: MARGIN.top,
    width: Math.max(width - MARGIN.left - MARGIN.right, 10),
    height: Math.max(height - MARGIN.top - MARGIN.bottom, 10),
  };
}

/**
 * Draw the chart.
 * @param {CanvasRenderingContext2D} context @param {number} width @param {number} height CSS pixels
 * @param {ChartState} state @param {import("../ui/theme.js").Theme} theme @param {number} ratio device pixels per CSS pixel
 * @returns {Drawn}
 */
export function drawChart(context, width, height, state, theme, ratio) {
  const { device, axis, view } = state;
  const colors = chartColors(theme);
  const box = plotBox(width, height);
  const columns = device.columns(axis, view, Math.max(Math.round(box.width * ratio), 1));
  const rows = device.rows(columns);
  const curves = COUNTERS.toReversed().flatMap((name) => {
    const values = state.counters[name] && device.counters[name];
    return values ? [{ name, values: device.maxima(values, columns) }] : [];
  });
  let top = 1;
  for (const row of rows) top = Math.max(top, device.total[row]);
  for (const { values } of curves) for (const value of values) if (value > top) top = value;
  top *= HEADROOM;
  const x = scaleLinear(view, [box.left, box.left + box.width]);
  const y = scaleLinear([0, top], [box.top + box.height, box.top]);
  const chart = { context, state, colors, x, y, rows, top, box };

  context.fillStyle = colors.background;
  context.fillRect(0, 0, width, height);
  drawByteAxis(context, box, [0, top], y, colors);
  drawLayers(chart, theme, ratio);
  for (const { name, values } of curves) {
    if (name === "reserved") setPen(context, colors.reserved, 1.2, [5, 3]);
    else setPen(context, colors.total, 1.2);
    drawSteps(context, values, box, y);
  }
  // The last state has a width on the axis, but no change follows it
  const ticks = axis === "change" ? countTicks(x, device.count) : elapsedTicks(x, 1 / 1000);
  drawHorizontalAxis(context, box, ticks, colors);
  drawCursor(chart);
  drawPeak(chart);
  return { rows, top, box };
}

/** @param {Chart} chart @param {import("../ui/theme.js").Theme} theme @param {number} ratio */
function drawLayers({ context, state: { device }, rows, top, box }, theme, ratio) {
  const scale = (box.height * ratio) / top;
  const ground = Math.round((box.top + box.height) * ratio);
  const left = Math.round(box.left * ratio);
  context.save();
  context.setTransform(1, 0, 0, 1, 0, 0); // device pixels: edges stay sharp
  for (let from = 0; from < rows.length; ) {
    const row = rows[from];
    let to = from + 1;
    while (to < rows.length && rows[to] === row) to++;
    let bytes = 0;
    let edge = ground;
    for (const category of ORDER) {
      const level = device.levels[category][row];
      if (!device.shown[category] || level <= 0) continue;
      bytes += level;
      const next = ground - Math.round(bytes * scale);
      context.fillStyle = COLORS[theme][category];
      context.fillRect(left + from, next, to - from, edge - next);
      edge = next;
    }
    from = to;
  }
  context.restore();
}

/** Pixels from the left, at the column that shows a state if there is one; null outside the plot. @param {Chart} chart @param {number} row */
function pixelOf({ state: { device, axis }, rows, box, x }, row) {
  const column = rows.indexOf(row);
  const pixel = column < 0 ? x(device.position(axis, row)) : box.left + (box.width * (column + 0.5)) / rows.length;
  return pixel >= box.left - 1 && pixel <= box.left + box.width + 1 ? pixel : null;
}

/** @param {Chart} chart */
function drawCursor(chart) {
  const { context, colors, box } = chart;
  const { cursor, pinned } = chart.state;
  const pixel = cursor === null ? null : pixelOf(chart, cursor);
  if (pixel === null) return;
  setPen(context, pinned ? colors.accent : colors.pointer, pinned ? 1.5 : 1);
  drawLine(context, Math.round(pixel) + 0.5, box.top, Math.round(pixel) + 0.5, box.top + box.height);
}

/** @param {Chart} chart */
function drawPeak(chart) {
  const { context, colors, box, y } = chart;
  const { device, axis, view } = chart.state;
  const { row, bytes } = device.peak;
  const pixel = pixelOf(chart, row);
  if (pixel === null || !bytes) return;
  drawDot(context, pixel, y(bytes), colors.background, colors.peak);
  const time = formatTime(device.timeOf(row), device.span, axis === "time" ? view[1] - view[0] : device.span);
  const text = `peak ${size(bytes)}${device.allShown ? "" : " of the categories shown"} at ${time}`;
  setText(context, colors.text, "left", "600 12px");
  const rightwards = pixel + context.measureText(text).width + 12 < box.left + box.width + MARGIN.right;
  context.textAlign = rightwards ? "left" : "right";
  context.fillText(text, rightwards ? pixel + 8 : pixel - 8, box.top - 12);
}

/** A time in the unit of the whole profile, as precise as the view. @param {number} ns @param {number} span @param {number} visible both in nanoseconds */
export function formatTime(ns, span, visible) {
  const [unit, name] = span >= 1e9 ? [1e9, "s"] : span >= 1e6 ? [1e6, "ms"] : [1e3, "µs"];
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(visible / 2000 / unit)), 0), unit === 1e9 ? 9 : 6);
  return ns ? `${fixed(ns / unit, digits)} ${name}` : "0";
}
