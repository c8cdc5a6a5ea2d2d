/** Draws the ruler between two points, and the area of a drag. */

import { duration, plural, signed } from "../../data/units.js";
import { setPen } from "../../ui/canvas.js";

/**
 * @typedef {{x0: number, y0: number, x1: number, y1: number, keyed?: boolean, us?: number}} Ruler
 *   in units of the axes; keyed: it ends at the cursor; us: the time between both events, if the axis shows events
 */

/** @param {import("./overlay.js").Layer} layer */
export function drawDrag({ timeline, context, colors }) {
  const { drag } = timeline;
  if (!drag) return;
  const x = Math.min(drag.x0, drag.x1);
  const y = drag.kind === "box" ? Math.min(drag.y0, drag.y1) : 0;
  const width = Math.abs(drag.x1 - drag.x0);
  const height = drag.kind === "box" ? Math.abs(drag.y1 - drag.y0) : timeline.size.plotHeight;
  context.fillStyle = colors.range;
  setPen(context, colors.accent, 1);
  context.fillRect(x, y, width, height);
  context.strokeRect(x + 0.5, y + 0.5, width, height);
}

/** @param {import("./overlay.js").Layer} layer */
export function drawRuler({ timeline, context, colors, labels }) {
  const { ruler } = timeline;
  if (!ruler || timeline.drag) return;
  const [x0, x1] = [timeline.toX(ruler.x0), timeline.toX(ruler.x1)];
  const [y0, y1] = [timeline.toY(ruler.y0), timeline.toY(ruler.y1)];
  setPen(context, colors.accent, 1.25);
  context.beginPath();
  for (const [x, y] of [
    [x0, y0],
    [x1, y1],
  ]) {
    context.moveTo(x - 5, y);
    context.lineTo(x + 5, y);
    context.moveTo(x, y - 5);
    context.lineTo(x, y + 5);
  }
  context.moveTo(x0, y0);
  context.lineTo(x1, y0);
  context.lineTo(x1, y1);
  context.stroke();
  const y = Math.min(Math.max(y0 + (y1 < y0 ? 14 : -14), 10), timeline.size.plotHeight - 10);
  labels.draw(rulerText(timeline), (x0 + x1) / 2, y, colors.text, "center");
}

/** What a ruler measures. @param {import("./timeline.js").Timeline} timeline */
export function rulerText({ ruler, context }) {
  if (!ruler) return "";
  const { x0, x1, y0, y1, us } = ruler;
  const time = us === undefined ? "" : ` · ${duration(us)}`;
  const width = context.axis() === "time" ? duration(x1 - x0) : `${plural(Math.round(x1 - x0), "event")}${time}`;
  return `${width} · ${signed(y1 - y0)}`;
}
