/** The live set at the cursor, or all that lived in a range: as a table and as an icicle of calls. */

import { count, duration, fine, plural, size } from "../../data/units.js";
import { toCsv } from "../../data/csv.js";
import { h, swap } from "../../ui/dom.js";
import { Icicle } from "./icicle.js";

const MOST = 100;
const GROUPS = [
  ["line", "line"],
  ["function", "function"],
  ["file", "file"],
  ["cell", "cell"],
  ["stack", "stack"],
  ["annotation", "region"],
  ["pool", "pool"],
  ["stream", "stream"],
  ["context", "compile context"],
  ["metadata", "metadata"],
  ["size", "size"],
  ["allocation", "single allocation"],
];

export class LiveView {
  /** @param {import("../context.js").Context} context @param {import("./actions.js").Actions} actions */
  constructor(context, actions) {
    this.context = context;
    this.actions = actions;
    this.group = select("Group by", GROUPS, (key) => context.store.set({ key, root: "" }));
    this.measure = select(
      "Width by",
      [
        ["bytes", "bytes"],
        ["time", "bytes × lifetime"],
      ],
      (measure) => context.store.set({ measure: /** @type {any} */ (measure), root: "" }),
    );
    this.title = h("h2", { class: "title" });
    this.body = h("tbody");
    this.head = h("tr");
    this.foot = h("p", { class: "soft" });
    this.icicle = new Icicle(context);
    const all = h(
      "button",
      { type: "button", class: "link", on: { click: () => context.store.set({ range: null }) } },
      "Back to one moment",
    );
    this.back = all;
    const follow = h("input", {
      type: "checkbox",
      on: { change: () => context.store.set({ follow: follow.checked }) },
    });
    this.follow = follow;
    this.element = h(
      "div",
      { class: "live" },
      h(
        "div",
        { class: "row head" },
        this.title,
        all,
        h("span", { class: "space" }),
        h("label", { class: "check" }, follow, "Follow the pointer"),
        this.group.element,
        this.measure.element,
      ),
      h(
        "div",
        { class: "halves" },
        h(
          "div",
          { class: "scroll", tabindex: 0, role: "region", aria: { label: "Live set by group" } },
          h("table", {}, h("thead", {}, this.head), this.body),
          this.foot,
        ),
        this.icicle.element,
      ),
    );
    this.turn = 0;
  }

  async refresh() {
    const turn = ++this.turn;
    const { context } = this;
    const { range, key, measure, source } = context.now;
    const event = context.event();
    const answer = await context.ask("live", { event, range, key, most: MOST });
    if (turn !== this.turn) return;
    this.group.value(key);
    this.measure.value(measure);
    this.follow.checked = context.now.follow;
    this.back.hidden = !range;
    const named = context.files.length > 1 ? ` · ${context.files[source].name}` : "";
    this.title.textContent = range
      ? `Events ${count(range[0])} – ${count(range[1])}: ${plural(answer.count, "allocation")}, ${size(answer.bytes)}${named}`
      : `Live ${context.now.event === null ? "at the peak" : event < 0 ? "before the first event" : `at event ${count(event)}`}: ${plural(answer.count, "allocation")}, ${size(answer.bytes)}${named}`;
    this.table(answer, Boolean(range));
    await this.icicle.refresh(answer);
  }

  /** @param {any} answer @param {boolean} stretch */
  table(answer, stretch) {
    const { context } = this;
    const { key, mark } = context.now;
    const last = stretch ? "kept" : answer.timed ? "mean life" : "";
    const head = (/** @type {string} */ text, number = true) =>
      h("th", { scope: "col", class: number ? "number" : "" }, text);
    this.head.replaceChildren(
      head(GROUPS.find(([name]) => name === key)?.[1] ?? key, false),
      head("bytes"),
      head("share"),
      head("count"),
      ...(last ? [head(last)] : []),
    );
    swap(
      this.body,
      answer.groups.map((/** @type {any} */ group) => {
        const marked = mark.kind === "group" && mark.key === key && mark.code === group.code;
        const share = answer.bytes ? group.bytes / answer.bytes : 0;
        return h(
          "tr",
          { class: marked ? "marked" : "" },
          h(
            "th",
            { scope: "row" },
            h(
              "button",
              {
                type: "button",
                class: "plain",
                data: { key: group.code },
                aria: { pressed: String(marked) },
                title: `${group.file ? `${group.file}${group.line ? `:${group.line}` : ""}\n` : ""}${group.source ?? ""}\nClick to mark these in the timeline.`,
                on: { click: () => this.mark(group, marked) },
              },
              h("span", {}, group.label),
              group.source && h("code", {}, group.source),
              group.trail && h("small", {}, `via ${group.trail}`),
            ),
          ),
          h("td", { class: "number" }, fine(group.bytes)),
          h(
            "td",
            { class: "number share" },
            h("i", { style: { width: `${(share * 100).toFixed(1)}%` } }),
            h("span", {}, `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`),
          ),
          h("td", { class: "number" }, count(group.count)),
          last &&
            h(
              "td",
              { class: "number" },
              stretch
                ? fine(group.kept)
                : `${group.open ? "≥ " : ""}${duration(group.bytes ? group.byteTime / group.bytes : 0)}`,
            ),
        );
      }),
    );
    this.foot.textContent = answer.count
      ? answer.more
        ? `and ${plural(answer.more, "smaller group")}`
        : ""
      : "Nothing was alive here.";
  }

  /** @param {any} group @param {boolean} marked */
  mark(group, marked) {
    const { store, now } = this.context;
    if (now.key === "allocation" && !marked) store.set({ row: group.code });
    store.set({ mark: marked ? { kind: "none" } : { kind: "group", key: now.key, code: group.code } });
  }

  /** All groups, not only those in sight. */
  async csv() {
    const { context } = this;
    const { range, key } = context.now;
    const answer = await context.ask("live", { event: context.event(), range, key, most: Number.POSITIVE_INFINITY });
    return toCsv(
      ["group", "file", "line", "name", "bytes", "count", "byte_time", "kept_bytes", "stack"],
      answer.groups.map((/** @type {any} */ one) => [
        one.label,
        one.file,
        one.line,
        one.name,
        one.bytes,
        one.count,
        one.byteTime,
        range ? one.kept : null, // at a moment there is no later one
        one.text,
      ]),
    );
  }
}

/** A choice with its label. @param {string} label @param {string[][]} options @param {(value: string) => void} chosen */
export function select(label, options, chosen) {
  const field = h(
    "select",
    { on: { change: () => chosen(field.value) } },
    ...options.map(([value, text]) => h("option", { value }, text)),
  );
  return {
    element: h("label", { class: "choice" }, h("span", {}, label), field),
    field,
    /** @param {string} value */
    value(value) {
      if (field.value !== value) field.value = value;
    },
  };
}
