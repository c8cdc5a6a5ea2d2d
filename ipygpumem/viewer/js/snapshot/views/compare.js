/** Two moments, of one file or of two, line by line. Of several files: the first, and the one that is looked at. */

import { count, fine, plural, signed, size } from "../../data/units.js";
import { toCsv } from "../../data/csv.js";
import { h } from "../../ui/dom.js";
import { select } from "./live.js";

const MOST = 100;

export class CompareView {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    this.group = select(
      "Group by",
      [
        ["line", "line"],
        ["function", "function"],
        ["cell", "cell"],
        ["stack", "stack"],
        ["annotation", "region"],
        ["size", "size"],
      ],
      () => this.refresh(),
    );
    this.title = h("h2", { class: "title" });
    this.body = h("tbody");
    this.foot = h("p", { class: "soft" });
    const head = (/** @type {string} */ text, number = true) =>
      h("th", { scope: "col", class: number ? "number" : "" }, text);
    this.columns = h("tr", {}, head("group", false), head("before"), head("after"), head("change"), head("count"));
    this.element = h(
      "div",
      { class: "compare" },
      h("div", { class: "row head" }, this.title, h("span", { class: "space" }), this.group.element),
      h(
        "div",
        { class: "scroll", tabindex: 0, role: "region", aria: { label: "Differences" } },
        h("table", {}, h("thead", {}, this.columns), this.body),
        this.foot,
      ),
    );
    this.turn = 0;
  }

  /** The two moments: the peaks of two files, or peak and cursor of one; where a cursor stands, it counts. */
  moments() {
    const { context } = this;
    const { now } = context;
    if (context.files.length > 1) {
      return [0, now.source || 1].map((source) => {
        const cursor = now.event !== null && now.source === source;
        return {
          ...context.where(source),
          event: context.event(source),
          what: `${context.files[source].name}, ${cursor ? `event ${count(context.event(source))}` : "peak"}`,
        };
      });
    }
    const peak = context.facts().peak.event;
    const [first, last] = now.range ?? [peak, now.event ?? context.facts().events - 1];
    const name = (/** @type {number} */ event) =>
      event === peak ? "peak" : event < 0 ? "before the first event" : `event ${count(event)}`;
    return [first, last].map((event) => ({ ...context.where(), event, what: name(event) }));
  }

  /** @param {number} most */
  ask(most) {
    const [before, after] = this.moments();
    return this.context.client.request("diff", { before, after, key: this.group.field.value, most });
  }

  async refresh() {
    const turn = ++this.turn;
    const [before, after] = this.moments();
    const answer = await this.ask(MOST);
    if (turn !== this.turn) return;
    this.title.replaceChildren(
      `${before.what} → ${after.what}: ${size(answer.before)} → ${size(answer.after)} `,
      h("b", {}, signed(answer.after - answer.before)),
    );
    const most = answer.changes.reduce(
      (/** @type {number} */ found, /** @type {any} */ one) => Math.max(found, Math.abs(one.after - one.before)),
      1,
    );
    this.body.replaceChildren(
      ...answer.changes.map((/** @type {any} */ one) => {
        const change = one.after - one.before;
        return h(
          "tr",
          {},
          h(
            "th",
            { scope: "row", title: one.text ?? one.label },
            h("span", { class: "where" }, one.label),
            one.trail && h("small", { class: "where" }, `via ${one.trail}`),
          ),
          h("td", { class: "number" }, fine(one.before)),
          h("td", { class: "number" }, fine(one.after)),
          h(
            "td",
            { class: `number share ${change < 0 ? "less" : "more"}` },
            h("i", { style: { width: `${((Math.abs(change) / most) * 100).toFixed(1)}%` } }),
            h("span", {}, signed(change)),
          ),
          h("td", { class: "number" }, `${count(one.countBefore)} → ${count(one.countAfter)}`),
        );
      }),
    );
    this.foot.textContent = answer.more
      ? `and ${plural(answer.more, "smaller change")}`
      : answer.changes.length
        ? ""
        : "Both moments are the same.";
  }

  /** All changes, not only those in sight. */
  async csv() {
    const { changes } = await this.ask(Number.POSITIVE_INFINITY);
    return toCsv(
      ["group", "before_bytes", "after_bytes", "change_bytes", "before_count", "after_count", "stack"],
      changes.map((/** @type {any} */ one) => [
        one.label,
        one.before,
        one.after,
        one.after - one.before,
        one.countBefore,
        one.countAfter,
        one.text,
      ]),
    );
  }
}
