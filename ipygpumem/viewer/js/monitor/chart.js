/** One device over time: stacked areas below the cells that ran. */

import { scaleLinear } from "d3-scale";
import { byteStep } from "../data/units.js";
import { drawByteAxis, drawHorizontalAxis } from "../ui/axes.js";
import { clipText, drawLine, setPen, setText } from "../ui/canvas.js";
import { chartColors } from "../ui/theme.js";

/** Room around the plot, in CSS pixels. */
export const MARGIN = { left: 72, top: 18, bottom: 22 };
const LABEL_WIDTH = 30; // narrower cells have no label
const TICK_SPACING = 78;
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];

const AREAS = {
  light: ["#5b93e6", "#a9c9f5", "#eeb04f", "#b4bcc7"],
  dark: ["#3f77cc", "#2d4f80", "#b97c1f", "#5c6674"],
};

/** @typedef {ReturnType<typeof monitorColors>} Colors */

/** @param {import("../ui/theme.js").Theme} theme */
export function monitorColors(theme) {
  return { ...chartColors(theme), areas: AREAS[theme] };
}

/** The cumulative sums of rows from the bottom; null where the values of all rows so far are unknown. @param {(number|null)[][]} rows */
export function stackRows(rows) {
  const sums = new Array(rows[0]?.length ?? 0).fill(null);
  return rows.map((row) => {
    for (const [i, value] of row.entries()) if (value !== null) sums[i] = (sums[i] ?? 0) + value;
    return [...sums];
  });
}

/** The maximum between two indices. @param {(number|null)[]} values @param {number} first @param {number} last included */
export function maximum(values, first, last) {
  return values
    .slice(Math.max(first, 0), last + 1)
    .reduce((/** @type {number} */ most, value) => Math.max(most, value ?? 0), 0);
}

/** The upper end of the byte axis: a round number above the visible values, but at most the capacity. @param {number} visible @param {number|null} capacity @param {boolean} whole show the whole capacity */
export function axisTop(visible, capacity, whole) {
  if (whole && capacity) return capacity * 1.02;
  const top = Math.max(visible * 1.12, 1 << 20);
  const step = byteStep(0, top, 4);
  const round = Math.ceil(top / step) * step;
  return capacity ? Math.min(round, capacity * 1.02) : round;
}

/**
 * @typedef {object} ChartState
 * @property {import("./history.js").History} history
 * @property {(number|null)[][]} tops cumulated rows
 * @property {string[]} areas the color of each row
 * @property {number} begin seconds since the Unix epoch
 * @property {number} end
 * @property {number} top bytes at the upper end of the axis
 * @property {number|null} capacity
 * @property {number|null} cursor seconds since the Unix epoch
 *
 * @typedef {ChartState & {context: CanvasRenderingContext2D, colors: Colors, box: import("../ui/axes.js").Box,
 *   x: (time: number) => number, y: (bytes: number) => number}} Chart
 */

/** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height @param {ChartState} state @param {Colors} colors */
export function drawChart(context, width, height, state, colors) {
  const { history, begin, end, top, capacity, cursor } = state;
  const { left } = MARGIN;
  const box = { left, top: MARGIN.top, width: width - left, height: height - MARGIN.top - MARGIN.bottom };
  const x = scaleLinear([begin, Math.max(end, begin + 1e-3)], [left, width]);
  const y = scaleLinear([0, top], [box.top + box.height, box.top]);
  const chart = { ...state, context, colors, box, x, y };
  context.clearRect(0, 0, width, height);
  drawCells(chart);
  drawByteAxis(context, box, [0, top], y, colors);
  context.save();
  context.beginPath();
  context.rect(left, 0, box.width, box.top + box.height);
  context.clip();
  const first = Math.max(history.at(begin), 0);
  const last = Math.min(history.at(end) + 1, history.time.length - 1);
  for (const section of sections(history, first, last)) drawAreas(chart, section);
  context.restore();
  drawHorizontalAxis(context, box, timeTicks(chart), colors);
  if (capacity !== null && capacity <= top) {
    setPen(context, colors.capacity, 1, [6, 4]);
    drawLine(context, left, y(capacity), width, y(capacity));
  }
  if (cursor !== null && cursor >= begin && cursor <= end) {
    setPen(context, colors.edge, 1);
    const position = Math.round(x(cursor)) + 0.5;
    drawLine(context, position, box.top, position, box.top + box.height);
  }
}

/** Sections of readings without gaps. The memory usage in a gap is unknown. @param {import("./history.js").History} history @param {number} first @param {number} last */
function* sections({ time, every }, first, last) {
  let from = first;
  for (let i = first + 1; i <= last; i++) {
    if (time[i] - time[i - 1] > 3 * every + 1) {
      yield [from, i - 1];
      from = i;
    }
  }
  if (last >= from) yield [from, last];
}

/** @param {Chart} chart @param {number[]} section */
function drawAreas({ context, history: { time }, tops, areas, colors, x, y }, [first, last]) {
  const upper = tops[tops.length - 1];
  const indexes = thinOut(time, upper, first, last, x);
  for (let layer = tops.length - 1; layer >= 0; layer--) {
    const top = tops[layer];
    if (!indexes.some((i) => top[i] !== null && (layer === 0 || top[i] !== tops[layer - 1][i]))) continue;
    context.beginPath();
    context.moveTo(x(time[indexes[0]]), y(0));
    for (const i of indexes) context.lineTo(x(time[i]), y(top[i] ?? 0));
    context.lineTo(x(time[last]), y(0));
    context.fillStyle = areas[layer];
    context.fill();
  }
  setPen(context, colors.edge, 1.25);
  context.beginPath();
  for (const i of indexes) context.lineTo(x(time[i]), y(upper[i] ?? 0));
  context.stroke();
}

/** At most two readings per pixel, the highest among them. @param {number[]} time @param {(number|null)[]} top @param {number} first @param {number} last @param {(time: number) => number} x */
function thinOut(time, top, first, last, x) {
  /** @type {number[]} */
  const indexes = [];
  let previous = Number.NaN;
  for (let i = first; i <= last; i++) {
    const pixel = Math.floor(x(time[i]));
    const end = indexes.length - 1;
    if (pixel !== previous || end < 0) indexes.push(i);
    else if ((top[i] ?? 0) >= (top[indexes[end]] ?? 0)) indexes[end] = i;
    previous = pixel;
  }
  if (indexes.at(-1) !== last) indexes.push(last);
  return indexes;
}

/** @param {Chart} chart */
function drawCells({ context, history, begin: from, end: to, box, colors, x }) {
  const right = box.left + box.width;
  const cells = history.cells.map((cell, i) => ({
    ...cell,
    color: cell.good ? colors.bands[i % 4] : colors.failed,
  }));
  if (history.running) cells.push({ ...history.running, end: to, good: true, color: colors.running });
  for (const { number, begin, end, good, color } of cells) {
    if (end < from || begin > to) continue;
    const x0 = Math.max(x(begin), box.left);
    const width = Math.min(Math.max(x(end), x0 + 1), right) - x0;
    context.fillStyle = color;
    context.globalAlpha = 0.35;
    context.fillRect(x0, box.top, width, box.height);
    context.globalAlpha = 1;
    context.fillRect(x0, 1, width, box.top - 3);
    if (width < LABEL_WIDTH || number === null) continue;
    setText(context, colors.text, "left");
    context.fillText(clipText(context, `In [${number}]${good ? "" : " failed"}`, width - 6), x0 + 4, box.top / 2);
  }
}

/** @param {Chart} chart @returns {import("../ui/axes.js").Tick[]} */
function timeTicks({ begin, end, box, x }) {
  const spacing = ((end - begin) / box.width) * TICK_SPACING;
  const step = TIME_STEPS.find((seconds) => seconds >= spacing) ?? 3600;
  const ticks = [];
  for (let time = Math.ceil(begin / step) * step; time <= end; time += step)
    ticks.push({ x: x(time), label: clockTime(time, step) });
  return ticks;
}

/** The time of day. @param {number} time seconds since the Unix epoch @param {number} step */
export function clockTime(time, step = 1) {
  const date = new Date(time * 1000);
  const parts = [date.getHours(), date.getMinutes(), ...(step >= 60 ? [] : [date.getSeconds()])];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}
