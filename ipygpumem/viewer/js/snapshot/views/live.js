/** The panel of live allocations at the cursor, or of those alive within a range: a table and a call tree. */

import { rowsOf, toCsv } from "../../data/csv.js";
import { count, duration, fine, plural, size } from "../../data/units.js";
import { barCell, button, checkbox, headRow, linkButton, numberCell, ScrollTable, select } from "../../ui/controls.js";
import { h } from "../../ui/dom.js";
import { GROUP_LABELS } from "../options.js";
import { Icicle } from "./icicle.js";

const LIMIT = 100; // rows on the screen
const CSV_HEAD = ["group", "file", "line", "name", "bytes", "count", "byte_time", "kept_bytes", "stack"];
const CSV_FIELDS = ["label", "file", "line", "name", "bytes", "count", "byteTime", "kept", "text"];
const MEASURES = [
  ["bytes", "bytes"],
  ["time", "bytes × lifetime"],
];

export class LiveView {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    const { store } = context;
    this.group = select("Group by", Object.entries(GROUP_LABELS), (key) => store.set({ key, root: "" }));
    this.measure = select("Width by", MEASURES, (measure) =>
      store.set({ measure: /** @type {"bytes"|"time"} */ (measure), root: "" }),
    );
    this.follow = checkbox("Follow the pointer", (follow) => store.set({ follow }));
    this.back = linkButton("Back to a single event", () => store.set({ range: null }));
    this.title = h("h2", { class: "title" });
    this.table = new ScrollTable("Live allocations by group");
    this.icicle = new Icicle(context);
    const head = headRow([this.title, this.back], [this.follow.element, this.group.element, this.measure.element]);
    const halves = h("div", { class: "halves" }, this.table.element, this.icicle.element);
    this.element = h("div", { class: "live" }, head, halves);
    this.turn = 0;
  }

  /** @param {number} limit */
  request(limit) {
    const { range, key } = this.context.now;
    return this.context.request("live", { event: this.context.event(), range, key, limit });
  }

  async refresh() {
    const turn = ++this.turn;
    const { context } = this;
    const { now } = context;
    const event = context.event();
    const response = await this.request(LIMIT);
    if (turn !== this.turn) return;
    this.group.value(now.key);
    this.measure.value(now.measure);
    this.follow.field.checked = now.follow;
    this.back.hidden = !now.range;
    const moment = event < 0 ? "before the first event" : `at event ${count(event)}`;
    const where = now.range
      ? `Events ${count(now.range[0])} – ${count(now.range[1])}`
      : `Live ${now.event === null ? "at the peak" : moment}`;
    const file = context.files.length > 1 ? ` · ${context.files[now.source].name}` : "";
    this.title.textContent = `${where}: ${plural(response.count, "allocation")}, ${size(response.bytes)}${file}`;
    this.showGroups(response);
    await this.icicle.refresh(response.timed);
  }

  /** @param {any} response */
  showGroups({ groups, more, bytes, count: allocations, timed }) {
    const { key, range } = this.context.now;
    // A range has an end at which allocations may still be alive; a single event has lifetimes
    const last = range ? "alive at end" : timed ? "lifetime" : "";
    const headings = [GROUP_LABELS[key], "bytes", "share", "count", ...(last ? [last] : [])];
    const lastText = (/** @type {any} */ { aliveAtEnd, open, byteTime, bytes: groupBytes }) =>
      range ? fine(aliveAtEnd) : `${open ? "≥ " : ""}${duration(groupBytes ? byteTime / groupBytes : 0)}`;
    const rows = groups.map((/** @type {any} */ group) => {
      const share = bytes ? (100 * group.bytes) / bytes : 0;
      const { mark } = this.context.now;
      const marked = mark.kind === "group" && mark.key === key && mark.code === group.code;
      return h(
        "tr",
        { class: marked ? "marked" : "" },
        h("th", { scope: "row" }, this.groupButton(group, marked)),
        numberCell(fine(group.bytes)),
        barCell(`${share.toFixed(share < 9.95 ? 1 : 0)}%`, share),
        numberCell(count(group.count)),
        last && numberCell(lastText(group)),
      );
    });
    const foot = allocations ? "" : "Nothing was allocated here.";
    this.table.show(headings, rows, more ? `and ${plural(more, "smaller group")}` : foot);
  }

  /** @param {any} group @param {boolean} marked */
  groupButton(group, marked) {
    const { code, file, line, label, source, via } = group;
    const place = file ? `${file}${line ? `:${line}` : ""}` : "";
    const title = [place, source, "Click to mark these allocations in the timeline."].filter(Boolean).join("\n");
    const attributes = { class: "plain", data: { key: code }, aria: { pressed: marked }, title };
    const content = [h("span", {}, label), source && h("code", {}, source), via && h("small", {}, `via ${via}`)];
    return button(content, () => this.toggleMark(code, marked), attributes);
  }

  /** @param {number} code @param {boolean} marked */
  toggleMark(code, marked) {
    const { store, now } = this.context;
    if (now.key === "allocation" && !marked) store.set({ row: code });
    store.set({ mark: marked ? { kind: "none" } : { kind: "group", key: now.key, code } });
  }

  /** All groups, including those that are not on the screen. */
  async csv() {
    const { range } = this.context.now;
    const { groups } = await this.request(Number.POSITIVE_INFINITY);
    const rows = groups.map((/** @type {any} */ group) => ({ ...group, kept: range ? group.aliveAtEnd : null }));
    return toCsv([CSV_HEAD, ...rowsOf(CSV_FIELDS, rows)]);
  }
}
