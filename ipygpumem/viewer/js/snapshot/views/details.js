/** The panel with the state at the cursor and all details of the selected allocation. */

import { count, duration, fine, size } from "../../data/units.js";
import { button, definitions, linkButton } from "../../ui/controls.js";
import { h, replaceChildren } from "../../ui/dom.js";
import { NO_CELL, NO_REGION } from "../options.js";
import { lifetime } from "../timeline/tooltip.js";
import { stackList } from "./stack-list.js";

const MAX_SOURCE = 2000; // characters
const LONG_PENDING_US = 1000;

export class Details {
  /** @param {import("../context.js").Context} context @param {import("./actions.js").Actions} actions */
  constructor(context, actions) {
    this.context = context;
    this.actions = actions;
    this.body = h("div", { class: "body" });
    this.element = h("section", { class: "details", aria: { label: "Selected allocation" } }, this.body);
    this.turn = 0;
  }

  async refresh() {
    const turn = ++this.turn;
    const { context } = this;
    const { row, source } = context.now;
    const [facts, moment] = await Promise.all([
      row === null ? null : context.request("allocation", { row }, source),
      context.request("moment", { event: context.event(source) }, source),
    ]);
    if (turn !== this.turn) return;
    const hint = "Point at an allocation to see its line. Click it to see its stack, lifetime and address here.";
    const allocation = facts ? this.allocation(facts) : [h("p", { class: "empty" }, hint)];
    replaceChildren(this.body, [this.moment(moment), ...allocation]);
  }

  /** @param {any} moment */
  moment({ event, time, about, requested, reserved, replayed }) {
    const { context } = this;
    const cursor = context.now.event !== null;
    const elapsed = time === null ? "" : ` · ${duration(time - context.facts().origin)}`;
    const reservedText = reserved !== null && h("span", {}, " of ", h("b", {}, size(reserved)), " reserved");
    const action = about && `${about.action.replaceAll("_", " ")}${about.size ? ` ${fine(about.size)}` : ""}`;
    return h(
      "div",
      { class: "moment" },
      h("h2", {}, cursor ? "At the cursor" : "At the peak"),
      h("p", {}, event < 0 ? "before the first event" : `event ${count(event)}${elapsed}`),
      h("p", { class: "pair" }, h("b", {}, size(requested)), " allocated", reservedText),
      !Number.isNaN(replayed) &&
        h("p", { class: "soft" }, `${size(replayed)} reserved with ${context.facts().replay?.settings}`),
      cursor && action && h("p", { class: "soft" }, action),
    );
  }

  /** @param {any} facts @returns {HTMLElement[]} */
  allocation(facts) {
    const mark = button("Mark all from this line", () => this.actions.markLine());
    const close = button("Close", () => this.context.store.set({ row: null }));
    return [
      h("h2", {}, "Allocation"),
      h("p", { class: "size" }, fine(facts.size), h("small", {}, ` ${count(facts.size)} bytes`)),
      h("p", { class: "where", title: facts.line }, facts.line),
      ...(facts.source ? [h("pre", { tabindex: 0 }, facts.source.slice(0, MAX_SOURCE))] : []),
      h("div", { class: "row" }, mark, close),
      definitions(this.facts(facts).filter(([, value]) => value)),
      h("h3", {}, "Stack"),
      stackList(facts.stack),
    ];
  }

  /** @param {any} facts @returns {[string, Node|string|null][]} */
  facts(facts) {
    const { origin } = this.context.facts();
    const { freeRequested, end, pendingTime } = facts;
    const link = (/** @type {number|null} */ event, /** @type {string} */ none) =>
      event === null
        ? none
        : linkButton(`event ${count(event)}`, () => this.actions.goTo(event, this.context.now.source));
    const omit = (/** @type {string|null} */ text, /** @type {string} */ none) => (text === none ? null : text);
    const begin = facts.startTime === null ? "" : ` at ${duration(facts.startTime - origin)}`;
    const waited =
      freeRequested !== null && end !== null && (end - freeRequested > 1 || pendingTime >= LONG_PENDING_US);
    const wait = pendingTime ? `, ${duration(pendingTime)} earlier` : "";
    return [
      ["allocated", h("span", {}, link(facts.start, "before the recording"), begin)],
      ["free requested", waited ? h("span", {}, link(freeRequested, ""), wait) : null],
      ["freed", link(end, "alive at the end")],
      ["lifetime", `${lifetime(facts)}${end === null ? ", to the end" : ""}`],
      ["cell", omit(facts.cell, NO_CELL)],
      ["region", omit(facts.annotation, NO_REGION)],
      ["stream", facts.stream],
      ["pool", facts.pool],
      ["address", h("code", {}, facts.address)],
      ["name", h("code", {}, facts.name)],
      ["rounded", facts.rounded === null || facts.rounded === facts.size ? null : fine(facts.rounded)],
      ["compile context", omit(facts.context, "N/A")],
      ["metadata", facts.metadata === facts.cell ? null : facts.metadata || null],
      ...facts.annotations.map((/** @type {any} */ { event, text }) => [
        "annotation",
        h("span", {}, link(event, ""), ` ${text}`),
      ]),
    ];
  }
}
