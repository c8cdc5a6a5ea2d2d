/** One device over time: stacked areas under the cells. Drawn anew with each reading; nothing moves in between. */

import { byteStep, byteTick, byteTicks } from "../data/units.js";
import { clipped } from "../ui/dom.js";

const STRIP = 18;
const BOTTOM = 20;
const NARROW_LABEL = 30;
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800];

/**
 * @typedef {{ground: string, text: string, soft: string, grid: string, border: string, capacity: string, bands: string[],
 *   failed: string, running: string, areas: string[], edge: string, cursor: string}} Colors
 * @typedef {{values: (number|null)[], color: string}} Area
 * @typedef {{begin: number, end: number, width: number, height: number, top: number, left: number}} Frame
 */

/** The rows of a stack, from below, of which at least one is known at some time. @param {(number|null)[][]} rows */
export function stacked(rows) {
  const length = rows[0]?.length ?? 0;
  const sums = new Array(length).fill(null);
  return rows.map((row) => {
    const top = new Array(length).fill(null);
    for (let i = 0; i < length; i++) {
      if (row[i] === null && sums[i] === null) continue;
      sums[i] = (sums[i] ?? 0) + (row[i] ?? 0);
      top[i] = sums[i];
    }
    return top;
  });
}

/** The most of a stack between two places. @param {(number|null)[]} top @param {number} first @param {number} last */
export function highest(top, first, last) {
  let most = 0;
  for (let i = Math.max(first, 0); i <= last; i++) most = Math.max(most, top[i] ?? 0);
  return most;
}

/** A round number of bytes with room above what is to be seen. @param {number} most @param {number|null} capacity @param {boolean} whole */
export function ceiling(most, capacity, whole) {
  if (whole && capacity) return capacity * 1.02;
  const wanted = Math.max(most * 1.12, 1 << 20);
  const step = byteStep(0, wanted, 4);
  const round = Math.ceil(wanted / step) * step;
  return capacity ? Math.min(round, capacity * 1.02) : round;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Frame} frame
 * @param {import("./history.js").Course} course
 * @param {(number|null)[][]} tops cumulated, from below
 * @param {{ceiling: number, capacity: number|null, colors: Colors, cursor: number|null}} look
 */
export function draw(context, frame, course, tops, look) {
  const { width, height, left } = frame;
  const plot = { ...frame, top: STRIP, height: height - STRIP - BOTTOM, width: width - left };
  const { colors } = look;
  context.clearRect(0, 0, width, height);
  context.font = '11px system-ui, -apple-system, "Segoe UI", sans-serif';
  context.textBaseline = "middle";
  const toX = (/** @type {number} */ time) =>
    left + ((time - frame.begin) / (frame.end - frame.begin || 1)) * plot.width;
  const toY = (/** @type {number} */ bytes) => plot.top + plot.height * (1 - bytes / look.ceiling);
  bands(context, plot, course, toX, colors);
  grid(context, plot, toY, look);
  const first = Math.max(course.at(frame.begin), 0);
  const last = Math.min(course.at(frame.end) + 1, course.time.length - 1);
  context.save();
  context.beginPath();
  context.rect(left, 0, plot.width, plot.top + plot.height);
  context.clip();
  for (const run of runs(course, first, last)) areas(context, run, course, tops, toX, toY, colors);
  context.restore();
  times(context, plot, frame, toX, colors);
  if (look.capacity !== null && look.capacity <= look.ceiling) {
    context.strokeStyle = colors.capacity;
    context.setLineDash([6, 4]);
    line(context, left, toY(look.capacity), width, toY(look.capacity));
    context.setLineDash([]);
  }
  if (look.cursor !== null) {
    const x = Math.round(toX(look.cursor)) + 0.5;
    if (x >= left && x <= width) {
      context.strokeStyle = colors.cursor;
      line(context, x, plot.top, x, plot.top + plot.height);
    }
  }
}

/** Stretches without a pause in them: nobody looked, and nobody knows. @param {import("./history.js").Course} course @param {number} first @param {number} last */
function* runs(course, first, last) {
  const longest = 3 * course.every + 1;
  let from = first;
  for (let i = first + 1; i <= last; i++) {
    if (course.time[i] - course.time[i - 1] > longest) {
      yield [from, i - 1];
      from = i;
    }
  }
  if (last >= from) yield [from, last];
}

/**
 * @param {CanvasRenderingContext2D} context @param {number[]} run @param {import("./history.js").Course} course
 * @param {(number|null)[][]} tops @param {(time: number) => number} toX @param {(bytes: number) => number} toY
 * @param {Colors} colors
 */
function areas(context, [first, last], course, tops, toX, toY, colors) {
  const places = thinned(course, tops[tops.length - 1], first, last, toX);
  for (let layer = tops.length - 1; layer >= 0; layer--) {
    const top = tops[layer];
    if (!places.some((i) => top[i] !== null && (layer === 0 || top[i] !== tops[layer - 1][i]))) continue;
    context.beginPath();
    context.moveTo(toX(course.time[places[0]]), toY(0));
    for (const i of places) context.lineTo(toX(course.time[i]), toY(top[i] ?? 0));
    context.lineTo(toX(course.time[places[places.length - 1]]), toY(0));
    context.closePath();
    context.fillStyle = colors.areas[layer];
    context.fill();
  }
  const top = tops[tops.length - 1];
  context.strokeStyle = colors.edge;
  context.lineWidth = 1.25;
  context.beginPath();
  for (const [at, i] of places.entries()) context[at ? "lineTo" : "moveTo"](toX(course.time[i]), toY(top[i] ?? 0));
  context.stroke();
  context.lineWidth = 1;
}

/** At most two instants for each pixel, the highest among them. @param {import("./history.js").Course} course @param {(number|null)[]} top @param {number} first @param {number} last @param {(time: number) => number} toX */
function thinned(course, top, first, last, toX) {
  /** @type {number[]} */
  const places = [];
  let column = Number.NaN;
  for (let i = first; i <= last; i++) {
    const here = Math.floor(toX(course.time[i]));
    const end = places.length - 1;
    if (here !== column || end < 0) places.push(i);
    else if ((top[i] ?? 0) >= (top[places[end]] ?? 0)) places[end] = i;
    column = here;
  }
  if (places[places.length - 1] !== last) places.push(last);
  return places;
}

/** @param {CanvasRenderingContext2D} context @param {Frame} plot @param {import("./history.js").Course} course @param {(time: number) => number} toX @param {Colors} colors */
function bands(context, plot, course, toX, colors) {
  const right = plot.left + plot.width;
  const all = course.cells.map((cell, place) => ({ ...cell, place, runs: false }));
  if (course.running) {
    const { number, begin } = course.running;
    all.push({ number, begin, end: Math.max(plot.end, begin), good: true, place: all.length, runs: true });
  }
  for (const { number, begin, end, good, place, runs } of all) {
    if (end < plot.begin || begin > plot.end) continue;
    const x0 = Math.max(toX(begin), plot.left);
    const x1 = Math.min(Math.max(toX(end), x0 + 1), right);
    const color = runs ? colors.running : good ? colors.bands[place % colors.bands.length] : colors.failed;
    context.fillStyle = color;
    context.globalAlpha = 0.35;
    context.fillRect(x0, STRIP, x1 - x0, plot.height);
    context.globalAlpha = 1;
    context.fillRect(x0, 1, x1 - x0, STRIP - 3);
    if (x1 - x0 >= NARROW_LABEL && number !== null) {
      context.fillStyle = colors.text;
      context.textAlign = "left";
      context.fillText(clipped(context, `In [${number}]${good ? "" : " failed"}`, x1 - x0 - 6), x0 + 4, STRIP / 2);
    }
  }
}

/** @param {CanvasRenderingContext2D} context @param {Frame} plot @param {(bytes: number) => number} toY @param {{ceiling: number, colors: Colors}} look */
function grid(context, plot, toY, look) {
  const step = byteStep(0, look.ceiling, 3);
  context.textAlign = "right";
  for (const value of byteTicks(0, look.ceiling, step)) {
    const y = Math.round(toY(value)) + 0.5;
    context.strokeStyle = value ? look.colors.grid : look.colors.border;
    line(context, plot.left, y, plot.left + plot.width, y);
    context.fillStyle = look.colors.soft;
    context.fillText(byteTick(value, step, look.ceiling), plot.left - 6, Math.min(y, plot.top + plot.height - 1));
  }
}

/** @param {CanvasRenderingContext2D} context @param {Frame} plot @param {Frame} frame @param {(time: number) => number} toX @param {Colors} colors */
function times(context, plot, frame, toX, colors) {
  const span = frame.end - frame.begin;
  const step = TIME_STEPS.find((one) => (one / span) * plot.width >= 78) ?? 3600;
  const y = plot.top + plot.height + 11;
  context.fillStyle = colors.soft;
  for (let time = Math.ceil(frame.begin / step) * step; time <= frame.end; time += step) {
    const x = toX(time);
    const text = clock(time, step);
    const half = context.measureText(text).width / 2;
    if (x - half < plot.left || x + half > plot.left + plot.width) continue;
    context.textAlign = "center";
    context.fillText(text, x, y);
  }
}

/** The time of the day. @param {number} time @param {number} step */
export function clock(time, step = 1) {
  const date = new Date(time * 1000);
  const two = (/** @type {number} */ value) => String(value).padStart(2, "0");
  const minutes = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return step >= 60 ? minutes : `${minutes}:${two(date.getSeconds())}`;
}

/** @param {CanvasRenderingContext2D} context @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 */
function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}
