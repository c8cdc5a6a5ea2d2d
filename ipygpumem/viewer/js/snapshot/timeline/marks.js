/** Draws the peak, out-of-memory events, the cursor, the range and the selected allocation. */

import { count, fine, size } from "../../data/units.js";
import { drawDot, drawLine, setPen } from "../../ui/canvas.js";
import { MARGIN } from "./timeline.js";

/** Pixels that the label of an out-of-memory event takes up. */
const OOM_LABEL = 190;

/** @typedef {import("./overlay.js").Layer} Layer */

/** The out-of-memory events in view. @param {import("./timeline.js").Timeline} timeline */
function visibleOoms(timeline) {
  const { context, source, size } = timeline;
  const time = context.axis() === "time";
  return context
    .facts(source)
    .ooms.map((oom) => ({ x: timeline.toX(time ? (oom.time ?? 0) : oom.event + 0.5), requested: oom.requested }))
    .filter(({ x }) => x >= 0 && x <= size.plotWidth);
}

/** @param {Layer} layer */
export function drawOomLines({ timeline, context, colors }) {
  setPen(context, colors.oom, 1.25);
  let previous = -1; // one line per pixel
  for (const { x } of visibleOoms(timeline)) {
    if (Math.round(x) === previous) continue;
    previous = Math.round(x);
    drawLine(context, x, 0, x, timeline.size.plotHeight);
  }
}

/** Label out-of-memory events, several close ones together, where no other label is. @param {Layer} layer */
export function drawOomLabels({ timeline, colors, labels }) {
  const { plotHeight, plotWidth } = timeline.size;
  /** @type {{x: number, end: number, requested: number, times: number}[]} */
  const groups = [];
  for (const { x, requested } of visibleOoms(timeline)) {
    const group = groups.at(-1);
    if (group && x - group.end < OOM_LABEL) {
      group.times++;
      group.end = x;
    } else {
      groups.push({ x, end: x, requested, times: 1 });
    }
  }
  for (const { x, requested, times } of groups) {
    const align = x > plotWidth - OOM_LABEL ? "right" : "left";
    const from = align === "right" ? x - 8 : x + 8;
    const text = times > 1 ? `out of memory ${count(times)} times` : `out of memory: ${fine(requested)}`;
    let y = 12;
    while (!labels.isFree(text, from, y, align) && y < plotHeight) y += 4;
    if (y < plotHeight) labels.draw(text, from, y, colors.oom, align);
  }
}

/** @param {Layer} layer */
export function drawRange({ timeline, context, colors }) {
  const { range, source } = timeline.context.now;
  const first = range && timeline.places.get(range[0]);
  const last = range && timeline.places.get(range[1]);
  if (!first || !last || timeline.source !== source) return;
  const from = timeline.toX(first[0]);
  const to = timeline.toX(last[1]);
  const { plotHeight } = timeline.size;
  context.fillStyle = colors.range;
  context.fillRect(from, 0, to - from, plotHeight);
  context.fillStyle = colors.accent;
  context.fillRect(from - 0.5, 0, 1, plotHeight);
  context.fillRect(to - 0.5, 0, 1, plotHeight);
}

/** @param {Layer} layer */
export function drawCursor({ timeline, context, colors }) {
  const { event, source } = timeline.context.now;
  const place = timeline.places.get(timeline.context.event(timeline.source));
  if (event === null || source !== timeline.source || !place) return;
  const { plotHeight, plotWidth } = timeline.size;
  const [from, to] = place.map((x) => timeline.toX(x));
  if (to < 0 || from > plotWidth) return;
  if (to - from > 3) {
    context.fillStyle = colors.range;
    context.fillRect(from, 0, to - from, plotHeight);
  }
  const x = Math.round(from) + 0.5;
  setPen(context, colors.accent, 1);
  drawLine(context, x, 0, x, plotHeight + MARGIN.strip);
  context.fillStyle = colors.accent;
  context.beginPath();
  context.moveTo(x - 5, 0);
  context.lineTo(x + 5, 0);
  context.lineTo(x, 6);
  context.fill();
}

/** Outline the selected allocation. @param {Layer} layer */
export function drawSelected({ timeline, context, colors }) {
  const { row, source } = timeline.context.now;
  if (row === null || source !== timeline.source || !timeline.drawn) return;
  const { view } = timeline.drawn;
  const spans = timeline.spans(row);
  if (!spans.length) return;
  const width = timeline.size.plotWidth / view.width;
  const height = timeline.size.plotHeight / view.height;
  context.beginPath();
  for (const { column, top, bottom } of spans)
    context.rect(column * width, top * height, width, (bottom - top) * height);
  context.fillStyle = colors.selection;
  context.fill();
  setPen(context, colors.peak, 1.25);
  context.beginPath();
  let previous = { column: -2, top: 0, bottom: 0 };
  for (const span of spans) {
    const x = span.column * width;
    const joined = previous.column === span.column - 1;
    for (const edge of /** @type {const} */ (["top", "bottom"])) {
      const y = span[edge] * height;
      context.moveTo(x, (joined ? previous[edge] : span.top) * height);
      context.lineTo(x, joined ? y : span.bottom * height);
      context.moveTo(x, y);
      context.lineTo(x + width, y);
    }
    previous = span;
  }
  const end = (previous.column + 1) * width;
  context.moveTo(end, previous.top * height);
  context.lineTo(end, previous.bottom * height);
  context.stroke();
}

/** @param {Layer} layer */
export function drawPeak({ timeline, context, colors, labels }) {
  const { peak } = timeline.context.facts(timeline.source);
  const place = timeline.places.get(peak.event);
  if (!place || !peak.bytes) return;
  const { plotWidth, plotHeight } = timeline.size;
  const x = timeline.toX((place[0] + place[1]) / 2);
  const y = timeline.toY(peak.bytes);
  if (x < -1 || x > plotWidth + 1 || y < -1 || y > plotHeight) return;
  drawDot(context, x, y, colors.peak, colors.background);
  const text = `peak ${size(peak.bytes)}`;
  const top = Math.max(y - 9, 9);
  const leftwards = x > plotWidth - 190 || (x > 90 && !labels.isFree(text, x + 10, top, "left"));
  labels.draw(text, leftwards ? x - 10 : x + 10, top, colors.peak, leftwards ? "right" : "left");
}
