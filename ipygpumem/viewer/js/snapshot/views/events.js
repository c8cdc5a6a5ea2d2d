/** The panel with the list of all events. Only the visible rows are in the document. */

import { rowsOf, toCsv } from "../../data/csv.js";
import { count, fine, milliseconds, plural, size } from "../../data/units.js";
import { button, headRow, select } from "../../ui/controls.js";
import { frameScheduler, h, listen } from "../../ui/dom.js";

const ROW = 22; // pixels
const MAX_HEIGHT = 6e6; // pixels: browsers limit the height of an element
const CSV_BATCH = 50000;
const CSV_HEAD = ["event", "time_us", "action", "size", "allocated_after", "address", "stream", "line"];
const CSV_FIELDS = ["event", "time", "action", "size", "total", "address", "stream", "line"];
const FILTER_DELAY_MS = 120;
const COLUMNS = ["event", "time", "action", "size", "allocated after", "address", "line"];
const NUMBERS = [0, 1, 3, 4]; // columns

export class EventsView {
  /** @param {import("../context.js").Context} context @param {import("./actions.js").Actions} actions */
  constructor(context, actions) {
    this.context = context;
    this.actions = actions;
    this.action = select("Action", [], () => this.refilter());
    this.filter = h("input", {
      type: "search",
      placeholder: "file, 0x7f…, >10 MiB",
      on: { input: () => this.refilter() },
    });
    this.count = h("span", { class: "soft", role: "status" });
    this.rows = h("div", { class: "rows", role: "rowgroup" });
    this.sizer = h("div", { class: "sizer", role: "presentation" });
    const label = "Events. Up and Down go to the previous and the next event.";
    const attributes = { class: "list", tabindex: 0, role: "table", aria: { label } };
    this.scroll = h("div", attributes, this.sizer, this.rows);
    listen(this.scroll, {
      scroll: () => this.schedule.request(),
      wheel: (event) => this.wheel(event),
      keydown: (event) => this.keys(event),
    });
    const filter = h("label", { class: "choice" }, h("span", {}, "Filter"), this.filter);
    const cursor = button("Go to the cursor", () => this.showCursor());
    const controls = headRow([filter, this.action.element, this.count], [cursor]);
    const names = COLUMNS.map((text, i) => h("span", { class: NUMBERS.includes(i) ? "number" : "" }, text));
    const head = h("div", { class: "event head", aria: { hidden: "true" } }, ...names);
    this.element = h("div", { class: "events" }, controls, head, this.scroll);
    this.total = 0;
    /** The index of the first visible row, if the scroll bar is too coarse to show it. */
    this.top = 0;
    this.turn = 0;
    this.schedule = frameScheduler(() => this.draw());
    this.timer = 0;
  }

  /** The current filter. */
  request() {
    const actions = this.action.field.value;
    return { text: this.filter.value, actions: actions ? actions.split(",").map(Number) : null };
  }

  refilter() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.scroll.scrollTop = 0;
      this.top = 0;
      this.draw();
    }, FILTER_DELAY_MS);
  }

  async refresh() {
    const { context } = this;
    if (!this.action.field.childElementCount) {
      const actions = context.files[0].actions.map((name, i) => [String(i), name.replaceAll("_", " ")]);
      const groups = [
        ["", "all"],
        ["0", "alloc"],
        ["1,2", "all frees"],
        ["3,4,5,6", "all segment actions"],
      ];
      this.action.options([...groups, ...actions.slice(1)]);
    }
    await this.draw();
    // Keep the cursor visible when the list opens and when the cursor moves
    if (context.now.event === null) return;
    const { index } = await context.request("indexOf", { ...this.request(), event: context.event() });
    const first = this.firstRow();
    if (index >= first && index < first + this.visibleRows() - 2) return;
    this.jump(index - Math.floor(this.visibleRows() / 2));
    await this.draw();
  }

  visibleRows() {
    return Math.ceil((this.scroll.clientHeight || 300) / ROW) + 1;
  }

  /** Rows per row of the scroll bar. */
  scale() {
    return Math.max(1, (this.total * ROW) / MAX_HEIGHT);
  }

  firstRow() {
    return this.scale() > 1 ? this.top : Math.floor(this.scroll.scrollTop / ROW);
  }

  async draw() {
    const turn = ++this.turn;
    const { context, scroll } = this;
    const scale = this.scale();
    const scrolled = Math.floor((scroll.scrollTop * scale) / ROW);
    // Between two positions of a coarse scroll bar, `top` is more precise
    if (Math.abs(scrolled - this.top) > scale + 1) this.top = scrolled;
    const from = scale > 1 ? this.top : scrolled;
    const response = await context.request("events", { ...this.request(), from, count: this.visibleRows() });
    if (turn !== this.turn) return;
    if (response.total !== this.total) {
      this.total = response.total;
      this.sizer.style.height = `${Math.min(this.total * ROW, MAX_HEIGHT)}px`;
    }
    const events = plural(context.facts().events, "event");
    this.count.textContent = this.total === context.facts().events ? events : `${count(this.total)} of ${events}`;
    const cursor = context.now.event === null ? null : context.event();
    this.rows.style.transform = `translateY(${scale > 1 ? scroll.scrollTop : from * ROW}px)`;
    this.rows.replaceChildren(...response.rows.map((/** @type {any} */ event) => this.row(event, cursor)));
    if (this.total) return;
    const empty = context.facts().events
      ? "No event matches this filter."
      : "This file contains segments, but no events.";
    this.rows.replaceChildren(h("p", { class: "empty" }, empty));
  }

  /** @param {any} event @param {number|null} cursor */
  row({ event, time, action, size: bytes, total, address, line }, cursor) {
    const kind = action.startsWith("free") ? "free" : action === "alloc" ? "" : "other";
    const cells = [
      count(event),
      time === null ? "" : milliseconds(time),
      action.replaceAll("_", " "),
      bytes ? fine(bytes) : "",
      size(total),
      address,
      line,
    ];
    const attributes = { role: "row", class: `event ${event === cursor ? "marked" : ""} ${kind}` };
    return h(
      "div",
      { ...attributes, on: { click: () => this.goTo(event) } },
      ...cells.map((text, i) => h("span", { role: "cell", class: NUMBERS.includes(i) ? "number" : "" }, text)),
    );
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    if (this.scale() <= 1 || !event.deltaY) return;
    event.preventDefault();
    const rows = event.deltaMode ? event.deltaY * 3 : event.deltaY / ROW;
    this.jump(this.top + Math.sign(rows) * Math.max(1, Math.round(Math.abs(rows))));
  }

  /** @param {number} index of the first visible row */
  jump(index) {
    this.top = Math.min(Math.max(Math.round(index), 0), Math.max(this.total - this.visibleRows() + 2, 0));
    this.scroll.scrollTop = (this.top * ROW) / this.scale();
    this.schedule.request();
  }

  /** @param {number} event */
  async goTo(event) {
    const { source } = this.context.now;
    const { row } = await this.context.request("moment", { event });
    await this.actions.goTo(event, source, { row: row >= 0 ? row : null });
  }

  async showCursor() {
    const { index } = await this.context.request("indexOf", { ...this.request(), event: this.context.event() });
    this.jump(index - Math.floor(this.visibleRows() / 2));
  }

  /** @param {KeyboardEvent} event */
  async keys(event) {
    const page = this.visibleRows() - 2;
    const { key } = event;
    if (!["ArrowDown", "ArrowUp", "PageDown", "PageUp", "Home", "End"].includes(key)) return;
    event.preventDefault();
    if (key === "Home" || key === "End") this.jump(key === "Home" ? 0 : this.total);
    else if (key.startsWith("Page")) this.jump(this.firstRow() + (key === "PageDown" ? page : -page));
    else await this.stepCursor(key === "ArrowUp" ? -1 : 1, page);
  }

  /** Go to the next or previous event of the filtered list. @param {1|-1} step @param {number} page rows */
  async stepCursor(step, page) {
    const cursor = await this.context.request("indexOf", { ...this.request(), event: this.context.event() });
    // Without the cursor's event in the list, its index is that of the next event
    const index = step < 0 || cursor.exact ? cursor.index + step : cursor.index;
    const { rows } = await this.context.request("events", { ...this.request(), from: Math.max(index, 0), count: 1 });
    if (!rows.length) return;
    await this.goTo(rows[0].event);
    if (index < this.top + 1 || index > this.top + page - 1) this.jump(index - Math.floor(page / 2));
  }

  async csv() {
    const parts = [toCsv([CSV_HEAD])];
    const filter = this.request();
    for (let from = 0, total = 1; from < total; from += CSV_BATCH) {
      const response = await this.context.request("events", { ...filter, from, count: CSV_BATCH });
      total = response.total;
      parts.push(toCsv(rowsOf(CSV_FIELDS, response.rows)));
    }
    return parts;
  }
}
