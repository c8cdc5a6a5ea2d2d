/** Exports the view as an image, a table or a link. */

import { count, fine, size } from "../../data/units.js";
import { clipText, context2d, FONT, pngOf, setText } from "../../ui/canvas.js";
import { download, h } from "../../ui/dom.js";
import { SvgCanvas } from "../../ui/svg-canvas.js";
import { chartColors } from "../../ui/theme.js";
import { drawOverlay } from "../timeline/overlay.js";
import { MARGIN } from "../timeline/timeline.js";
import { reservedCurves } from "./legend.js";

const TITLE = 40; // height
const LEGEND_LEFT = 90;
const LEGEND_ROW = 20;

export class Exporter {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    /** @type {import("../timeline/timeline.js").Timeline[]} */
    this.timelines = [];
    /** The panel whose table is exported. @type {() => {csv(): Promise<string|string[]>}|undefined} */
    this.table = () => undefined;
  }

  /** @param {string} extension @param {Blob|string[]} content */
  save(extension, content) {
    download(this.context.files[0].name, extension, content, this.context.root);
  }

  /** The size of the image and the positions of the legend's entries. */
  async layout() {
    const { context, timelines } = this;
    const { width } = timelines[0].size;
    const bottom = timelines.reduce((sum, timeline) => sum + timeline.size.height + TITLE, 8);
    const legends = await Promise.all(timelines.map(({ source }) => context.legend(source)));
    const [legend] = legends;
    const swatches = context.swatches(legend);
    const measure = context2d(h("canvas"));
    measure.font = `12px ${FONT}`;
    let x = LEGEND_LEFT;
    let y = bottom + 12;
    /** @type {{x: number, y: number, text: string, color: string}[]} */
    const entries = [];
    const add = (/** @type {string} */ name, /** @type {string} */ bytes, /** @type {string} */ color) => {
      const text = `${clipText(measure, name, width / 2)}  ${bytes}`;
      const entryWidth = measure.measureText(text).width + 36;
      if (x > LEGEND_LEFT && x + entryWidth > width) {
        x = LEGEND_LEFT;
        y += LEGEND_ROW;
      }
      entries.push({ x, y, text, color });
      x += entryWidth;
    };
    for (const [number, { label, place }] of legend.classes.entries()) {
      const classes = legends.map((legend) => legend.classes[number] ?? { bytes: 0, count: 0 });
      if (context.now.hidden.includes(number) || !classes.some((entry) => entry.count)) continue;
      // With many files there is no room for the bytes of each
      const bytes = context.crowded ? "" : classes.map((entry) => fine(entry.bytes)).join(" · ");
      const name = legends.length > 1 && place === -1 ? "others" : label;
      add(name, bytes, swatches[number]);
    }
    const colors = chartColors(context.theme);
    for (const { kind, text, bytes } of reservedCurves(context)) add(text, context.crowded ? "" : bytes, colors[kind]);
    return { width, height: y + 18, entries };
  }

  /**
   * Draw all timelines, one below the other, and the legend.
   * @param {CanvasRenderingContext2D} canvas @param {Awaited<ReturnType<Exporter["layout"]>>} layout
   */
  paint(canvas, { width, height, entries }) {
    const { context } = this;
    const colors = chartColors(context.theme);
    canvas.fillStyle = colors.background;
    canvas.fillRect(0, 0, width, height);
    let y = 0;
    for (const timeline of this.timelines) {
      const { top, plotWidth, plotHeight } = timeline.size;
      const { index, peak } = context.facts(timeline.source);
      const title = `${context.files[timeline.source].name} · device ${index} · peak ${size(peak.bytes)} at event ${count(peak.event)}`;
      setText(canvas, colors.text, "left", "600 13px");
      canvas.fillText(title, 12, y + TITLE / 2, width - 24);
      canvas.imageSmoothingEnabled = false;
      canvas.drawImage(timeline.picture, MARGIN.left, y + TITLE + top, plotWidth, plotHeight);
      canvas.save();
      canvas.translate(0, y + TITLE);
      drawOverlay(timeline, canvas, "export");
      canvas.restore();
      y += timeline.size.height + TITLE;
    }
    for (const { x, y, text, color } of entries) {
      canvas.fillStyle = color;
      canvas.fillRect(x, y - 5, 10, 10);
      setText(canvas, colors.text, "left", "12px");
      canvas.fillText(text, x + 16, y);
    }
    setText(canvas, colors.soft, "right", "12px");
    if (entries.length && !context.crowded) canvas.fillText("at the peak:", LEGEND_LEFT - 8, entries[0].y);
  }

  async png() {
    const layout = await this.layout();
    this.save("png", await pngOf(layout.width, layout.height, (canvas) => this.paint(canvas, layout)));
  }

  /** Allocations are embedded as an image; text and lines remain text and lines. */
  async svg() {
    const layout = await this.layout();
    const canvas = new SvgCanvas(layout.width, layout.height);
    this.paint(/** @type {any} */ (canvas), layout);
    this.save("svg", [new XMLSerializer().serializeToString(canvas.root)]);
  }

  async csv() {
    const text = (await this.table()?.csv()) ?? "";
    // The byte order mark marks the file as UTF-8 for spreadsheets
    this.save("csv", ["\ufeff", ...[text].flat()]);
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
    this.context.announce("Link copied");
  }
}
