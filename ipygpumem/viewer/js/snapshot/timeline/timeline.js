/** One timeline: the stacked picture, its axes, its bands, its strip. It asks for a picture and draws what comes. */

import { byteStep, byteTick, byteTicks, count } from "../../data/units.js";
import { NOTHING } from "../engine/rasterize.js";
import { density, eachFrame, fit, h, s } from "../../ui/dom.js";
import { drawAxes } from "./axes.js";
import { bandRows, bandTop } from "./bands.js";
import { drawOverlay } from "./overlay.js";

/** Room around the plot, in CSS pixels. */
export const ROOM = { left: 78, right: 14, strip: 20, axis: 26 };

/**
 * @typedef {object} Drawn the picture on the screen, and what it shows
 * @property {import("../engine/rasterize.js").Picture} picture
 * @property {import("../engine/rasterize.js").View} view in device pixels
 * @property {number} source
 */

export class Timeline {
  /** @param {import("../context.js").Context} context @param {number} source */
  constructor(context, source) {
    this.context = context;
    this.source = source;
    this.picture = h("canvas", { class: "picture", aria: { hidden: "true" } });
    this.overlay = h("canvas", { class: "overlay", aria: { hidden: "true" } });
    this.axes = s("svg", { class: "axes", "aria-hidden": "true" });
    this.plot = h("div", {
      class: "plot",
      tabindex: 0,
      role: "application",
      aria: { roledescription: "memory timeline", label: "Memory timeline. Press the question mark for its keys." },
    });
    this.element = h(
      "div",
      { class: "timeline" },
      this.picture,
      this.overlay,
      /** @type {any} */ (this.axes),
      this.plot,
    );
    /** @type {Drawn|undefined} */
    this.drawn = undefined;
    /** @type {{row: number, ids: Int32Array, states: Int32Array, spans: {column: number, top: number, bottom: number}[]}|undefined} */
    this.outlined = undefined;
    /** @type {{pixels?: Uint32Array, ids?: Int32Array}} */
    this.spare = {};
    this.size = { width: 0, height: 0, top: 0, plotWidth: 0, plotHeight: 0 };
    this.busy = false;
    this.since = 0;
    /** @type {(() => void)[]} */
    this.waiting = [];
    /** What lies over the picture for a moment. @type {{x: number, y: number}|null} */
    this.pointer = null;
    /** @type {import("./overlay.js").Ruler|null} */
    this.ruler = null;
    /** @type {{x0: number, y0: number, x1: number, y1: number, kind: "box"|"range"}|null} */
    this.drag = null;
    /** Where the cursor, the range and the peak lie on the axis. @type {Map<number, [number, number]>} */
    this.places = new Map();
    this.again = eachFrame(() => this.draw());
    this.onDrawn = () => {};
    this.onFailed = (/** @type {Error} */ problem) => console.error(problem);
  }

  /** @param {number} width of the element @param {number} height of the plot itself */
  resize(width, height) {
    const top = bandTop(this.context.facts(this.source));
    const plotWidth = Math.max(60, Math.floor(width - ROOM.left - ROOM.right));
    this.size = { width, height: top + height + ROOM.strip + ROOM.axis, top, plotWidth, plotHeight: height };
    this.element.style.height = `${this.size.height}px`;
    Object.assign(this.plot.style, {
      left: `${ROOM.left}px`,
      top: `${top}px`,
      width: `${plotWidth}px`,
      height: `${height + ROOM.strip}px`,
    });
    Object.assign(this.picture.style, { left: `${ROOM.left}px`, top: `${top}px` });
    this.axes.setAttribute("width", String(width));
    this.axes.setAttribute("height", String(this.size.height));
    this.refresh();
  }

  /** What part is shown. */
  window() {
    const { now } = this.context;
    const [x0, x1] = now.x ?? this.context.domain();
    const [y0, y1] = now.y ?? this.context.range();
    return { x0, x1, y0, y1 };
  }

  /** Ask for a new picture. */
  refresh() {
    if (!this.size.width) return;
    this.since ||= performance.now();
    if (!this.busy) this.fetch();
  }

  async fetch() {
    this.busy = true;
    try {
      const begun = this.since;
      this.since = 0;
      const { context, source, size } = this;
      const dense = density();
      const view = {
        ...this.window(),
        width: Math.round(size.plotWidth * dense),
        height: Math.round(size.plotHeight * dense),
      };
      const legend = await context.legend(source);
      const kept = this.spare;
      this.spare = {};
      const transfer = [kept.pixels?.buffer, kept.ids?.buffer].filter((one) => one !== undefined);
      const wanted = [context.event(source), context.facts(source).peak.event, ...(context.now.range ?? [])];
      const request = {
        axis: context.axis(),
        view,
        look: context.look(source),
        colors: context.colors(legend),
        events: wanted,
        kept,
      };
      const picture = await context.ask("frame", request, source, /** @type {Transferable[]} */ (transfer));
      if (context.stop.signal.aborted) return;
      this.spare = this.drawn ? { pixels: this.drawn.picture.pixels, ids: this.drawn.picture.ids } : {};
      this.drawn = { picture, view, source };
      this.places = new Map(wanted.map((event, i) => [event, picture.places[i]]));
      this.paint();
      this.draw();
      this.onDrawn();
      performance.measure("ipygpumem:frame", { start: begun, end: performance.now() });
      if (!performance.getEntriesByName("ipygpumem:drawn").length) performance.mark("ipygpumem:drawn");
    } catch (problem) {
      if (!this.context.stop.signal.aborted) this.onFailed(/** @type {Error} */ (problem));
    } finally {
      this.busy = false;
      if (this.since) this.fetch();
      else for (const settle of this.waiting.splice(0)) settle();
    }
  }

  /** Settles when nothing is left to draw. @returns {Promise<void>} */
  settled() {
    return this.busy || this.since ? new Promise((settle) => this.waiting.push(settle)) : Promise.resolve();
  }

  /** The pixels as they came. */
  paint() {
    const { drawn, picture, size } = this;
    if (!drawn) return;
    const { width, height } = drawn.view;
    if (picture.width !== width) picture.width = width;
    if (picture.height !== height) picture.height = height;
    Object.assign(picture.style, { width: `${size.plotWidth}px`, height: `${size.plotHeight}px` });
    const { pixels } = drawn.picture;
    const bytes = new Uint8ClampedArray(
      /** @type {ArrayBuffer} */ (pixels.buffer),
      pixels.byteOffset,
      pixels.length * 4,
    );
    /** @type {CanvasRenderingContext2D} */ (picture.getContext("2d")).putImageData(
      new ImageData(bytes, width, height),
      0,
      0,
    );
  }

  /** Everything that is no pixel of an allocation: cheap, for each move of the pointer. */
  draw() {
    if (!this.drawn || !this.size.width) return;
    const { width, height } = this.size;
    drawAxes(this);
    drawOverlay(this, fit(this.overlay, width, height), "screen");
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

  /** What is at a place of the plot. @param {number} x CSS pixels @param {number} y */
  at(x, y) {
    if (!this.drawn) return null;
    const { picture, view } = this.drawn;
    const column = Math.floor((x * view.width) / this.size.plotWidth);
    const line = Math.floor((y * view.height) / this.size.plotHeight);
    if (column < 0 || column >= view.width || Number.isNaN(picture.total[column])) return null;
    const inside = line >= 0 && line < view.height;
    return {
      column,
      id: inside ? picture.ids[line * view.width + column] : NOTHING,
      event: picture.states[column] - 1,
      first: picture.firsts[column] - 1,
      last: picture.lasts[column] - 1,
      total: picture.total[column],
      reserved: picture.reserved[column],
      thin: { count: picture.thinCount[column], bytes: picture.thinBytes[column] },
      hidden: { count: picture.hiddenCount[column], bytes: picture.hiddenBytes[column] },
      pixel: view.height - 1 - line,
      bottom: view.y0,
      strip: y >= this.size.plotHeight,
      bytes: this.fromY(y),
      low: view.y0 + ((view.height - 1 - line) / view.height) * (view.y1 - view.y0),
      high: view.y0 + ((view.height - line) / view.height) * (view.y1 - view.y0),
      scale: view.height / (view.y1 - view.y0),
    };
  }

  /** Levels measured beside the allocator, at an event: the sample before it. @param {number} event @returns {[string, number][]} */
  levels(event) {
    return this.context
      .facts(this.source)
      .levels.filter((one) => one.sampled)
      .map((one) => {
        const at = one.events.findLastIndex((begun) => begun <= event + 1);
        return [one.label, one.bytes[Math.max(at, 0)]];
      });
  }

  /** Where an allocation is drawn: for each column its pixels from above. @param {number} row */
  spans(row) {
    const { drawn } = this;
    if (!drawn) return [];
    if (
      this.outlined?.row === row &&
      this.outlined.ids === drawn.picture.ids &&
      this.outlined.states === drawn.picture.states
    ) {
      return this.outlined.spans;
    }
    const { ids, states } = drawn.picture;
    const { width } = drawn.view;
    const tops = new Int32Array(width).fill(-1);
    const bottoms = new Int32Array(width);
    for (let at = ids.indexOf(row); at >= 0; at = ids.indexOf(row, at + 1)) {
      const column = at % width;
      const line = (at - column) / width;
      if (tops[column] < 0) tops[column] = line;
      bottoms[column] = line + 1;
    }
    const spans = [];
    for (let column = 0; column < width; column++) {
      if (tops[column] >= 0) spans.push({ column, top: tops[column], bottom: bottoms[column] });
    }
    this.outlined = { row, ids, states, spans };
    return spans;
  }

  /** Ticks of the byte axis. */
  byteTicks() {
    const { y0, y1 } = this.window();
    const step = byteStep(y0, y1, Math.max(2, Math.round(this.size.plotHeight / 56)));
    return byteTicks(y0, y1, step).map((value) => ({ value, label: byteTick(value, step, y1) }));
  }

  /** Words for those who do not see the picture. */
  words() {
    const facts = this.context.facts(this.source);
    return `${count(facts.events)} events, ${count(facts.allocations)} allocations, ${bandRows(facts).length} rows of bands`;
  }
}
