/** The stack of categories on a canvas: each column of pixels is the state with the most bytes inside it. */

import { byteStep, byteTick, byteTicks, count, elapsed, fixed, size } from "../data/units.js";
import { fit } from "../ui/dom.js";
import { ink } from "../ui/theme.js";
import { NAMES, ORDER } from "./model.js";

/** @type {Record<"light"|"dark", string[]>} by category; the same as in `ipygpumem.viewer.layers` */
export const COLORS = {
  light: ["#44bb99", "#eedd88", "#c9a27e", "#b9a0dc", "#ee8866", "#77aadd", "#99ddff", "#b4bfcc"],
  dark: ["#36997d", "#c2b163", "#a3815f", "#937bb8", "#d0704f", "#5b8fc4", "#74b6d6", "#5c6776"],
};
export const ROOM = { left: 78, right: 18, top: 30, bottom: 30 };
const FONT = "system-ui, sans-serif";
const HEADROOM = 1.04;
const STEPS = [1, 2, 5];

/**
 * @typedef {{device: import("./model.js").Device, axis: import("./model.js").AxisKind, x: [number, number],
 *   cursor: number|null, pinned: boolean, lines: {allocated: boolean, reserved: boolean}}} Seen
 * @typedef {{rows: Int32Array, columns: {first: Int32Array, last: Int32Array}, top: number, plotWidth: number,
 *   plotHeight: number}} Drawn
 */

/** @param {HTMLCanvasElement} canvas @param {number} width @param {number} height @param {Seen} seen @param {"light"|"dark"} theme @returns {Drawn} */
export function draw(canvas, width, height, seen, theme) {
  const context = fit(canvas, width, height);
  return paint(context, width, height, seen, theme, canvas.width / width);
}

/** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height @param {Seen} seen @param {"light"|"dark"} theme @param {number} dense @returns {Drawn} */
export function paint(context, width, height, seen, theme, dense) {
  const { device, axis, x } = seen;
  const colors = ink(theme);
  const plotWidth = Math.max(width - ROOM.left - ROOM.right, 10);
  const plotHeight = Math.max(height - ROOM.top - ROOM.bottom, 10);
  const pixels = Math.max(Math.round(plotWidth * dense), 1);
  const columns = device.columns(axis, x[0], x[1], pixels);
  const rows = device.rows(columns);
  const curves = /** @type {const} */ (["reserved", "allocated"])
    .filter((name) => seen.lines[name] && device[name])
    .map((name) => ({ name, values: device.most(/** @type {Float64Array} */ (device[name]), columns) }));
  let top = 1;
  for (const row of rows) top = Math.max(top, device.total[row]);
  for (const { values } of curves) for (const value of values) if (value > top) top = value;
  top *= HEADROOM;

  context.fillStyle = colors.ground;
  context.fillRect(0, 0, width, height);
  const y = (/** @type {number} */ bytes) => ROOM.top + plotHeight * (1 - bytes / top);
  bytesAxis(context, plotWidth, plotHeight, top, y, colors);
  layers(context, device, rows, pixels, dense, plotHeight, top, theme);
  for (const { name, values } of curves) {
    context.strokeStyle = name === "reserved" ? colors.reserved : colors.line;
    context.setLineDash(name === "reserved" ? [5, 3] : []);
    curve(context, values, plotWidth, y);
  }
  context.setLineDash([]);
  placesAxis(context, seen, plotWidth, plotHeight, colors);
  marks(context, seen, plotWidth, plotHeight, y, colors, rows);
  return { rows, columns, top, plotWidth, plotHeight };
}

/** @param {CanvasRenderingContext2D} context @param {number} plotWidth @param {number} plotHeight @param {number} top @param {(bytes: number) => number} y @param {ReturnType<typeof ink>} colors */
function bytesAxis(context, plotWidth, plotHeight, top, y, colors) {
  const step = byteStep(0, top, plotHeight / 46);
  context.font = `11px ${FONT}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const tick of byteTicks(0, top, step)) {
    const at = Math.round(y(tick)) + 0.5;
    context.strokeStyle = colors.grid;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(ROOM.left, at);
    context.lineTo(ROOM.left + plotWidth, at);
    context.stroke();
    context.fillStyle = colors.soft;
    context.fillText(byteTick(tick, step, top), ROOM.left - 8, at);
  }
}

/** @param {CanvasRenderingContext2D} context @param {import("./model.js").Device} device @param {Int32Array} rows @param {number} pixels @param {number} dense @param {number} plotHeight @param {number} top @param {"light"|"dark"} theme */
function layers(context, device, rows, pixels, dense, plotHeight, top, theme) {
  const unit = (plotHeight * dense) / top;
  const ground = Math.round((ROOM.top + plotHeight) * dense);
  const left = Math.round(ROOM.left * dense);
  context.save();
  context.setTransform(1, 0, 0, 1, 0, 0);
  for (let from = 0; from < pixels; ) {
    const row = rows[from];
    let to = from + 1;
    while (to < pixels && rows[to] === row) to++;
    let bytes = 0;
    let edge = ground;
    for (const category of ORDER) {
      const own = device.levels[category][row];
      if (!device.shown[category] || own <= 0) continue;
      bytes += own;
      const next = ground - Math.round(bytes * unit);
      context.fillStyle = COLORS[theme][category];
      context.fillRect(left + from, next, to - from, edge - next);
      edge = next;
    }
    from = to;
  }
  context.restore();
}

/** @param {CanvasRenderingContext2D} context @param {Float64Array} values @param {number} plotWidth @param {(bytes: number) => number} y */
function curve(context, values, plotWidth, y) {
  const pixel = plotWidth / values.length;
  context.lineWidth = 1.2;
  context.beginPath();
  let last = Number.NaN;
  for (let column = 0; column < values.length; column++) {
    if (Number.isNaN(values[column])) continue;
    const at = y(values[column]);
    const x = ROOM.left + column * pixel;
    if (Number.isNaN(last)) context.moveTo(x, at);
    else if (at !== last) {
      context.lineTo(x, last);
      context.lineTo(x, at);
    }
    last = at;
  }
  if (!Number.isNaN(last)) context.lineTo(ROOM.left + plotWidth, last);
  context.stroke();
}

/** @param {CanvasRenderingContext2D} context @param {Seen} seen @param {number} plotWidth @param {number} plotHeight @param {ReturnType<typeof ink>} colors */
function placesAxis(context, { device, axis, x: [x0, x1] }, plotWidth, plotHeight, colors) {
  const bottom = ROOM.top + plotHeight;
  context.strokeStyle = colors.border;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(ROOM.left, bottom + 0.5);
  context.lineTo(ROOM.left + plotWidth, bottom + 0.5);
  context.stroke();
  const step = roundStep(x1 - x0, plotWidth / 110, axis === "change" ? 1 : 0);
  context.fillStyle = colors.soft;
  context.textBaseline = "top";
  context.textAlign = "center";
  for (let tick = Math.ceil(x0 / step) * step; tick <= x1; tick += step) {
    if (axis === "change" && tick > device.count) break; // the last state has a width, and no change at its end
    const at = ROOM.left + (plotWidth * (tick - x0)) / (x1 - x0);
    context.beginPath();
    context.moveTo(at, bottom);
    context.lineTo(at, bottom + 4);
    context.stroke();
    const text = axis === "change" ? count(tick) : elapsed(tick / 1000, step / 1000);
    const half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(Math.max(at, half + 2), ROOM.left + plotWidth + ROOM.right - half - 2), bottom + 8);
  }
}

/** 1, 2 or 5 times a power of ten. @param {number} span @param {number} wanted @param {number} least */
function roundStep(span, wanted, least) {
  const rough = Math.max(span / Math.max(wanted, 1), least, 1e-9);
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * (STEPS.find((factor) => factor * power >= rough * (1 - 1e-9)) ?? 10);
}

/** The peak, and the cursor. @param {CanvasRenderingContext2D} context @param {Seen} seen @param {number} plotWidth @param {number} plotHeight @param {(bytes: number) => number} y @param {ReturnType<typeof ink>} colors @param {Int32Array} rows */
function marks(context, { device, axis, x: [x0, x1], cursor, pinned }, plotWidth, plotHeight, y, colors, rows) {
  const place = (/** @type {number} */ row) => {
    const column = rows.indexOf(row);
    if (column >= 0) return ROOM.left + (plotWidth * (column + 0.5)) / rows.length;
    return ROOM.left + (plotWidth * (device.place(axis, row) - x0)) / (x1 - x0);
  };
  const inside = (/** @type {number} */ at) => at >= ROOM.left - 1 && at <= ROOM.left + plotWidth + 1;
  if (cursor !== null) {
    const at = Math.round(place(cursor)) + 0.5;
    if (inside(at)) {
      context.strokeStyle = pinned ? colors.accent : colors.hover;
      context.lineWidth = pinned ? 1.5 : 1;
      context.beginPath();
      context.moveTo(at, ROOM.top);
      context.lineTo(at, ROOM.top + plotHeight);
      context.stroke();
    }
  }
  const { row, bytes } = device.peak;
  const at = place(row);
  if (!inside(at) || !bytes) return;
  context.strokeStyle = colors.peak;
  context.fillStyle = colors.ground;
  context.lineWidth = 1.6;
  context.beginPath();
  context.arc(at, y(bytes), 4, 0, 2 * Math.PI);
  context.fill();
  context.stroke();
  const all = device.shown.every(Boolean);
  const text = `peak ${size(bytes)}${all ? "" : " of what is shown"} at ${moment(device.when(row), device.span, axis === "time" ? x1 - x0 : device.span)}`;
  context.font = `600 12px ${FONT}`;
  const right = at + context.measureText(text).width + 12 < ROOM.left + plotWidth + ROOM.right;
  context.textAlign = right ? "left" : "right";
  context.textBaseline = "middle";
  context.fillStyle = colors.text;
  context.fillText(text, right ? at + 8 : at - 8, ROOM.top - 12);
}

/** A time in the unit of the whole span, as exactly as what is seen tells it. @param {number} ns @param {number} span @param {number} seen both in nanoseconds */
export function moment(ns, span, seen) {
  const [unit, name] = span >= 1e9 ? [1e9, "s"] : span >= 1e6 ? [1e6, "ms"] : [1e3, "µs"];
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(seen / 2000 / unit)), 0), unit === 1e9 ? 9 : 6);
  return ns ? `${fixed(ns / unit, digits)} ${name}` : "0";
}

/** The category at a height of a state; -1 above all. @param {import("./model.js").Device} device @param {number} row @param {number} bytes */
export function categoryAt(device, row, bytes) {
  let sum = 0;
  for (const category of ORDER) {
    if (!device.shown[category]) continue;
    sum += Math.max(device.levels[category][row], 0);
    if (bytes < sum) return category;
  }
  return -1;
}

/** @param {number} category */
export function nameOf(category) {
  return NAMES[category];
}
