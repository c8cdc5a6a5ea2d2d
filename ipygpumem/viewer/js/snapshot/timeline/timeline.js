/** One timeline: requests the picture of the visible part and draws it, with everything above it. */

import { countWhile } from "../../data/collections.js";
import { context2d, fitCanvas, pixelRatio } from "../../ui/canvas.js";
import { frameScheduler, h } from "../../ui/dom.js";
import { NOTHING } from "../engine/rasterize.js";
import { bandsHeight } from "./bands.js";
import { drawOverlay } from "./overlay.js";

/** Space around the plot, in CSS pixels. The strip of brief allocations is below it. */
export const MARGIN = { left: 78, right: 14, strip: 20, axis: 26 };

/**
 * @typedef {object} Drawn the picture on the screen
 * @property {import("../engine/rasterize.js").Picture} picture
 * @property {import("../engine/rasterize.js").View} view in device pixels
 *
 * @typedef {NonNullable<ReturnType<Timeline["at"]>>} Target what is at a point of the plot
 */

export class Timeline {
  /** @param {import("../context.js").Context} context @param {number} source */
  constructor(context, source) {
    this.context = context;
    this.source = source;
    this.picture = h("canvas", { class: "picture", aria: { hidden: "true" } });
    this.overlay = h("canvas", { class: "overlay", aria: { hidden: "true" } });
    this.plot = h("div", {
      class: "plot",
      tabindex: 0,
      role: "application",
      aria: { roledescription: "memory timeline", label: "Memory timeline. Press the question mark for its keys." },
    });
    this.element = h("div", { class: "timeline" }, this.picture, this.overlay, this.plot);
    /** @type {Drawn|undefined} */
    this.drawn = undefined;
    /** The outline of the selected allocation. @type {{row: number, picture: Drawn["picture"], spans: Span[]}|undefined} */
    this.outline = undefined;
    /** Buffers of an earlier picture, to be reused. @type {{pixels?: Uint32Array, ids?: Int32Array}} */
    this.buffers = {};
    this.size = { width: 0, height: 0, top: 0, plotWidth: 0, plotHeight: 0 };
    this.loading = false;
    /** When the next picture was requested; 0: none is. */
    this.requested = 0;
    /** @type {(() => void)[]} */
    this.waiting = [];
    /** @type {{x: number, y: number}|null} */
    this.pointer = null;
    /** @type {import("./ruler.js").Ruler|null} */
    this.ruler = null;
    /** @type {{x0: number, y0: number, x1: number, y1: number, kind: "box"|"range"}|null} */
    this.drag = null;
    /** Where the states after the cursor, the range and the peak begin and end on the axis. @type {Map<number, [number, number]>} */
    this.places = new Map();
    this.schedule = frameScheduler(() => this.draw());
    this.onDrawn = () => {};
    this.onResized = () => {};
    this.onError = (/** @type {Error} */ error) => console.error(error);
  }

  /** @param {number} width of the element @param {number} height of the plot */
  resize(width, height) {
    const top = bandsHeight(this.context.facts(this.source));
    const plotWidth = Math.max(60, Math.floor(width - MARGIN.left - MARGIN.right));
    this.size = { width, height: top + height + MARGIN.strip + MARGIN.axis, top, plotWidth, plotHeight: height };
    const position = { left: `${MARGIN.left}px`, top: `${top}px` };
    this.element.style.height = `${this.size.height}px`;
    Object.assign(this.plot.style, { ...position, width: `${plotWidth}px`, height: `${height + MARGIN.strip}px` });
    Object.assign(this.picture.style, position);
    this.onResized();
    this.refresh();
  }

  /** The visible part of the axes. */
  window() {
    const { now } = this.context;
    const [x0, x1] = now.x ?? this.context.domain();
    const [y0, y1] = now.y ?? this.context.range();
    return { x0, x1, y0, y1 };
  }

  /** Request a new picture. */
  refresh() {
    if (!this.size.width) return;
    this.requested ||= performance.now();
    if (!this.loading) this.load();
  }

  async load() {
    this.loading = true;
    try {
      const start = this.requested;
      this.requested = 0;
      const { context, source } = this;
      const { plotWidth, plotHeight } = this.size;
      const ratio = pixelRatio();
      const [width, height] = [plotWidth, plotHeight].map((length) => Math.round(length * ratio));
      const view = { ...this.window(), width, height };
      const legend = await context.legend(source);
      const { buffers } = this;
      this.buffers = {};
      const transfer = [buffers.pixels?.buffer, buffers.ids?.buffer].filter((buffer) => buffer !== undefined);
      const events = [context.event(source), context.facts(source).peak.event, ...(context.now.range ?? [])];
      const look = context.look(source);
      const request = { axis: context.axis(), view, look, colors: context.colors(legend), events, buffers };
      const picture = await context.request("frame", request, source, /** @type {Transferable[]} */ (transfer));
      if (context.stop.signal.aborted) return;
      this.buffers = this.drawn ? { pixels: this.drawn.picture.pixels, ids: this.drawn.picture.ids } : {};
      this.drawn = { picture, view };
      this.places = new Map(events.map((event, i) => [event, picture.places[i]]));
      this.paint();
      this.draw();
      this.onDrawn();
      performance.measure("ipygpumem:frame", { start, end: performance.now() });
      if (!performance.getEntriesByName("ipygpumem:drawn").length) performance.mark("ipygpumem:drawn");
    } catch (error) {
      if (!this.context.stop.signal.aborted) this.onError(/** @type {Error} */ (error));
    } finally {
      this.loading = false;
      if (this.requested) this.load();
      else for (const resolve of this.waiting.splice(0)) resolve();
    }
  }

  /** Resolves as soon as the newest picture is drawn. @returns {Promise<void>} */
  settled() {
    return this.loading || this.requested ? new Promise((resolve) => this.waiting.push(resolve)) : Promise.resolve();
  }

  /** Copy the pixels to the canvas. */
  paint() {
    if (!this.drawn) return;
    const { picture, size } = this;
    const { pixels } = this.drawn.picture;
    const { width, height } = this.drawn.view;
    if (picture.width !== width) picture.width = width;
    if (picture.height !== height) picture.height = height;
    Object.assign(picture.style, { width: `${size.plotWidth}px`, height: `${size.plotHeight}px` });
    const buffer = /** @type {ArrayBuffer} */ (pixels.buffer);
    const bytes = new Uint8ClampedArray(buffer, pixels.byteOffset, pixels.length * 4);
    context2d(picture).putImageData(new ImageData(bytes, width, height), 0, 0);
  }

  /** Draw everything above the pixels. This is fast enough for every move of the pointer. */
  draw() {
    if (!this.drawn || !this.size.width) return;
    drawOverlay(this, fitCanvas(this.overlay, this.size.width, this.size.height), "screen");
  }

  /** @param {number} x on the axis @returns {number} CSS pixels from the left of the plot */
  toX(x) {
    const { x0, x1 } = this.window();
    return ((x - x0) / (x1 - x0)) * this.size.plotWidth;
  }

  /** @param {number} pixel */
  fromX(pixel) {
    const { x0, x1 } = this.window();
    return x0 + (pixel / this.size.plotWidth) * (x1 - x0);
  }

  /** @param {number} bytes @returns {number} CSS pixels from the top of the plot */
  toY(bytes) {
    const { y0, y1 } = this.window();
    return this.size.plotHeight * (1 - (bytes - y0) / (y1 - y0));
  }

  /** @param {number} pixel */
  fromY(pixel) {
    const { y0, y1 } = this.window();
    return y0 + (1 - pixel / this.size.plotHeight) * (y1 - y0);
  }

  /** What is at a point of the plot. @param {number} x CSS pixels @param {number} y */
  at(x, y) {
    if (!this.drawn) return null;
    const { picture, view } = this.drawn;
    const column = Math.floor((x * view.width) / this.size.plotWidth);
    const line = Math.floor((y * view.height) / this.size.plotHeight);
    if (column < 0 || column >= view.width || Number.isNaN(picture.total[column])) return null;
    const inside = line >= 0 && line < view.height;
    const pixel = view.height - 1 - line;
    const scale = view.height / (view.y1 - view.y0);
    return {
      column,
      id: inside ? picture.ids[line * view.width + column] : NOTHING,
      event: picture.states[column] - 1,
      first: picture.firsts[column] - 1,
      last: picture.lasts[column] - 1,
      total: picture.total[column],
      reserved: picture.reserved[column],
      replayed: picture.replayed[column],
      thin: { count: picture.thinCount[column], bytes: picture.thinBytes[column] },
      hidden: { count: picture.hiddenCount[column], bytes: picture.hiddenBytes[column] },
      pixel,
      bottom: view.y0,
      strip: y >= this.size.plotHeight,
      bytes: this.fromY(y),
      low: view.y0 + pixel / scale,
      high: view.y0 + (pixel + 1) / scale,
      scale,
    };
  }

  /** Sampled levels at an event: the last sample before it. @param {number} event @returns {[string, number][]} */
  levels(event) {
    const { levels } = this.context.facts(this.source);
    return levels
      .filter(({ sampled }) => sampled)
      .map(({ label, events, bytes }) => {
        const index = countWhile(events.length, (i) => events[i] <= event + 1) - 1;
        return [label, bytes[Math.max(index, 0)]];
      });
  }

  /**
   * The pixels of an allocation in each column, from the top.
   * @typedef {{column: number, top: number, bottom: number}} Span
   * @param {number} row @returns {Span[]}
   */
  spans(row) {
    if (!this.drawn) return [];
    const { picture, view } = this.drawn;
    if (this.outline?.row === row && this.outline.picture === picture) return this.outline.spans;
    const { ids } = picture;
    /** @type {Map<number, Span>} */
    const columns = new Map();
    for (let i = ids.indexOf(row); i >= 0; i = ids.indexOf(row, i + 1)) {
      const column = i % view.width;
      const line = (i - column) / view.width;
      const span = columns.get(column);
      if (span) span.bottom = line + 1;
      else columns.set(column, { column, top: line, bottom: line + 1 });
    }
    const spans = [...columns.values()].sort((a, b) => a.column - b.column);
    this.outline = { row, picture, spans };
    return spans;
  }
}
