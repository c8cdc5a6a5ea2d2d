/** What a reader can do, however it was asked for: by pointer, key, button or call. */

import { count, fine } from "../../data/units.js";
import { bandAt } from "../timeline/bands.js";
import { rulerText } from "../timeline/overlay.js";

/** @typedef {import("../timeline/timeline.js").Timeline} Timeline */

export class Actions {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    /** @type {Timeline[]} */
    this.timelines = [];
    /** @type {import("../timeline/tooltip.js").Tooltip|undefined} */
    this.tooltip = undefined;
    this.find = () => {};
    this.help = () => {};
    this.turn = 0;
    /** Where the cursor was before it followed the pointer. @type {{event: number|null, source: number}|undefined} */
    this.rest = undefined;
  }

  get store() {
    return this.context.store;
  }

  /** Bytes in view: inside what there is. @param {[number, number]} y @returns {[number, number]|null} */
  heights([y0, y1]) {
    const [low, high] = this.context.range();
    const span = Math.min(Math.max(y1 - y0, 64), high - low);
    if (span >= (high - low) * 0.999) return null;
    const from = Math.min(Math.max(y0, low), high - span);
    return [from, from + span];
  }

  /** The part of the axis in view: inside what there is. @param {[number, number]} x @returns {[number, number]|null} */
  widths([x0, x1]) {
    const [low, high] = this.context.domain();
    const least = this.context.axis() === "time" ? 2 : 4;
    const span = Math.min(Math.max(x1 - x0, least), high - low);
    if (span >= (high - low) * 0.9999) return null;
    const from = Math.min(Math.max(x0, low), high - span);
    return [from, from + span];
  }

  /** The same of a view from elsewhere: what lies beside the data is no part of it. @param {Partial<import("../store.js").Shown>} view */
  within(view) {
    const clipped = { ...view };
    const beside = (/** @type {[number, number]} */ [from, to], /** @type {[number, number]} */ [low, high]) =>
      to <= low || from >= high;
    if (view.x) clipped.x = beside(view.x, this.context.domain()) ? null : this.widths(view.x);
    if (view.y) clipped.y = beside(view.y, this.context.range()) ? null : this.heights(view.y);
    return clipped;
  }

  fit() {
    this.store.set({ x: null, y: null });
  }

  /** @param {number} share of the view */
  pan(share) {
    const [x0, x1] = this.context.now.x ?? this.context.domain();
    const by = (x1 - x0) * share;
    this.store.set({ x: this.widths([x0 + by, x1 + by]) });
  }

  /** Zoom around the cursor, if it is in view, else around the middle. @param {number} factor @param {number} source */
  zoomBy(factor, source) {
    const [x0, x1] = this.context.now.x ?? this.context.domain();
    const place = this.timelines[source]?.places.get(this.context.event(source));
    const at = place && this.context.now.event !== null && place[0] >= x0 && place[0] <= x1 ? place[0] : (x0 + x1) / 2;
    this.store.set({ x: this.widths([at - (at - x0) * factor, at + (x1 - at) * factor]) });
  }

  /** @param {number} factor */
  zoomHeight(factor) {
    const [y0, y1] = this.context.now.y ?? this.context.range();
    this.store.set({ y: this.heights([y0, y0 + (y1 - y0) * factor]) });
  }

  /** Put the cursor on an event, and bring it into view. @param {number} event @param {number} source @param {Partial<import("../store.js").Shown>} [more] */
  async goTo(event, source, more = {}) {
    this.rest = undefined;
    const facts = this.context.facts(source);
    const there = Math.min(Math.max(Math.round(Math.min(event, facts.events - 1)), -1), facts.events - 1);
    const [[from, to]] = await this.context.ask("places", { axis: this.context.axis(), events: [there] }, source);
    const { x } = this.context.now;
    /** @type {Partial<import("../store.js").Shown>} */
    const patch = { event: there, source, ...more };
    if (x && (from < x[0] || to > x[1])) {
      const half = (x[1] - x[0]) / 2;
      patch.x = this.widths([from - half, from + half]);
    }
    this.store.set(patch);
    this.context.say(`Event ${count(there)}`);
  }

  /** The next event, or the one before. @param {number} by @param {number} source */
  async step(by, source) {
    const { now } = this.context;
    const from = now.source === source ? this.context.event(source) : this.context.facts(source).peak.event;
    await this.goTo(from + by, source);
    const { row } = await this.context.ask("moment", { event: this.context.event(source) }, source);
    if (row >= 0) this.store.set({ row });
  }

  /** @param {number} source */
  peak(source = this.context.now.source) {
    return this.goTo(this.context.facts(source).peak.event, source);
  }

  /** The next allocation up or down the stack at the cursor. @param {1|-1} by @param {number} source */
  async climb(by, source) {
    const { now } = this.context;
    const event = this.context.event(source);
    const row = await this.context.ask(
      "neighbour",
      { event, row: now.row ?? -1, step: by, look: this.context.look(source) },
      source,
    );
    if (row < 0) return;
    this.store.set({ row, event, source });
    const facts = await this.context.ask("allocation", { row }, source);
    if (facts) this.context.say(`${fine(facts.size)}, ${facts.line}`);
  }

  /** @param {Timeline} timeline @param {{x: number, y: number}} place */
  click(timeline, place) {
    const at = timeline.at(place.x, place.y);
    if (!at) return;
    this.rest = undefined;
    this.store.set({
      event: at.event,
      source: timeline.source,
      row: at.id >= 0 ? at.id : null,
      ...(at.id >= 0 ? {} : { mark: this.kept() }),
    });
  }

  /** The mark of a search stays when something else is chosen. */
  kept() {
    const { mark } = this.context.now;
    return mark.kind === "row" ? /** @type {const} */ ({ kind: "none" }) : mark;
  }

  /** @param {Timeline} timeline @param {{x0: number, y0: number, x1: number, y1: number}} box */
  box(timeline, box) {
    const x = /** @type {[number, number]} */ (
      [box.x0, box.x1].map((one) => timeline.fromX(one)).sort((a, b) => a - b)
    );
    const y = /** @type {[number, number]} */ (
      [box.y0, box.y1].map((one) => timeline.fromY(one)).sort((a, b) => a - b)
    );
    this.store.set({ x: this.widths(x), y: this.heights(y) });
  }

  /** @param {Timeline} timeline @param {{x0: number, x1: number}} drag */
  async brush(timeline, drag) {
    const [from, to] = [drag.x0, drag.x1].map((one) => timeline.fromX(one)).sort((a, b) => a - b);
    const [first, last] = await Promise.all(
      [from, to].map((x) => this.context.ask("eventAt", { axis: this.context.axis(), x }, timeline.source)),
    );
    if (first < last) this.store.set({ range: [first, last], source: timeline.source, tab: "live" });
  }

  /** The visible part becomes the range. @param {number} source */
  markRange(source) {
    const timeline = this.timelines[source];
    return this.brush(timeline, { x0: 0, x1: timeline.size.plotWidth });
  }

  /** The time between the two events of a ruler, where the axis does not tell it. @param {Timeline} timeline */
  async timed(timeline) {
    const { ruler, source } = timeline;
    const { timed, events } = this.context.facts(source);
    if (!ruler || !timed || this.context.axis() === "time") return;
    const { x0, x1 } = ruler;
    const at = [x0, x1].map((x) => Math.min(Math.max(Math.floor(x), 0), events - 1));
    const [from, to] = await this.context.ask("times", { events: at }, source);
    if (timeline.ruler !== ruler || ruler.x0 !== x0 || ruler.x1 !== x1) return;
    ruler.us = to - from;
    timeline.again.ask();
  }

  /** @param {Timeline} timeline */
  async measured(timeline) {
    await this.timed(timeline);
    this.context.say(rulerText(timeline));
  }

  /** Where the cursor is, in units of the axes: on the curve of what is allocated. @param {number} source */
  async point(source) {
    const event = this.context.event(source);
    const [[[x]], { requested }] = await Promise.all([
      this.context.ask("places", { axis: this.context.axis(), events: [event] }, source),
      this.context.ask("moment", { event }, source),
    ]);
    return { x, y: requested };
  }

  /** A ruler from the cursor to where it goes next. @param {Timeline} timeline */
  async anchor(timeline) {
    const { x, y } = await this.point(timeline.source);
    timeline.ruler = { x0: x, y0: y, x1: x, y1: y, keyed: true };
    timeline.again.ask();
    this.context.say("Ruler from here");
  }

  /** @param {Timeline} timeline */
  async lengthen(timeline) {
    const { ruler } = timeline;
    if (!ruler?.keyed || this.context.now.event === null || this.context.now.source !== timeline.source) return;
    const { x, y } = await this.point(timeline.source);
    Object.assign(ruler, { x1: x, y1: y, us: undefined });
    timeline.again.ask();
    await this.measured(timeline);
  }

  /** See the box of the ruler alone. @param {Timeline} timeline */
  boxed({ ruler }) {
    if (!ruler || ruler.x0 === ruler.x1) return;
    const { x0, x1, y0, y1 } = ruler;
    const y = y0 === y1 ? {} : { y: this.heights([Math.min(y0, y1), Math.max(y0, y1)]) };
    this.store.set({ x: this.widths([Math.min(x0, x1), Math.max(x0, x1)]), ...y });
  }

  /** All allocations from the line of the selected one. */
  async others() {
    const { row, source } = this.context.now;
    if (row === null) return;
    const facts = await this.context.ask("allocation", { row }, source);
    if (facts) this.store.set({ mark: { kind: "group", key: "line", code: facts.lineCode } });
  }

  clear() {
    this.rest = undefined;
    for (const timeline of this.timelines) timeline.ruler = null;
    this.store.set({ row: null, range: null, mark: { kind: "none" }, search: "", event: null, tool: "pan" });
    for (const timeline of this.timelines) timeline.again.ask();
  }

  /** @param {Timeline} timeline @param {{x: number, y: number}|null} place */
  async hover(timeline, place) {
    const at = place && timeline.at(place.x, place.y);
    const { follow, event, source } = this.context.now;
    if (at && follow && at.event !== event) {
      this.rest ??= { event, source };
      this.store.set({ event: at.event, source: timeline.source });
    } else if (!at && this.rest) {
      this.store.set(this.rest);
      this.rest = undefined;
    }
    await this.tell(timeline, place);
  }

  /** Say what is under the pointer. @param {Timeline} timeline @param {{x: number, y: number}|null} place */
  async tell(timeline, place) {
    const turn = ++this.turn;
    const at = place && timeline.at(place.x, place.y);
    if (!place || !at) {
      this.tooltip?.hide();
      return;
    }
    const told = await this.told(timeline, at);
    if (turn === this.turn) this.tooltip?.show(timeline, place, told);
  }

  /** @param {Timeline} timeline @param {NonNullable<ReturnType<Timeline["at"]>>} at */
  async told(timeline, at) {
    if (at.id >= 0)
      return { at, facts: await this.context.ask("allocation", { row: at.id }, timeline.source), thin: null };
    if (at.id === -2) {
      const { event, low, high, scale } = at;
      const thin = await this.context.ask(
        "thin",
        { event, low, high, scale, look: this.context.look(timeline.source) },
        timeline.source,
      );
      return { at, facts: null, thin };
    }
    return { at, facts: null, thin: null };
  }

  /** @param {Timeline} timeline @param {number} x @param {number} y */
  band(timeline, x, y) {
    const band = x >= 0 && y < timeline.size.top ? bandAt(timeline, x, y) : undefined;
    this.turn++;
    if (band) this.tooltip?.words(timeline, { x, y: y - timeline.size.top }, band);
    else this.tooltip?.hide();
  }

  /** A place that a finding names. @param {import("../engine/findings.js").Finding} finding */
  async follow(finding) {
    const { source } = this.context.now;
    /** @type {Partial<import("../store.js").Shown>} */
    const more = {};
    if (finding.row !== null) more.row = finding.row;
    if (finding.mark) more.mark = { kind: "group", ...finding.mark };
    if (finding.event === null) this.store.set(more);
    else await this.goTo(finding.event, source, more);
  }
}
