/** Draws device memory in use and capacity, which were measured in addition to the allocator, and labels the reserved curve. */

import { countWhile } from "../../data/collections.js";
import { size } from "../../data/units.js";
import { drawLine, setPen } from "../../ui/canvas.js";

const WIDTH = 1.25;
/** Pixels that a label beside the end of a curve needs. */
const LABEL_ROOM = 70;

/** @param {import("./overlay.js").Layer} layer */
export function drawLevels(layer) {
  const { timeline, context, colors } = layer;
  const { plotWidth } = timeline.size;
  const { y0, y1 } = timeline.window();
  const { total, levels } = timeline.context.facts(timeline.source);
  if (total !== null && total > y1) {
    edgeLabel(layer, `capacity ${size(total)} ↑`, 4, colors.capacity);
  } else if (total !== null && total >= y0) {
    const y = Math.round(timeline.toY(total)) + 0.5;
    setPen(context, colors.capacity, WIDTH, [6, 4]);
    drawLine(context, 0, y, plotWidth, y);
    edgeLabel(layer, `capacity ${size(total)}`, y, colors.capacity);
  }
  for (const level of levels) {
    if (level.low > y1) edgeLabel(layer, `${level.label} ${size(level.top)} ↑`, 4, colors.device);
    else drawLevel(layer, level);
  }
  const curve = timeline.drawn?.picture.reserved ?? [];
  const end = curve.findLastIndex((bytes) => !Number.isNaN(bytes));
  if (curve[end] >= y0 && curve[end] <= y1)
    endLabel(
      layer,
      "reserved",
      ((end + 1) / curve.length) * plotWidth,
      timeline.toY(curve[end]),
      colors.reserved,
      true,
    );
}

/** @param {import("./overlay.js").Layer} layer @param {import("../engine/overview.js").Level} level */
function drawLevel(layer, level) {
  const { timeline, context, colors } = layer;
  const { plotWidth } = timeline.size;
  const places = timeline.context.axis() === "time" ? level.time : level.events;
  const { x0, x1 } = timeline.window();
  const pixelOf = (/** @type {number} */ i) => Math.round(timeline.toX(places[i]));
  const begin = Math.max(countWhile(places.length, (i) => places[i] < x0) - 1, 0);
  const end = Math.min(countWhile(places.length, (i) => places[i] <= x1) + 1, places.length);
  // Memory outside PyTorch is a part of the memory in use on the device
  const dash = level.label.startsWith("outside") ? [5, 3] : [];
  setPen(context, colors.device, WIDTH, level.sampled ? dash : [2, 3]);
  context.beginPath();
  let last = 0;
  let lastX = plotWidth;
  for (let i = begin; i < end; ) {
    const x = pixelOf(i);
    let maximum = level.bytes[i];
    for (i++; i < end && pixelOf(i) === x; i++) maximum = Math.max(maximum, level.bytes[i]);
    context.lineTo(x, timeline.toY(maximum));
    if (x > plotWidth && last) continue;
    last = maximum;
    lastX = x;
  }
  context.stroke();
  const text = `${level.label}${level.sampled ? " (sampled)" : " (before and after)"}`;
  endLabel(layer, text, lastX, timeline.toY(last), colors.device);
}

/**
 * Label a curve beside its end if there is room, else at the right edge of the plot.
 * @param {import("./overlay.js").Layer} layer @param {string} text @param {number} x @param {number} y @param {string} color
 * @param {boolean} [short] the text fits into the usual room
 */
function endLabel(layer, text, x, y, color, short = false) {
  const { labels, timeline } = layer;
  const limit = timeline.size.plotWidth - LABEL_ROOM;
  const fits = short
    ? x < limit
    : labels.extent(text, x + 8, "left")[1] < limit && labels.isFree(text, x + 8, y, "left");
  if (fits) labels.draw(text, x + 8, y, color, "left");
  else edgeLabel(layer, text, y, color);
}

/** @param {import("./overlay.js").Layer} layer @param {string} text @param {number} y @param {string} color */
function edgeLabel({ labels, timeline }, text, y, color) {
  const x = timeline.size.plotWidth - 6;
  let position = Math.min(Math.max(y - 8, 8), timeline.size.plotHeight - 8);
  while (!labels.isFree(text, x, position, "right")) position += 14;
  labels.draw(text, x, position, color, "right");
}
