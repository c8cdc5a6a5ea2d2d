/** Draws everything above the pixels of a timeline: axes, curves, labels, cursor, ruler. Used on the screen and in exports. */

import { scaleLinear } from "d3-scale";
import { countTicks, drawByteAxis, drawHorizontalAxis, elapsedTicks } from "../../ui/axes.js";
import { drawSteps, FONT, setPen, setText } from "../../ui/canvas.js";
import { chartColors } from "../../ui/theme.js";
import { drawBands } from "./bands.js";
import { Labels } from "./labels.js";
import { drawLevels } from "./levels.js";
import { drawCursor, drawOomLabels, drawOomLines, drawPeak, drawRange, drawSelected } from "./marks.js";
import { drawDrag, drawRuler } from "./ruler.js";
import { MARGIN } from "./timeline.js";

/** Pixels between the plot and the strip of brief allocations. */
const STRIP_GAP = 7;

/**
 * @typedef {object} Layer what the functions that draw parts of the overlay share; the origin is the corner of the plot
 * @property {import("./timeline.js").Timeline} timeline
 * @property {CanvasRenderingContext2D} context
 * @property {import("../../ui/theme.js").ChartColors} colors
 * @property {Labels} labels
 */

/**
 * @param {import("./timeline.js").Timeline} timeline @param {CanvasRenderingContext2D} context in CSS pixels
 * @param {"screen"|"export"} target an export shows no pointer
 */
export function drawOverlay(timeline, context, target) {
  const { width, height, top, plotWidth, plotHeight } = timeline.size;
  const colors = chartColors(timeline.context.theme);
  if (target === "screen") context.clearRect(0, 0, width, height);
  drawAxes(timeline, context, colors);
  context.font = `11px ${FONT}`;
  const layer = { timeline, context, colors, labels: new Labels(context, plotWidth, colors.labelBackground) };
  context.save();
  context.translate(MARGIN.left, 0);
  drawBands(timeline, context, colors);
  context.translate(0, top);
  context.save();
  context.beginPath();
  context.rect(0, -top, plotWidth, plotHeight + top + MARGIN.strip);
  context.clip();
  drawCurves(layer);
  drawOomLines(layer);
  drawLevels(layer);
  drawStrip(layer);
  drawRange(layer);
  drawCursor(layer);
  drawSelected(layer);
  drawPeak(layer);
  drawOomLabels(layer);
  if (target === "screen") {
    drawPointer(layer);
    drawDrag(layer);
  }
  drawRuler(layer);
  context.restore();
  setText(context, colors.soft, "right");
  context.fillText("brief", -8, plotHeight + (MARGIN.strip + STRIP_GAP) / 2 + 1);
  context.restore();
}

/** @param {import("./timeline.js").Timeline} timeline @param {CanvasRenderingContext2D} context @param {import("../../ui/theme.js").ChartColors} colors */
function drawAxes(timeline, context, colors) {
  const { top, plotWidth: width, plotHeight: height } = timeline.size;
  const { x0, x1, y0, y1 } = timeline.window();
  const { left } = MARGIN;
  const x = scaleLinear([x0, x1], [left, left + width]);
  const time = timeline.context.axis() === "time";
  drawByteAxis(context, { left, top, width, height }, [y0, y1], (bytes) => top + timeline.toY(bytes), colors);
  const box = { left, top, width, height: height + MARGIN.strip };
  drawHorizontalAxis(context, box, time ? elapsedTicks(x) : countTicks(x), colors, time ? "time" : "event");
}

/** The maximum of allocated and reserved bytes in each column, and of reserved bytes with other settings. @param {Layer} layer */
function drawCurves({ timeline, context, colors }) {
  if (!timeline.drawn) return;
  const { picture } = timeline.drawn;
  const box = { left: 0, width: timeline.size.plotWidth };
  const y = (/** @type {number} */ bytes) => timeline.toY(bytes);
  setPen(context, colors.reserved, 1.25);
  drawSteps(context, picture.reserved, box, y);
  setPen(context, colors.replayed, 1.25, [6, 3]);
  drawSteps(context, picture.replayed, box, y);
  setPen(context, colors.total, 1.1);
  drawSteps(context, picture.total, box, y);
}

/** The strip below the plot: allocations that begin and end inside one column. @param {Layer} layer */
function drawStrip({ timeline, context, colors }) {
  if (!timeline.drawn) return;
  const { hiddenBytes, hiddenCount } = timeline.drawn.picture;
  const { plotHeight, plotWidth } = timeline.size;
  const pixel = plotWidth / hiddenCount.length;
  const height = MARGIN.strip - STRIP_GAP;
  let maximum = 0;
  for (const bytes of hiddenBytes) maximum = Math.max(maximum, bytes);
  context.fillStyle = colors.stripBackground;
  context.fillRect(0, plotHeight + STRIP_GAP, plotWidth, height);
  context.fillStyle = colors.strip;
  for (let column = 0; column < hiddenCount.length; column++) {
    if (!hiddenCount[column]) continue;
    const share = maximum ? Math.sqrt(hiddenBytes[column] / maximum) : 0;
    const bar = Math.max(1.5, share * height);
    context.fillRect(column * pixel, plotHeight + MARGIN.strip - bar, pixel, bar);
  }
}

/** @param {Layer} layer */
function drawPointer({ timeline, context, colors }) {
  if (!timeline.pointer || !timeline.drawn || timeline.drag) return;
  context.fillStyle = colors.pointer;
  context.fillRect(Math.round(timeline.pointer.x), 0, 1, timeline.size.plotHeight + MARGIN.strip);
}
