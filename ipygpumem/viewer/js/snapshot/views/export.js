/** The view for others: as a picture, as a table, as a link. */

import { count, fine, size } from "../../data/units.js";
import { clipped, download, h } from "../../ui/dom.js";
import { drawOverlay } from "../timeline/overlay.js";
import { ink } from "../../ui/theme.js";
import { places } from "../timeline/axes.js";
import { SvgCanvas } from "../../ui/svg-canvas.js";
import { ROOM } from "../timeline/timeline.js";

const TITLE = 40;
const SCALE = 2;
const LEFT = 90;
const FONT = "system-ui, sans-serif";

export class Exporter {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    /** @type {import("../timeline/timeline.js").Timeline[]} */
    this.timelines = [];
    /** @type {() => {csv(): Promise<string|string[]>}|undefined} */
    this.table = () => undefined;
  }

  /** @param {string} kind */
  name(kind) {
    return `${
      this.context.files[0].name
        .replace(/\.(pickle|pkl|json|gz|xz)/g, "")
        .replace(/[^\w.-]+/g, "_")
        .slice(0, 80) || "snapshot"
    }.${kind}`;
  }

  /** What stands above a picture. @param {number} source */
  title(source) {
    const facts = this.context.facts(source);
    return `${this.context.files[source].name} · device ${facts.index} · peak ${size(facts.peak.bytes)} at event ${count(facts.peak.event)}`;
  }

  /** How large a picture is, and where the legend's entries stand. */
  async layout() {
    const { context, timelines } = this;
    const { width } = timelines[0].size;
    const below = timelines.reduce((sum, one) => sum + one.size.height + TITLE, 8);
    const legends = await Promise.all(timelines.map(({ source }) => context.legend(source)));
    const [legend] = legends;
    const swatches = context.swatches(legend);
    const measure = /** @type {CanvasRenderingContext2D} */ (h("canvas").getContext("2d"));
    measure.font = `12px ${FONT}`;
    let x = LEFT;
    let y = below + 12;
    const entries = [];
    for (const [number, { label }] of legend.classes.entries()) {
      const each = legends.map(({ classes }) => classes[number] ?? { bytes: 0, count: 0 });
      if (context.now.hidden.includes(number) || !each.some((one) => one.count)) continue;
      // of many files the picture has no room for what each holds
      const held = context.crowd ? "" : each.map((one) => fine(one.bytes)).join(" · ");
      const named = legends.length > 1 && legend.classes[number].place === -1 ? "others" : label;
      const text = `${clipped(measure, named, width / 2)}  ${held}`;
      const wide = measure.measureText(text).width + 36;
      if (x > LEFT && x + wide > width) {
        x = LEFT;
        y += 20;
      }
      entries.push({ x, y, text, color: swatches[number] });
      x += wide;
    }
    return { width, height: y + 18, entries };
  }

  /**
   * All timelines, one below the other, and the legend.
   * @param {CanvasRenderingContext2D} draw @param {Awaited<ReturnType<Exporter["layout"]>>} layout
   */
  paint(draw, { width, height, entries }) {
    const colors = ink(this.context.theme);
    draw.fillStyle = colors.ground;
    draw.fillRect(0, 0, width, height);
    let y = 0;
    for (const timeline of this.timelines) {
      const { top, plotWidth, plotHeight } = timeline.size;
      draw.fillStyle = colors.text;
      draw.font = `600 13px ${FONT}`;
      draw.textAlign = "left";
      draw.textBaseline = "middle";
      draw.fillText(this.title(timeline.source), 12, y + TITLE / 2, width - 24);
      draw.imageSmoothingEnabled = false;
      draw.drawImage(timeline.picture, ROOM.left, y + TITLE + top, plotWidth, plotHeight);
      draw.save();
      draw.translate(0, y + TITLE);
      drawOverlay(timeline, draw, "picture");
      draw.restore();
      this.axes(draw, timeline, y + TITLE, colors);
      y += timeline.size.height + TITLE;
    }
    draw.font = `12px ${FONT}`;
    draw.textAlign = "left";
    draw.textBaseline = "middle";
    for (const { x, y, text, color } of entries) {
      draw.fillStyle = color;
      draw.fillRect(x, y - 5, 10, 10);
      draw.fillStyle = colors.text;
      draw.fillText(text, x + 16, y);
    }
    draw.fillStyle = colors.soft;
    draw.textAlign = "right";
    if (entries.length && !this.context.crowd) draw.fillText("at the peak:", LEFT - 8, entries[0].y);
  }

  /** @param {CanvasRenderingContext2D} draw @param {import("../timeline/timeline.js").Timeline} timeline @param {number} top @param {ReturnType<typeof ink>} colors */
  axes(draw, timeline, top, colors) {
    draw.font = `11px ${FONT}`;
    draw.fillStyle = colors.soft;
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    for (const { value, label } of timeline.byteTicks())
      draw.fillText(label, ROOM.left - 10, top + timeline.size.top + timeline.toY(value), ROOM.left - 12);
    const { ticks, format, scale } = places(timeline);
    draw.textAlign = "center";
    const y = top + timeline.size.top + timeline.size.plotHeight + ROOM.strip + 14;
    for (const tick of ticks) draw.fillText(format(tick), ROOM.left + scale(tick), y);
    draw.textAlign = "right";
    draw.fillText(this.context.axis() === "time" ? "time" : "event", ROOM.left + timeline.size.plotWidth, y);
  }

  /** @returns {Promise<Blob>} */
  async pngBlob() {
    const layout = await this.layout();
    const canvas = h("canvas", { width: layout.width * SCALE, height: layout.height * SCALE });
    const draw = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    draw.scale(SCALE, SCALE);
    this.paint(draw, layout);
    return new Promise((settle, fail) =>
      canvas.toBlob((blob) => (blob ? settle(blob) : fail(new Error("no picture"))), "image/png"),
    );
  }

  async png() {
    download(this.name("png"), await this.pngBlob(), this.context.root);
  }

  /** Pixels as pixels, text and lines as text and lines. */
  async svgText() {
    const layout = await this.layout();
    const canvas = new SvgCanvas(layout.width, layout.height);
    this.paint(/** @type {any} */ (canvas), layout);
    return new XMLSerializer().serializeToString(canvas.root);
  }

  async svg() {
    download(this.name("svg"), new Blob([await this.svgText()], { type: "image/svg+xml" }), this.context.root);
  }

  async csv() {
    const text = (await this.table()?.csv()) ?? "";
    // the mark tells spreadsheets that it is UTF-8
    download(this.name("csv"), new Blob(["\ufeff", ...[text].flat()], { type: "text/csv" }), this.context.root);
  }

  async link() {
    const text = location.href;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = h("textarea", { class: "off" }, text);
      this.context.root.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    this.context.say("The link is copied");
  }
}
