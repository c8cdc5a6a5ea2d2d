/** Text in the plot that does not overlap. */

import { setText } from "../../ui/canvas.js";

const HEIGHT = 14;
const GAP = 6;
const EDGE = 4;

/** @typedef {"left"|"right"|"center"} Align */

export class Labels {
  /** @param {CanvasRenderingContext2D} context @param {number} width of the plot @param {string} background */
  constructor(context, width, background) {
    this.context = context;
    this.width = width;
    this.background = background;
    /** @type {{from: number, to: number, y: number}[]} */
    this.placed = [];
  }

  /** Where a text would start and end, moved inside the plot if necessary. @param {string} text @param {number} x @param {Align} align @returns {[number, number]} */
  extent(text, x, align) {
    const { width } = this.context.measureText(text);
    const start = align === "right" ? x - width : align === "center" ? x - width / 2 : x;
    const left = Math.max(EDGE, Math.min(start, this.width - width - EDGE));
    return [left, left + width];
  }

  /** Whether a text would overlap no other. @param {string} text @param {number} x @param {number} y @param {Align} align */
  isFree(text, x, y, align) {
    const [left, right] = this.extent(text, x, align);
    return this.placed.every(
      (placed) => right + GAP < placed.from || placed.to + GAP < left || Math.abs(placed.y - y) >= HEIGHT,
    );
  }

  /** @param {string} text @param {number} x @param {number} y its middle @param {string} color @param {Align} align */
  draw(text, x, y, color, align) {
    const { context } = this;
    const [left, right] = this.extent(text, x, align);
    this.placed.push({ from: left, to: right, y });
    context.fillStyle = this.background;
    context.beginPath();
    context.roundRect(left - 4, y - 8, right - left + 8, 16, 3);
    context.fill();
    setText(context, color, "left");
    context.fillText(text, left, y + 0.5);
  }
}
