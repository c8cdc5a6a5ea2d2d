/** The actions of the user, which pointer, keys, buttons and scripts can trigger. */

import { count, fine } from "../../data/units.js";
import { ascending, clampRange, scaleRange, shiftRange, viewKeys } from "../../ui/zoom.js";
import { bandAt } from "../timeline/bands.js";
import { RulerActions } from "../timeline/ruler-actions.js";
import { bandLines, tooltipLines } from "../timeline/tooltip.js";

export const ZOOM_STEP = 1.4;
/** The smallest view: events, microseconds, bytes. */
export const MINIMUM = { event: 4, time: 2, bytes: 64 };

/** @typedef {import("../timeline/timeline.js").Timeline} Timeline @typedef {import("../timeline/timeline.js").Target} Target */

export class Actions {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    /** @type {Timeline[]} */
    this.timelines = [];
    /** @type {import("../../ui/tooltip.js").Tooltip|undefined} */
    this.tooltip = undefined;
    this.ruler = new RulerActions(this);
    this.focusSearch = () => {};
    this.showHelp = () => {};
    /** Counts descriptions for the tooltip, so that only the newest is shown. */
    this.turn = 0;
    /** The cursor before it followed the pointer. @type {{event: number|null, source: number}|undefined} */
    this.pinned = undefined;
  }

  get store() {
    return this.context.store;
  }

  // The visible part of the axes

  /** Visible bytes within the range of the data; null: all of them. @param {[number, number]} y @returns {[number, number]|null} */
  clampBytes(y) {
    const range = this.context.range();
    return covers(clampRange(y, range, MINIMUM.bytes), range, 0.999);
  }

  /** A visible part of the axis within its domain; null: all of it. @param {[number, number]} x @returns {[number, number]|null} */
  clampView(x) {
    const domain = this.context.domain();
    return covers(clampRange(x, domain, MINIMUM[this.context.axis()]), domain, 0.9999);
  }

  /** A view from a link, limited to the range of the data. @param {Partial<import("../store.js").Shown>} view */
  clampLink({ x, y }) {
    const outside = (/** @type {[number, number]} */ [from, to], /** @type {[number, number]} */ [low, high]) =>
      to <= low || from >= high;
    return {
      x: !x || outside(x, this.context.domain()) ? null : this.clampView(x),
      y: !y || outside(y, this.context.range()) ? null : this.clampBytes(y),
    };
  }

  fit() {
    this.store.set({ x: null, y: null });
  }

  /** @param {number} share of the view */
  pan(share) {
    this.store.set({ x: this.clampView(shiftRange(this.context.now.x ?? this.context.domain(), share)) });
  }

  /** Zoom around the cursor if it is visible, else around the center. @param {number} factor @param {number} source */
  zoomBy(factor, source) {
    const { now } = this.context;
    const view = now.x ?? this.context.domain();
    const place = now.event === null ? undefined : this.timelines[source]?.places.get(this.context.event(source));
    const visible = place && place[0] >= view[0] && place[0] <= view[1];
    this.store.set({ x: this.clampView(scaleRange(view, factor, visible ? place[0] : (view[0] + view[1]) / 2)) });
  }

  /** Keys that move and zoom the view. @param {() => number} source */
  viewKeys(source) {
    return viewKeys(
      (share) => this.pan(share),
      (factor) => this.zoomBy(factor, source()),
      () => this.fit(),
      ZOOM_STEP,
    );
  }

  /** Zoom the bytes from the lower edge. @param {number} factor */
  zoomBytes(factor) {
    const view = this.context.now.y ?? this.context.range();
    this.store.set({ y: this.clampBytes(scaleRange(view, factor, view[0])) });
  }

  /** @param {Timeline} timeline @param {{x0: number, y0: number, x1: number, y1: number}} box in pixels */
  zoomToBox(timeline, { x0, x1, y0, y1 }) {
    const x = ascending(timeline.fromX(x0), timeline.fromX(x1));
    this.store.set({ x: this.clampView(x), y: this.clampBytes(ascending(timeline.fromY(y0), timeline.fromY(y1))) });
  }

  // The cursor

  /** Move the cursor to an event, and make it visible. @param {number} event @param {number} source @param {Partial<import("../store.js").Shown>} [more] */
  async goTo(event, source, more = {}) {
    this.pinned = undefined;
    const last = this.context.facts(source).events - 1;
    const target = Math.min(Math.max(Math.round(Math.min(event, last)), -1), last);
    const request = { axis: this.context.axis(), events: [target] };
    const [[from, to]] = await this.context.request("places", request, source);
    const { x } = this.context.now;
    /** @type {Partial<import("../store.js").Shown>} */
    const patch = { event: target, source, ...more };
    if (x && (from < x[0] || to > x[1])) {
      const half = (x[1] - x[0]) / 2;
      patch.x = this.clampView([from - half, from + half]);
    }
    this.store.set(patch);
    this.context.announce(`Event ${count(target)}`);
  }

  /** Go to the next or previous event. @param {number} by @param {number} source */
  async step(by, source) {
    const { now } = this.context;
    const from = now.source === source ? this.context.event(source) : this.context.facts(source).peak.event;
    await this.goTo(from + by, source);
    const { row } = await this.context.request("moment", { event: this.context.event(source) }, source);
    if (row >= 0) this.store.set({ row });
  }

  /** @param {number} source */
  peak(source = this.context.now.source) {
    return this.goTo(this.context.facts(source).peak.event, source);
  }

  /** Go to the event, allocation or group of a finding. @param {import("../engine/findings.js").Finding} finding */
  async follow({ event, row, mark }) {
    /** @type {Partial<import("../store.js").Shown>} */
    const patch = {};
    if (row !== null) patch.row = row;
    if (mark) patch.mark = { kind: "group", ...mark };
    if (event === null) this.store.set(patch);
    else await this.goTo(event, this.context.now.source, patch);
  }

  clear() {
    this.pinned = undefined;
    for (const timeline of this.timelines) timeline.ruler = null;
    this.store.set({ row: null, range: null, mark: { kind: "none" }, search: "", event: null, tool: "pan" });
    for (const timeline of this.timelines) timeline.schedule.request();
  }

  // Selecting and marking

  /** @param {string} text */
  search(text) {
    const search = text.trim();
    this.store.set({ search, mark: search ? { kind: "search", text: search } : { kind: "none" } });
  }

  /** Select the next allocation up or down the stack at the cursor. @param {1|-1} step @param {number} source */
  async selectAdjacent(step, source) {
    const event = this.context.event(source);
    const request = { event, row: this.context.now.row ?? -1, step, look: this.context.look(source) };
    const row = await this.context.request("adjacent", request, source);
    if (row < 0) return;
    this.store.set({ row, event, source });
    const facts = await this.context.request("allocation", { row }, source);
    if (facts) this.context.announce(`${fine(facts.size)}, ${facts.line}`);
  }

  /** @param {Timeline} timeline @param {{x: number, y: number}} position */
  click(timeline, { x, y }) {
    const target = timeline.at(x, y);
    if (!target) return;
    this.pinned = undefined;
    this.store.set({ event: target.event, source: timeline.source, row: target.id >= 0 ? target.id : null });
  }

  /** Mark all allocations from the line of the selected one. */
  async markLine() {
    const { row, source } = this.context.now;
    const facts = row === null ? null : await this.context.request("allocation", { row }, source);
    if (facts) this.store.set({ mark: { kind: "group", key: "line", code: facts.lineCode } });
  }

  /** @param {Timeline} timeline @param {{x0: number, x1: number}} drag */
  async selectRange(timeline, { x0, x1 }) {
    const request = (/** @type {number} */ x) => ({ axis: this.context.axis(), x });
    const [first, last] = await Promise.all(
      ascending(timeline.fromX(x0), timeline.fromX(x1)).map((x) =>
        this.context.request("eventAt", request(x), timeline.source),
      ),
    );
    if (first < last) this.store.set({ range: [first, last], source: timeline.source, tab: "live" });
  }

  /** Select the visible events as the range. @param {number} source */
  rangeFromView(source) {
    const timeline = this.timelines[source];
    return this.selectRange(timeline, { x0: 0, x1: timeline.size.plotWidth });
  }

  // The pointer

  /** @param {Timeline} timeline @param {{x: number, y: number}|null} position */
  async hover(timeline, position) {
    const target = position && timeline.at(position.x, position.y);
    const { follow, event, source } = this.context.now;
    if (target && follow && target.event !== event) {
      this.pinned ??= { event, source };
      this.store.set({ event: target.event, source: timeline.source });
    } else if (!target && this.pinned) {
      this.store.set(this.pinned);
      this.pinned = undefined;
    }
    await this.showTooltip(timeline, position);
  }

  /** @param {Timeline} timeline @param {{x: number, y: number}|null} position */
  async showTooltip(timeline, position) {
    const turn = ++this.turn;
    const target = position && timeline.at(position.x, position.y);
    if (!target) {
      this.tooltip?.hide();
      return;
    }
    const description = await this.describe(timeline, target);
    if (turn === this.turn) this.tooltip?.show(timeline.plot, position, tooltipLines(timeline, target, description));
  }

  /** The facts about a point: an allocation, or allocations less than one pixel high. @param {Timeline} timeline @param {Target} target */
  async describe(timeline, { id, event, low, high, scale }) {
    const { source } = timeline;
    const request = { event, low, high, scale, look: this.context.look(source) };
    return {
      facts: id >= 0 ? await this.context.request("allocation", { row: id }, source) : null,
      thin: id === -2 ? await this.context.request("thin", request, source) : null,
    };
  }

  /** @param {Timeline} timeline @param {number} x in the plot @param {number} y from the top of the element */
  hoverBand(timeline, x, y) {
    const { top } = timeline.size;
    const band = x >= 0 && y < top ? bandAt(timeline, x, y) : undefined;
    this.turn++;
    if (band) this.tooltip?.show(timeline.plot, { x, y: y - top }, bandLines(band));
    else this.tooltip?.hide();
  }
}

/** A view, or null if it covers its domain. @param {[number, number]} view @param {[number, number]} domain @param {number} share */
function covers(view, domain, share) {
  return view[1] - view[0] >= (domain[1] - domain[0]) * share ? null : view;
}
