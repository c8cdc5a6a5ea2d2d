/** What a user can do with the ruler of a timeline. */

import { ascending } from "../../ui/zoom.js";
import { rulerText } from "./ruler.js";

/** @typedef {import("./timeline.js").Timeline} Timeline */

export class RulerActions {
  /** @param {import("../views/actions.js").Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.context = actions.context;
  }

  /** Add the time between both ends of the ruler, if the axis does not show it. @param {Timeline} timeline */
  async addTime(timeline) {
    const { ruler, source } = timeline;
    const { timed, events } = this.context.facts(source);
    if (!ruler || !timed || this.context.axis() === "time") return;
    const { x0, x1 } = ruler;
    const ends = [x0, x1].map((x) => Math.min(Math.max(Math.floor(x), 0), events - 1));
    const [from, to] = await this.context.request("times", { events: ends }, source);
    if (timeline.ruler !== ruler || ruler.x0 !== x0 || ruler.x1 !== x1) return;
    ruler.us = to - from;
    timeline.schedule.request();
  }

  /** @param {Timeline} timeline */
  async announce(timeline) {
    await this.addTime(timeline);
    this.context.announce(rulerText(timeline));
  }

  /** The cursor on the curve of allocated bytes, in units of the axes. @param {number} source */
  async cursorPoint(source) {
    const event = this.context.event(source);
    const [[[x]], { requested }] = await Promise.all([
      this.context.request("places", { axis: this.context.axis(), events: [event] }, source),
      this.context.request("moment", { event }, source),
    ]);
    return { x, y: requested };
  }

  /** Start a ruler at the cursor that follows it. @param {Timeline} timeline */
  async start(timeline) {
    const { x, y } = await this.cursorPoint(timeline.source);
    timeline.ruler = { x0: x, y0: y, x1: x, y1: y, keyed: true };
    timeline.schedule.request();
    this.context.announce("The ruler starts at the cursor");
  }

  /** @param {Timeline} timeline */
  async extend(timeline) {
    const { ruler } = timeline;
    if (!ruler?.keyed || this.context.now.event === null || this.context.now.source !== timeline.source) return;
    const { x, y } = await this.cursorPoint(timeline.source);
    Object.assign(ruler, { x1: x, y1: y, us: undefined });
    timeline.schedule.request();
    await this.announce(timeline);
  }

  /** @param {Timeline} timeline */
  zoom({ ruler }) {
    if (!ruler || ruler.x0 === ruler.x1) return;
    const { x0, x1, y0, y1 } = ruler;
    const y = y0 === y1 ? {} : { y: this.actions.clampBytes(ascending(y0, y1)) };
    this.context.store.set({ x: this.actions.clampView(ascending(x0, x1)), ...y });
  }
}
