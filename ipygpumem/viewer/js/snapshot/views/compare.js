/** The panel that compares two points in time, in one file or in two. With more files: the first one and the current one. */

import { rowsOf, toCsv } from "../../data/csv.js";
import { count, fine, plural, signed, size } from "../../data/units.js";
import { barCell, headRow, numberCell, ScrollTable, select } from "../../ui/controls.js";
import { h } from "../../ui/dom.js";
import { GROUP_LABELS } from "../options.js";

const LIMIT = 100; // rows on the screen
const HEADINGS = ["group", "before", "after", "change", "count"];
const CSV_HEAD = ["group", "before_bytes", "after_bytes", "change_bytes", "before_count", "after_count", "stack"];
const CSV_FIELDS = ["label", "before", "after", "change", "countBefore", "countAfter", "text"];
const KEYS = ["line", "function", "cell", "stack", "annotation", "size"];

export class CompareView {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    const options = KEYS.map((key) => [key, GROUP_LABELS[key]]);
    this.group = select("Group by", options, () => this.refresh());
    this.title = h("h2", { class: "title" });
    this.table = new ScrollTable("Differences");
    const head = headRow([this.title], [this.group.element]);
    this.element = h("div", { class: "compare" }, head, this.table.element);
    this.turn = 0;
  }

  /** The two points in time: the peaks of two files, or peak and cursor of one file. A cursor replaces the peak of its file. */
  moments() {
    const { context } = this;
    const { now } = context;
    if (context.files.length > 1) {
      return [0, now.source || 1].map((source) => {
        const event = context.event(source);
        const cursor = now.event !== null && now.source === source;
        const text = `${context.files[source].name}, ${cursor ? `event ${count(event)}` : "peak"}`;
        return { ...context.where(source), event, text };
      });
    }
    const peak = context.facts().peak.event;
    const events = now.range ?? [peak, now.event ?? context.facts().events - 1];
    return events.map((event) => {
      const text = event === peak ? "peak" : event < 0 ? "before the first event" : `event ${count(event)}`;
      return { ...context.where(), event, text };
    });
  }

  /** @param {number} limit */
  request(limit) {
    const [before, after] = this.moments();
    return this.context.client.request("diff", { before, after, key: this.group.field.value, limit });
  }

  async refresh() {
    const turn = ++this.turn;
    const [before, after] = this.moments();
    const { changes, more, ...totals } = await this.request(LIMIT);
    if (turn !== this.turn) return;
    this.title.replaceChildren(
      `${before.text} → ${after.text}: ${size(totals.before)} → ${size(totals.after)} `,
      h("b", {}, signed(totals.after - totals.before)),
    );
    const sizes = changes.map((/** @type {any} */ change) => Math.abs(change.after - change.before));
    const maximum = Math.max(1, ...sizes);
    const rows = changes.map((/** @type {any} */ change) => changeRow(change, maximum));
    const foot = changes.length ? "" : "There is no difference.";
    this.table.show(HEADINGS, rows, more ? `and ${plural(more, "smaller change")}` : foot);
  }

  /** All changes, including those that are not on the screen. */
  async csv() {
    const { changes } = await this.request(Number.POSITIVE_INFINITY);
    const rows = changes.map((/** @type {any} */ row) => ({ ...row, change: row.after - row.before }));
    return toCsv([CSV_HEAD, ...rowsOf(CSV_FIELDS, rows)]);
  }
}

/** @param {any} change @param {number} maximum of all changes, for the bars */
function changeRow({ label, via, text, before, after, countBefore, countAfter }, maximum) {
  const change = after - before;
  const callers = via && h("small", { class: "where" }, `via ${via}`);
  return h(
    "tr",
    {},
    h("th", { scope: "row", title: text ?? label }, h("span", { class: "where" }, label), callers),
    numberCell(fine(before)),
    numberCell(fine(after)),
    barCell(signed(change), (Math.abs(change) / maximum) * 100, change < 0 ? "less" : "more"),
    numberCell(`${count(countBefore)} → ${count(countAfter)}`),
  );
}
