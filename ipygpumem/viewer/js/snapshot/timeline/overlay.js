/** What lies over the pixels of a timeline: curves, lines, marks, cursor, rulers. On the screen, and in a picture of it. */

import { count, duration, fine, plural, signed, size } from "../../data/units.js";
import { drawBands } from "./bands.js";
import { ink } from "../../ui/theme.js";
import { ROOM } from "./timeline.js";

/** @typedef {{x0: number, y0: number, x1: number, y1: number, keyed?: boolean, us?: number}} Ruler in units of the axes; keyed: it ends at the cursor;
 *   us: on the axis by event, the time between both events */

/**
 * @param {import("./timeline.js").Timeline} timeline @param {CanvasRenderingContext2D} context CSS pixels
 * @param {"screen"|"picture"} where a picture has no pointer
 */
export function drawOverlay(timeline, context, where) {
  const { width, height, top, plotWidth, plotHeight } = timeline.size;
  const colors = ink(timeline.context.theme);
  if (where === "screen") context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  tags = [];
  room = plotWidth;
  context.save();
  context.translate(ROOM.left, 0);
  drawBands(timeline, context, { ink: colors.text, soft: colors.soft, bands: colors.bands });
  context.translate(0, top);
  context.save();
  context.beginPath();
  context.rect(0, -top, plotWidth, plotHeight + top + ROOM.strip);
  context.clip();
  grid(timeline, context, colors);
  curves(timeline, context, colors);
  ooms(timeline, context, colors, false);
  levels(timeline, context, colors);
  strip(timeline, context, colors);
  range(timeline, context, colors);
  cursor(timeline, context, colors);
  selected(timeline, context, colors);
  peak(timeline, context, colors);
  ooms(timeline, context, colors, true);
  if (where === "screen") {
    hover(timeline, context, colors);
    dragged(timeline, context, colors);
  }
  ruler(timeline, context, colors);
  context.restore();
  context.fillStyle = colors.soft;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText("brief", -8, plotHeight + (ROOM.strip + GAP) / 2 + 1);
  context.restore();
}

/** Pixels that the words of an oom event take. */
const WORDS = 190;
/** Between the plot and the strip. */
const GAP = 7;
/** Where words stand already: from, to, height. @type {[number, number, number][]} */
let tags = [];
/** How wide the plot is in which they stand. */
let room = 0;

/** @typedef {ReturnType<typeof ink>} Ink @typedef {CanvasRenderingContext2D} Canvas @typedef {import("./timeline.js").Timeline} Timeline */

/** @param {Timeline} timeline @param {Canvas} context @param {Ink} colors */
function grid(timeline, context, colors) {
  context.strokeStyle = colors.grid;
  context.lineWidth = 1;
  context.beginPath();
  for (const { value } of timeline.byteTicks()) {
    const y = Math.round(timeline.toY(value)) + 0.5;
    context.moveTo(0, y);
    context.lineTo(timeline.size.plotWidth, y);
  }
  context.stroke();
}

/** Allocated and reserved: at each column the most inside it. @param {Timeline} timeline @param {Canvas} context @param {Ink} colors */
function curves(timeline, context, colors) {
  const { drawn } = timeline;
  if (!drawn) return;
  const { view, picture } = drawn;
  step(timeline, context, picture.reserved, view.width, colors.reserved, 1.25);
  step(timeline, context, picture.total, view.width, colors.line, 1.1);
}

/** @param {Timeline} timeline @param {Canvas} context @param {Float64Array} values @param {number} columns @param {string} color @param {number} weight */
function step(timeline, context, values, columns, color, weight) {
  const pixel = timeline.size.plotWidth / columns;
  context.strokeStyle = color;
  context.lineWidth = weight;
  context.lineJoin = "round";
  context.beginPath();
  let last = Number.NaN;
  let steps = 0;
  for (let column = 1; column < columns; column++) if (values[column] !== values[column - 1]) steps++;
  // where nearly each column has a step of its own, the risers would hide what they bound
  const dense = steps > columns / 4;
  for (let column = 0; column < columns; column++) {
    const value = values[column];
    if (Number.isNaN(value)) continue;
    const y = timeline.toY(value);
    if (Number.isNaN(last)) context.moveTo(column * pixel, y);
    else if (y !== last) {
      context.lineTo(column * pixel, last);
      if (dense && Math.abs(y - last) > 24) context.moveTo(column * pixel, y);
      else context.lineTo(column * pixel, y);
    }
    last = y;
  }
  const end = values.findLastIndex((value) => !Number.isNaN(value)) + 1;
  if (!Number.isNaN(last)) context.lineTo(end * pixel, last);
  context.stroke();
}

/** Device memory in use, capacity, and what reserved is called. @param {Timeline} timeline @param {Canvas} context @param {Ink} colors */
function levels(timeline, context, colors) {
  const facts = timeline.context.facts(timeline.source);
  const { plotWidth } = timeline.size;
  const label = (/** @type {string} */ text, /** @type {number} */ y, /** @type {string} */ color) => {
    let at = Math.min(Math.max(y - 8, 8), timeline.size.plotHeight - 8);
    while (!free(context, text, plotWidth - 6, at, "right")) at += 14;
    tag(context, text, plotWidth - 6, at, color, colors, "right");
  };
  const { y0, y1 } = timeline.window();
  if (facts.total !== null) {
    if (facts.total <= y1 && facts.total >= y0) {
      horizontal(timeline, context, facts.total, colors.capacity, [6, 4]);
      label(`capacity ${size(facts.total)}`, timeline.toY(facts.total), colors.capacity);
    } else if (facts.total > y1) {
      label(`capacity ${size(facts.total)} ↑`, 4, colors.capacity);
    }
  }
  for (const level of facts.levels) {
    if (level.low > y1) {
      label(`${level.label} ${size(level.top)} ↑`, 4, colors.device);
      continue;
    }
    context.strokeStyle = colors.device;
    // what is outside of PyTorch is a part of what the device has given away
    context.setLineDash(level.sampled ? (level.label.startsWith("outside") ? [5, 3] : []) : [2, 3]);
    context.lineWidth = 1.25;
    context.beginPath();
    // there may be a hundred thousand samples: of those in one pixel the highest is drawn
    const { x0, x1 } = timeline.window();
    const places = timeline.context.axis() === "time" ? level.time : level.events;
    let drawn = 0;
    let last = 0;
    let end = plotWidth;
    for (let i = 0; i < places.length; ) {
      const x = Math.round(((places[i] - x0) / (x1 - x0)) * plotWidth);
      let most = level.bytes[i];
      for (i++; i < places.length && Math.round(((places[i] - x0) / (x1 - x0)) * plotWidth) === x; i++)
        most = Math.max(most, level.bytes[i]);
      context[drawn++ ? "lineTo" : "moveTo"](x, timeline.toY(most));
      if (x > plotWidth && drawn > 1) continue;
      last = most;
      end = x;
    }
    context.stroke();
    context.setLineDash([]);
    const words = `${level.label}${level.sampled ? " (sampled)" : " (before and after)"}`;
    const y = timeline.toY(last);
    // beside its end, where there is room
    if (ends(context, words, end + 8, "left")[1] < plotWidth - 70 && free(context, words, end + 8, y, "left"))
      tag(context, words, end + 8, y, colors.device, colors, "left");
    else label(words, y, colors.device);
  }
  const curve = timeline.drawn?.picture.reserved ?? [];
  const end = curve.findLastIndex((one) => !Number.isNaN(one));
  if (curve[end] >= y0 && curve[end] <= y1) {
    const x = ((end + 1) / curve.length) * plotWidth;
    const y = timeline.toY(curve[end]);
    // beside its end, where a longer file leaves room
    if (x < plotWidth - 70) tag(context, "reserved", x + 8, y, colors.reserved, colors, "left");
    else label("reserved", y, colors.reserved);
  }
}

/** @param {Timeline} timeline @param {Canvas} context @param {number} bytes @param {string} color @param {number[]} dash */
function horizontal(timeline, context, bytes, color, dash) {
  context.strokeStyle = color;
  context.lineWidth = 1.25;
  context.setLineDash(dash);
  context.beginPath();
  const y = Math.round(timeline.toY(bytes)) + 0.5;
  context.moveTo(0, y);
  context.lineTo(timeline.size.plotWidth, y);
  context.stroke();
  context.setLineDash([]);
}

/** Text on a quiet ground. @param {Canvas} context @param {string} text @param {number} x @param {number} y @param {string} color @param {Ink} colors @param {"left"|"right"|"center"} align */
function tag(context, text, x, y, color, colors, align) {
  context.textBaseline = "middle";
  context.textAlign = "left";
  const [left, right] = ends(context, text, x, align);
  tags.push([left, right, y]);
  context.fillStyle = colors.veil;
  context.beginPath();
  context.roundRect(left - 4, y - 8, right - left + 8, 16, 3);
  context.fill();
  context.fillStyle = color;
  context.fillText(text, left, y + 0.5);
}

/** From where to where a text goes: into a narrow plot as far as it can. @param {Canvas} context @param {string} text @param {number} x @param {string} align @returns {[number, number]} */
function ends(context, text, x, align) {
  const { width } = context.measureText(text);
  const wish = align === "right" ? x - width : align === "center" ? x - width / 2 : x;
  const left = Math.max(4, Math.min(wish, room - width - 4));
  return [left, left + width];
}

/** Whether no other words stand there. @param {Canvas} context @param {string} text @param {number} x @param {number} y @param {string} align */
function free(context, text, x, y, align) {
  const [left, right] = ends(context, text, x, align);
  return tags.every(([from, to, at]) => right + 6 < from || to + 6 < left || Math.abs(at - y) >= 14);
}

/** Lines, and later the words: these give way to all others. @param {Timeline} timeline @param {Canvas} context @param {Ink} colors @param {boolean} words */
function ooms(timeline, context, colors, words) {
  const facts = timeline.context.facts(timeline.source);
  const { plotHeight, plotWidth } = timeline.size;
  let last = -1; // one line in each column of pixels
  /** @type {{x: number, end: number, asked: number, times: number}[]} */
  const near = []; // those that lie where one has its words
  for (const one of facts.ooms) {
    const x = timeline.toX(timeline.context.axis() === "time" ? (one.time ?? 0) : one.event + 0.5);
    if (x < 0 || x > plotWidth) continue;
    const before = near.at(-1);
    if (before && x - before.end < WORDS) {
      before.times++;
      before.end = x;
    } else {
      near.push({ x, end: x, asked: one.asked, times: 1 });
    }
    if (!words && Math.round(x) !== last) {
      last = Math.round(x);
      context.strokeStyle = colors.oom;
      context.lineWidth = 1.25;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, plotHeight);
      context.stroke();
    }
  }
  for (const { x, asked, times } of words ? near : []) {
    const align = x > plotWidth - WORDS ? "right" : "left";
    const from = align === "right" ? x - 8 : x + 8;
    const text = times > 1 ? `out of memory ${count(times)} times` : `out of memory: ${fine(asked)} asked`;
    let y = 12;
    while (!free(context, text, from, y, align) && y < plotHeight) y += 4;
    if (y < plotHeight) tag(context, text, from, y, colors.oom, colors, align);
  }
}

/** The strip below: what lives inside one column. @param {Timeline} timeline @param {Canvas} context @param {Ink} colors */
function strip(timeline, context, colors) {
  const { drawn } = timeline;
  if (!drawn) return;
  const { hiddenBytes, hiddenCount } = drawn.picture;
  const { plotHeight, plotWidth } = timeline.size;
  const pixel = plotWidth / drawn.view.width;
  let most = 0;
  for (const bytes of hiddenBytes) most = Math.max(most, bytes);
  context.fillStyle = colors.stripGround;
  context.fillRect(0, plotHeight + GAP, plotWidth, ROOM.strip - GAP);
  context.fillStyle = colors.strip;
  for (let column = 0; column < drawn.view.width; column++) {
    if (!hiddenCount[column]) continue;
    const share = most ? Math.sqrt(hiddenBytes[column] / most) : 0;
    const tall = Math.max(1.5, share * (ROOM.strip - GAP));
    context.fillRect(column * pixel, plotHeight + ROOM.strip - tall, pixel, tall);
  }
}

/** @param {Timeline} timeline @param {Canvas} context @param {Ink} colors */
function range(timeline, context, colors) {
  const { range: events } = timeline.context.now;
  if (!events || timeline.source !== timeline.context.now.source) return;
  const first = timeline.places.get(events[0]);
  const last = timeline.places.get(events[1]);
  if (!first || !last) return;
  const from = timeline.toX(first[0]);
  const to = timeline.toX(last[1]);
  context.fillStyle = colors.range;
  context.fillRect(from, 0, to - from, timeline.size.plotHeight);
  context.fillStyle = colors.accent;
  context.fillRect(from - 0.5, 0, 1, timeline.size.plotHeight);
  context.fillRect(to - 0.5, 0, 1, timeline.size.plotHeight);
}

/** @param {Timeline} timeline @param {Canvas} context @param {Ink} colors */
function cursor(timeline, context, colors) {
  const { now } = timeline.context;
  if (now.event === null || now.source !== timeline.source) return;
  const place = timeline.places.get(timeline.context.event(timeline.source));
  if (!place) return;
  const { plotHeight, plotWidth } = timeline.size;
  const from = timeline.toX(place[0]);
  const to = timeline.toX(place[1]);
  if (to < 0 || from > plotWidth) return;
  if (to - from > 3) {
    context.fillStyle = colors.range;
    context.fillRect(from, 0, to - from, plotHeight);
  }
  const x = Math.round(from) + 0.5;
  context.strokeStyle = colors.accent;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x, 0);
  context.lineTo(x, plotHeight + ROOM.strip);
  context.stroke();
  context.fillStyle = colors.accent;
  context.beginPath();
  context.moveTo(x - 5, 0);
  context.lineTo(x + 5, 0);
  context.lineTo(x, 6);
  context.fill();
}

/** The selected allocation, outlined. @param {Timeline} timeline @param {Canvas} context @param {Ink} colors */
function selected(timeline, context, colors) {
  const { now } = timeline.context;
  if (now.row === null || now.source !== timeline.source || !timeline.drawn) return;
  const { view } = timeline.drawn;
  const spans = timeline.spans(now.row);
  if (!spans.length) return;
  const [wide, tall] = [timeline.size.plotWidth / view.width, timeline.size.plotHeight / view.height];
  context.beginPath();
  for (const { column, top, bottom } of spans) context.rect(column * wide, top * tall, wide, (bottom - top) * tall);
  context.fillStyle = colors.chosen;
  context.fill();
  context.strokeStyle = colors.peak;
  context.lineWidth = 1.25;
  context.beginPath();
  let last = { column: -2, top: 0, bottom: 0 };
  for (const one of spans) {
    const { column, top, bottom } = one;
    const [x, y0, y1] = [column * wide, top * tall, bottom * tall];
    const joined = last.column === column - 1;
    for (const [y, before] of [
      [y0, last.top * tall],
      [y1, last.bottom * tall],
    ]) {
      context.moveTo(x, joined ? before : y0);
      if (joined) context.lineTo(x, y);
      else context.lineTo(x, y1);
      context.moveTo(x, y);
      context.lineTo(x + wide, y);
    }
    last = one;
  }
  const end = (last.column + 1) * wide;
  context.moveTo(end, last.top * tall);
  context.lineTo(end, last.bottom * tall);
  context.stroke();
}

/** @param {Timeline} timeline @param {Canvas} context @param {Ink} colors */
function peak(timeline, context, colors) {
  const facts = timeline.context.facts(timeline.source);
  const place = timeline.places.get(facts.peak.event);
  if (!place || !facts.peak.bytes) return;
  const { plotWidth, plotHeight } = timeline.size;
  const x = timeline.toX((place[0] + Math.min(place[1], place[0] + (place[1] - place[0]))) / 2);
  const y = timeline.toY(facts.peak.bytes);
  if (x < -1 || x > plotWidth + 1 || y < -1 || y > plotHeight) return;
  context.fillStyle = colors.peak;
  context.strokeStyle = colors.ground;
  context.lineWidth = 1.5;
  context.beginPath();
  context.arc(x, y, 4, 0, 2 * Math.PI);
  context.fill();
  context.stroke();
  const text = `peak ${size(facts.peak.bytes)}`;
  const at = Math.max(y - 9, 9);
  const left = x > plotWidth - 190 || (x > 90 && !free(context, text, x + 10, at, "left"));
  tag(context, text, left ? x - 10 : x + 10, at, colors.peak, colors, left ? "right" : "left");
}

/** @param {Timeline} timeline @param {Canvas} context @param {Ink} colors */
function hover(timeline, context, colors) {
  const { pointer, drawn } = timeline;
  if (!pointer || !drawn || timeline.drag) return;
  context.fillStyle = colors.hover;
  context.fillRect(Math.round(pointer.x), 0, 1, timeline.size.plotHeight + ROOM.strip);
}

/** @param {Timeline} timeline @param {Canvas} context @param {Ink} colors */
function dragged(timeline, context, colors) {
  const { drag } = timeline;
  if (!drag) return;
  const x = Math.min(drag.x0, drag.x1);
  const y = drag.kind === "box" ? Math.min(drag.y0, drag.y1) : 0;
  const height = drag.kind === "box" ? Math.abs(drag.y1 - drag.y0) : timeline.size.plotHeight;
  context.fillStyle = colors.range;
  context.strokeStyle = colors.accent;
  context.lineWidth = 1;
  context.fillRect(x, y, Math.abs(drag.x1 - drag.x0), height);
  context.strokeRect(x + 0.5, y + 0.5, Math.abs(drag.x1 - drag.x0), height);
}

/** @param {Timeline} timeline @param {Canvas} context @param {Ink} colors */
function ruler(timeline, context, colors) {
  const { ruler: one } = timeline;
  if (!one || timeline.drag) return;
  const [x0, x1] = [timeline.toX(one.x0), timeline.toX(one.x1)];
  const [y0, y1] = [timeline.toY(one.y0), timeline.toY(one.y1)];
  context.strokeStyle = colors.accent;
  context.lineWidth = 1.25;
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
  const text = rulerText(timeline);
  tag(
    context,
    text,
    (x0 + x1) / 2,
    Math.min(Math.max(y0 + (y1 < y0 ? 14 : -14), 10), timeline.size.plotHeight - 10),
    colors.text,
    colors,
    "center",
  );
}

/** What a ruler says. @param {Timeline} timeline */
export function rulerText(timeline) {
  const { ruler: one, context } = timeline;
  if (!one) return "";
  const across = one.x1 - one.x0;
  const timed = one.us === undefined ? "" : ` · ${duration(one.us)}`;
  const far = context.axis() === "time" ? duration(across) : `${plural(Math.round(across), "event")}${timed}`;
  return `${far} · ${signed(one.y1 - one.y0)}`;
}
