/** The axes of a timeline. */

import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { count, elapsed } from "../../data/units.js";
import { ROOM } from "./timeline.js";

/** @param {import("./timeline.js").Timeline} timeline */
export function drawAxes(timeline) {
  const { top, plotWidth, plotHeight } = timeline.size;
  const { y0, y1 } = timeline.window();
  const root = select(timeline.axes);
  const labels = timeline.byteTicks();
  const texts = new Map(labels.map((one) => [one.value, one.label]));
  const y = scaleLinear([y0, y1], [plotHeight, 0]);
  group(root, "left")
    .attr("transform", `translate(${ROOM.left},${top})`)
    .call(
      axisLeft(y)
        .tickValues(labels.map((one) => one.value))
        .tickFormat((value) => texts.get(Number(value)) ?? "")
        .tickSize(4)
        .tickPadding(6),
    )
    .selectAll("text")
    // single bytes of many GiB: a long number keeps to its margin
    .attr("textLength", (/** @type {any} */ value) => ((texts.get(value)?.length ?? 0) > 12 ? ROOM.left - 12 : null))
    .attr("lengthAdjust", "spacingAndGlyphs");
  const { scale, ticks, format } = places(timeline);
  group(root, "bottom")
    .attr("transform", `translate(${ROOM.left},${top + plotHeight + ROOM.strip})`)
    .call(axisBottom(scale).tickValues(ticks).tickFormat(format).tickSize(4).tickPadding(5).tickSizeOuter(0));
  root.selectAll("g.left .domain").remove();
  group(root, "unit")
    .attr("transform", `translate(${ROOM.left + plotWidth},${top + plotHeight + ROOM.strip + 17})`)
    .selectAll("text")
    .data([timeline.context.axis() === "time" ? "time" : "event"])
    .join("text")
    .attr("class", "unit")
    .attr("text-anchor", "end")
    .text((/** @type {any} */ text) => text);
}

/** Scale and ticks of the horizontal axis. @param {import("./timeline.js").Timeline} timeline */
export function places(timeline) {
  const { plotWidth } = timeline.size;
  const { x0, x1 } = timeline.window();
  const scale = scaleLinear([x0, x1], [0, plotWidth]);
  const timed = timeline.context.axis() === "time";
  const wanted = Math.max(2, Math.round(plotWidth / 110));
  let ticks = scale.ticks(wanted);
  if (!timed) ticks = ticks.filter((tick) => Number.isInteger(tick) && tick >= 0);
  // the last one stands where the axis has its name
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : x1 - x0;
  const format = (/** @type {any} */ tick) => (timed ? elapsed(Number(tick), step) : count(Number(tick)));
  ticks = ticks.filter((tick) => scale(tick) + 3.4 * format(tick).length < plotWidth - 36);
  return { scale, ticks, format };
}

/** @param {any} root @param {string} name */
function group(root, name) {
  const found = root.selectAll(`g.${name}`).data([name]).join("g").attr("class", name);
  return found.attr("font-family", null).attr("font-size", null);
}
