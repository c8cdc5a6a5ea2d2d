/** All events as a list: only the rows in sight exist. */

import { count, fine, milliseconds, plural, size } from "../../data/units.js";
import { lines } from "../../data/csv.js";
import { eachFrame, h } from "../../ui/dom.js";

const ROW = 22;
const TALLEST = 6e6; // pixels: above some 30 million a browser's scroll bar ends before the list does
const PART_CSV = 50000;

export class EventsView {
  /** @param {import("../context.js").Context} context @param {import("./actions.js").Actions} actions */
  constructor(context, actions) {
    this.context = context;
    this.actions = actions;
    this.kinds = h("select", { on: { change: () => this.refilter() } });
    this.filter = h("input", {
      type: "search",
      placeholder: "file, 0x7f…, >10 MiB",
      on: { input: () => this.refilter() },
    });
    this.count = h("span", { class: "soft", role: "status" });
    this.rows = h("div", { class: "rows", role: "rowgroup" });
    this.space = h("div", { class: "sizer", role: "presentation" });
    this.scroll = h(
      "div",
      {
        class: "list",
        tabindex: 0,
        role: "table",
        aria: { label: "Events. Up and down: event before and after. Enter: go to it." },
        on: {
          scroll: () => this.again.ask(),
          wheel: (/** @type {WheelEvent} */ event) => this.wheel(event),
          keydown: (/** @type {KeyboardEvent} */ event) => this.keys(event),
        },
      },
      this.space,
      this.rows,
    );
    const head = h(
      "div",
      { class: "event head", aria: { hidden: "true" } },
      ...["event", "time", "action", "size", "allocated after", "address", "line"].map((text, i) =>
        h("span", { class: [0, 1, 3, 4].includes(i) ? "number" : "" }, text),
      ),
    );
    this.element = h(
      "div",
      { class: "events" },
      h(
        "div",
        { class: "row head" },
        h("label", { class: "choice" }, h("span", {}, "Filter"), this.filter),
        h("label", { class: "choice" }, h("span", {}, "Action"), this.kinds),
        this.count,
        h("span", { class: "space" }),
        h("button", { type: "button", on: { click: () => this.toCursor() } }, "To the cursor"),
      ),
      head,
      this.scroll,
    );
    this.total = 0;
    this.top = 0;
    this.begun = 0;
    this.turn = 0;
    this.again = eachFrame(() => this.draw());
    this.timer = 0;
  }

  /** What is asked for. */
  wanted() {
    const kind = this.kinds.value;
    return { text: this.filter.value, actions: kind ? kind.split(",").map(Number) : null };
  }

  refilter() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.scroll.scrollTop = 0;
      this.top = 0;
      this.draw();
    }, 120);
  }

  async refresh() {
    const { context } = this;
    if (!this.kinds.childElementCount) {
      const { actions } = context.files[0];
      const option = (/** @type {string} */ value, /** @type {string} */ text) => h("option", { value }, text);
      this.kinds.append(
        option("", "all"),
        option("0", "alloc"),
        option("1,2", "frees"),
        option("3,4,5,6", "segments"),
        ...actions.map((text, i) => option(String(i), text)).slice(1),
      );
    }
    await this.draw();
    // the cursor is in sight: when the list is opened, and wherever it goes
    if (context.now.event === null) return;
    const { index } = await context.ask("indexOf", { ...this.wanted(), event: context.event() });
    const first = this.scale() > 1 ? this.top : Math.floor(this.scroll.scrollTop / ROW);
    if (index >= first && index < first + this.visible() - 2) return;
    this.jump(index - Math.floor(this.visible() / 2));
    await this.draw();
  }

  /** Rows in the window. */
  visible() {
    return Math.ceil((this.scroll.clientHeight || 300) / ROW) + 1;
  }

  scale() {
    return Math.max(1, (this.total * ROW) / TALLEST);
  }

  async draw() {
    const turn = ++this.turn;
    const { context, scroll } = this;
    const at = Math.floor((scroll.scrollTop * this.scale()) / ROW);
    // between two steps of a coarse scroll bar the wheel decides
    const step = this.scale();
    if (Math.abs(at - this.top) > step + 1) this.top = at;
    const from = step > 1 ? this.top : at;
    const answer = await context.ask("events", { ...this.wanted(), from, count: this.visible() });
    if (turn !== this.turn) return;
    if (answer.total !== this.total) {
      this.total = answer.total;
      this.space.style.height = `${Math.min(this.total * ROW, TALLEST)}px`;
    }
    const { events } = context.facts();
    this.count.textContent =
      this.total === events ? plural(events, "event") : `${count(this.total)} of ${plural(events, "event")}`;
    const cursor = context.event();
    const marked = context.now.event === null ? -2 : cursor;
    this.rows.style.transform = `translateY(${step > 1 ? scroll.scrollTop : from * ROW}px)`;
    this.rows.replaceChildren(
      ...answer.rows.map((/** @type {any} */ one) => {
        const cell = (/** @type {string} */ text, number = false) =>
          h("span", { role: "cell", class: number ? "number" : "" }, text);
        return h(
          "div",
          {
            role: "row",
            class: `event ${one.event === marked ? "marked" : ""} ${one.action.startsWith("free") ? "free" : one.action === "alloc" ? "" : "other"}`,
            on: { click: () => this.goTo(one.event) },
          },
          cell(count(one.event), true),
          cell(one.time === null ? "" : milliseconds(one.time), true),
          cell(one.action.replaceAll("_", " ")),
          cell(one.size ? fine(one.size) : "", true),
          cell(size(one.total), true),
          cell(one.address),
          cell(one.line),
        );
      }),
    );
    if (!this.total)
      this.rows.replaceChildren(
        h(
          "p",
          { class: "empty" },
          events ? "No event passes this filter." : "This file has no events: only its segments.",
        ),
      );
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    if (this.scale() <= 1 || !event.deltaY) return;
    event.preventDefault();
    const lines = event.deltaMode ? event.deltaY * 3 : event.deltaY / ROW;
    this.jump(this.top + Math.sign(lines) * Math.max(1, Math.round(Math.abs(lines))));
  }

  /** @param {number} index of the row above */
  jump(index) {
    this.top = Math.min(Math.max(Math.round(index), 0), Math.max(this.total - this.visible() + 2, 0));
    this.scroll.scrollTop = (this.top * ROW) / this.scale();
    this.again.ask();
  }

  /** @param {number} event */
  async goTo(event) {
    const { source } = this.context.now;
    const { row } = await this.context.ask("moment", { event });
    await this.actions.goTo(event, source, { row: row >= 0 ? row : null });
  }

  async toCursor() {
    const { index } = await this.context.ask("indexOf", { ...this.wanted(), event: this.context.event() });
    this.jump(index - Math.floor(this.visible() / 2));
  }

  /** @param {KeyboardEvent} event */
  async keys(event) {
    const page = this.visible() - 2;
    const { key } = event;
    if (key === "ArrowDown" || key === "ArrowUp") {
      event.preventDefault();
      const where = await this.context.ask("indexOf", { ...this.wanted(), event: this.context.event() });
      const index = key === "ArrowUp" ? where.index - 1 : where.index + (where.exact ? 1 : 0);
      const { rows } = await this.context.ask("events", { ...this.wanted(), from: Math.max(index, 0), count: 1 });
      if (!rows.length) return;
      await this.goTo(rows[0].event);
      if (index < this.top + 1 || index > this.top + page - 1) this.jump(index - Math.floor(page / 2));
    } else if (key === "PageDown" || key === "PageUp") {
      event.preventDefault();
      this.jump(
        (this.scale() > 1 ? this.top : Math.floor(this.scroll.scrollTop / ROW)) + (key === "PageDown" ? page : -page),
      );
    } else if (key === "Home" || key === "End") {
      event.preventDefault();
      this.jump(key === "Home" ? 0 : this.total);
    }
  }

  async csv() {
    const parts = [lines([["event", "time_us", "action", "size", "allocated_after", "address", "stream", "line"]])];
    const wanted = this.wanted();
    for (let from = 0, total = 1; from < total; from += PART_CSV) {
      const answer = await this.context.ask("events", { ...wanted, from, count: PART_CSV });
      total = answer.total;
      const row = (/** @type {any} */ one) => {
        const { event, time, action, size, total: after, address, stream, line } = one;
        return [event, time, action, size, after, address, stream, line];
      };
      parts.push(lines(answer.rows.map(row)));
    }
    return parts;
  }
}
