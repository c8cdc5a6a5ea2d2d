/** Writes SVG through the part of the 2D canvas API that the charts use, so that one function draws both image formats. */

import { h, s } from "./dom.js";

export class SvgCanvas {
  /** @param {number} width @param {number} height */
  constructor(width, height) {
    this.root = s("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height });
    this.parent = this.root;
    this.path = "";
    this.clips = 0;
    this.dash = "";
    /** @type {any[]} */
    this.stack = [];
    this.fillStyle = "";
    this.strokeStyle = "";
    this.lineWidth = 1;
    this.font = "";
    this.textAlign = "left";
    this.globalAlpha = 1;
    this.measure = /** @type {CanvasRenderingContext2D} */ (h("canvas").getContext("2d"));
  }

  save() {
    const { parent, dash, fillStyle, strokeStyle, lineWidth, font, textAlign, globalAlpha } = this;
    this.stack.push({ parent, dash, fillStyle, strokeStyle, lineWidth, font, textAlign, globalAlpha });
  }

  restore() {
    Object.assign(this, this.stack.pop());
  }

  /** @param {string} tag @param {Record<string, any>} attributes @param {...string} text */
  add(tag, attributes, ...text) {
    const { globalAlpha } = this;
    const element = s(tag, { ...attributes, opacity: globalAlpha < 1 && globalAlpha }, ...text);
    this.parent.append(element);
    return element;
  }

  /** @param {number} x @param {number} y */
  translate(x, y) {
    this.parent = this.add("g", { transform: `translate(${n(x)} ${n(y)})` });
  }

  clip() {
    const id = `clip${this.clips++}`;
    this.add("clipPath", { id }).append(s("path", { d: this.path }));
    this.parent = this.add("g", { "clip-path": `url(#${id})` });
  }

  beginPath() {
    this.path = "";
  }

  /** @param {number} x @param {number} y */
  moveTo(x, y) {
    this.path += `M${n(x)} ${n(y)}`;
  }

  /** @param {number} x @param {number} y */
  lineTo(x, y) {
    this.path += `${this.path ? "L" : "M"}${n(x)} ${n(y)}`;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  rect(x, y, width, height) {
    this.path += `M${n(x)} ${n(y)}h${n(width)}v${n(height)}h${n(-width)}z`;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  roundRect(x, y, width, height) {
    this.rect(x, y, width, height);
  }

  /** A whole circle. @param {number} x @param {number} y @param {number} r */
  arc(x, y, r) {
    this.path += `M${n(x - r)} ${n(y)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
  }

  fill() {
    if (this.path) this.add("path", { d: this.path, fill: this.fillStyle });
  }

  stroke() {
    if (this.path) this.add("path", { d: this.path, ...this.pen() });
  }

  pen() {
    return {
      fill: "none",
      stroke: this.strokeStyle,
      "stroke-width": this.lineWidth,
      "stroke-dasharray": this.dash || null,
    };
  }

  /** @param {number[]} dash */
  setLineDash(dash) {
    this.dash = dash.join(" ");
  }

  clearRect() {}

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  fillRect(x, y, width, height) {
    this.add("rect", { x: n(x), y: n(y), width: n(width), height: n(height), fill: this.fillStyle });
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  strokeRect(x, y, width, height) {
    this.add("rect", { x: n(x), y: n(y), width: n(width), height: n(height), ...this.pen() });
  }

  /** @param {string} text */
  measureText(text) {
    this.measure.font = this.font;
    return this.measure.measureText(text);
  }

  /** @param {string} text @param {number} x @param {number} y @param {number} [limit] */
  fillText(text, x, y, limit) {
    const { font, fillStyle: fill } = this;
    const anchor = /** @type {Record<string, string>} */ ({ right: "end", center: "middle" })[this.textAlign];
    const long = limit !== undefined && this.measureText(text).width > limit;
    const fit = long ? { textLength: limit, lengthAdjust: "spacingAndGlyphs" } : {};
    // All charts use the textBaseline "middle"
    this.add(
      "text",
      { x: n(x), y: n(y), dy: "0.35em", style: `font:${font}`, fill, "text-anchor": anchor, ...fit },
      text,
    );
  }

  /** @param {HTMLCanvasElement} image @param {number} x @param {number} y @param {number} width @param {number} height */
  drawImage(image, x, y, width, height) {
    const href = image.toDataURL("image/png");
    this.add("image", { x, y, width, height, href, preserveAspectRatio: "none", style: "image-rendering:pixelated" });
  }
}

/** @param {number} value */
function n(value) {
  return Number(value.toFixed(2));
}
