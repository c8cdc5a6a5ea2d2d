/** The view for others: as a picture, as a table, as a link. */

import { count, size } from "../model/units.js";
import { download, h, s } from "./dom.js";
import { drawOverlay } from "./overlay.js";
import { ink } from "./theme.js";
import { places } from "./axes.js";
import { ROOM } from "./timeline.js";

const TITLE = 40;
const SCALE = 2;
const FONT = "system-ui, sans-serif";

export class Exporter {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    /** @type {import("./timeline.js").Timeline[]} */
    this.timelines = [];
    /** @type {() => {csv(): string|Promise<string>}|undefined} */
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

  /** All timelines on one canvas. */
  canvas() {
    const { context, timelines } = this;
    const width = timelines[0].size.width;
    const height = timelines.reduce((sum, one) => sum + one.size.height + TITLE, 8);
    const canvas = h("canvas", { width: width * SCALE, height: height * SCALE });
    const colours = ink(context.theme);
    const draw = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    draw.scale(SCALE, SCALE);
    draw.fillStyle = colours.ground;
    draw.fillRect(0, 0, width, height);
    let y = 0;
    for (const timeline of timelines) {
      draw.fillStyle = colours.text;
      draw.font = `600 13px ${FONT}`;
      draw.textAlign = "left";
      draw.textBaseline = "middle";
      draw.fillText(this.title(timeline.source), 12, y + TITLE / 2, width - 24);
      draw.imageSmoothingEnabled = false;
      draw.drawImage(
        timeline.picture,
        ROOM.left,
        y + TITLE + timeline.size.top,
        timeline.size.plotWidth,
        timeline.size.plotHeight,
      );
      const over = h("canvas", { width: width * SCALE, height: timeline.size.height * SCALE });
      const context2 = /** @type {CanvasRenderingContext2D} */ (over.getContext("2d"));
      context2.scale(SCALE, SCALE);
      drawOverlay(timeline, context2, "picture");
      draw.drawImage(over, 0, y + TITLE, width, timeline.size.height);
      this.axes(draw, timeline, y + TITLE, colours);
      y += timeline.size.height + TITLE;
    }
    return canvas;
  }

  /** @param {CanvasRenderingContext2D} draw @param {import("./timeline.js").Timeline} timeline @param {number} top @param {ReturnType<typeof ink>} colours */
  axes(draw, timeline, top, colours) {
    draw.font = `11px ${FONT}`;
    draw.fillStyle = colours.soft;
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    for (const { value, label } of timeline.byteTicks())
      draw.fillText(label, ROOM.left - 10, top + timeline.size.top + timeline.toY(value), ROOM.left - 12);
    const { ticks, format, scale } = places(timeline);
    draw.textAlign = "center";
    const y = top + timeline.size.top + timeline.size.plotHeight + ROOM.strip + 14;
    for (const tick of ticks) draw.fillText(format(tick), ROOM.left + scale(tick), y);
  }

  /** @returns {Promise<Blob>} */
  pngBlob() {
    return new Promise((settle, fail) =>
      this.canvas().toBlob((blob) => (blob ? settle(blob) : fail(new Error("no picture"))), "image/png"),
    );
  }

  async png() {
    download(this.name("png"), await this.pngBlob(), this.context.root);
  }

  /** Pixels as pixels, text and axes as text. */
  svgText() {
    const { context, timelines } = this;
    const colours = ink(context.theme);
    const width = timelines[0].size.width;
    const height = timelines.reduce((sum, one) => sum + one.size.height + TITLE, 8);
    const root = s("svg", {
      xmlns: "http://www.w3.org/2000/svg",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      "font-family": FONT,
      "font-size": 11,
    });
    root.append(s("rect", { width, height, fill: colours.ground }));
    let y = 0;
    for (const timeline of timelines) {
      const { top, plotWidth, plotHeight } = timeline.size;
      root.append(
        s(
          "text",
          { x: 12, y: y + TITLE / 2 + 4, "font-size": 13, "font-weight": 600, fill: colours.text },
          this.title(timeline.source),
        ),
      );
      const part = s("g", { transform: `translate(${ROOM.left},${y + TITLE + top})` });
      const box = { x: 0, y: 0, width: plotWidth, height: plotHeight, preserveAspectRatio: "none" };
      part.append(
        s("image", { ...box, href: timeline.picture.toDataURL("image/png"), style: "image-rendering:pixelated" }),
      );
      if (timeline.drawn) {
        const { picture, view } = timeline.drawn;
        for (const [values, colour] of /** @type {const} */ ([
          [picture.reserved, colours.reserved],
          [picture.total, colours.line],
        ])) {
          part.append(
            s("path", { d: path(timeline, values, view.width), fill: "none", stroke: colour, "stroke-width": 1.2 }),
          );
        }
      }
      for (const { value, label } of timeline.byteTicks()) {
        part.append(s("text", { x: -10, y: timeline.toY(value) + 4, "text-anchor": "end", fill: colours.soft }, label));
      }
      const { ticks, format, scale } = places(timeline);
      for (const tick of ticks) {
        part.append(
          s(
            "text",
            { x: scale(tick), y: plotHeight + ROOM.strip + 18, "text-anchor": "middle", fill: colours.soft },
            format(tick),
          ),
        );
      }
      root.append(part);
      y += timeline.size.height + TITLE;
    }
    return new XMLSerializer().serializeToString(root);
  }

  async svg() {
    download(this.name("svg"), new Blob([this.svgText()], { type: "image/svg+xml" }), this.context.root);
  }

  async csv() {
    const text = (await this.table()?.csv()) ?? "";
    // the mark tells spreadsheets that it is UTF-8
    download(this.name("csv"), new Blob(["\ufeff", text], { type: "text/csv" }), this.context.root);
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

/** @param {import("./timeline.js").Timeline} timeline @param {Float64Array} values @param {number} columns */
function path(timeline, values, columns) {
  const pixel = timeline.size.plotWidth / columns;
  let text = "";
  let last = Number.NaN;
  for (let column = 0; column < columns; column++) {
    const y = timeline.toY(values[column]);
    if (Number.isNaN(y) || y === last) continue;
    text += text ? `H${(column * pixel).toFixed(1)}V${y.toFixed(1)}` : `M0,${y.toFixed(1)}`;
    last = y;
  }
  return text ? `${text}H${timeline.size.plotWidth}` : "M0,0";
}
