/** The legend of the colors. A click hides a class. */

import { fine, plural, size } from "../../data/units.js";
import { button, linkButton } from "../../ui/controls.js";
import { h, replaceChildren } from "../../ui/dom.js";
import { chartColors } from "../../ui/theme.js";

const MAX_ROWS = 2;

/** @typedef {import("../context.js").Legend} Legend */

export class LegendView {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    this.unfolded = false;
    this.more = linkButton("", () => {
      this.unfolded = !this.unfolded;
      this.fold();
    });
    this.heading = h("small", { class: "soft" }, "At the peak:");
    this.element = h("div", { class: "legend", role: "group", aria: { label: "Legend" } });
  }

  async refresh() {
    const { context } = this;
    const { store } = context;
    const { hidden, mark } = context.now;
    const legends = await Promise.all(context.files.map((_, source) => context.legend(source)));
    // All files have the same classes, except for the number of others
    const [legend] = legends;
    const bytesOf = (/** @type {number} */ number) =>
      legends.reduce((sum, { classes }) => sum + (classes[number]?.bytes ?? 0), 0);
    const order = [...legend.classes.keys()];
    if (legends.length > 1 && !legend.ordered) order.sort((a, b) => bytesOf(b) - bytesOf(a));
    replaceChildren(this.element, [
      ...this.curves(),
      this.heading,
      ...order.flatMap((number) => this.chip(number, legends) ?? []),
      this.more,
      ...(hidden.length ? [linkButton("Show all", () => store.set({ hidden: [] }))] : []),
      ...(mark.kind === "none"
        ? []
        : [linkButton("Clear marks", () => store.set({ mark: { kind: "none" }, search: "" }))]),
    ]);
    this.fold();
  }

  curves() {
    const colors = chartColors(this.context.theme);
    return reservedCurves(this.context).map(({ kind, text, bytes }) => {
      const sign = h("i", { style: { color: colors[kind] } });
      const attributes = { class: `curve ${kind}`, title: `${text}: highest value` };
      return h("span", attributes, sign, h("span", {}, text), h("small", {}, bytes));
    });
  }

  /** @param {number} number @param {Legend[]} legends */
  chip(number, legends) {
    const { context } = this;
    const { files, now } = context;
    const several = files.length > 1;
    const entries = legends.map(({ classes }) => classes[number] ?? { label: "", place: 0, bytes: 0, count: 0 });
    if (!entries.some(({ count }) => count)) return null;
    const label = several && legends[0].classes[number].place === -1 ? "others" : entries[0].label;
    const shown = context.crowded ? [entries[now.source]] : entries;
    const sums = entries.map(({ bytes, count }, source) => {
      const name = several ? `${files[source].name}: ` : "";
      return `${name}${size(bytes)} at the peak, ${plural(count, "allocation")} in total.`;
    });
    const content = [
      h("i", { style: { background: context.swatches(legends[0])[number] } }),
      h("span", {}, label),
      h("small", {}, shown.map(({ bytes }) => fine(bytes)).join(" · ")),
    ];
    return button(content, () => this.toggle(number), {
      class: "chip",
      data: { key: number },
      aria: { pressed: !now.hidden.includes(number) },
      title: [label, ...sums, "Click to hide this class, double click to show only this class."].join("\n"),
      on: { dblclick: () => this.showOnly(number, legends[0].classes.length) },
    });
  }

  /** Hide chips beyond two rows, unless the legend is unfolded. */
  fold() {
    const { element, heading, more } = this;
    const chips = /** @type {HTMLElement[]} */ ([...element.querySelectorAll(".chip")]);
    more.hidden = true;
    if (!chips.length) return;
    for (const chip of chips) chip.hidden = false;
    const row = (/** @type {HTMLElement} */ item) =>
      Math.round((middleOf(item) - middleOf(chips[0])) / chips[0].offsetHeight);
    // The heading is omitted if it would take a separate row
    heading.hidden = false;
    heading.hidden = row(heading) < 0;
    const end = /** @type {HTMLElement} */ (element.lastElementChild);
    const last = end === more ? chips[chips.length - 1] : end;
    if (row(last) < MAX_ROWS) return;
    more.hidden = false;
    more.textContent = "fewer";
    more.setAttribute("aria-expanded", String(this.unfolded));
    if (this.unfolded) return;
    for (let count = chips.length - 1; count > 0 && row(end) >= MAX_ROWS; count--) {
      chips[count].hidden = true;
      more.textContent = `${chips.length - count} more`;
    }
  }

  /** @param {number} number */
  toggle(number) {
    const { hidden } = this.context.now;
    const stillHidden = hidden.filter((index) => index !== number);
    const next = stillHidden.length < hidden.length ? stillHidden : [...hidden, number].sort((a, b) => a - b);
    this.context.store.set({ hidden: next });
  }

  /** @param {number} number @param {number} count */
  showOnly(number, count) {
    this.context.store.set({ hidden: [...Array(count).keys()].filter((index) => index !== number) });
  }
}

/**
 * The entries for the reserved curves, if there is one with other settings.
 * @param {import("../context.js").Context} context
 */
export function reservedCurves(context) {
  const all = context.files.map((_, source) => context.facts(source));
  const settings = all.find(({ replay }) => replay)?.replay?.settings;
  const peaks = (/** @type {(number|null|undefined)[]} */ values) =>
    values.map((bytes) => (typeof bytes === "number" ? fine(bytes) : "unknown")).join(" · ");
  const curves = /** @type {const} */ ([
    { kind: "reserved", text: "reserved", bytes: peaks(all.map(({ reserved }) => reserved)) },
    { kind: "replayed", text: `reserved with ${settings}`, bytes: peaks(all.map(({ replay }) => replay?.peak)) },
  ]);
  return settings ? curves : [];
}

/** The vertical middle of an element, in pixels. @param {HTMLElement} element */
function middleOf(element) {
  return element.offsetTop + element.offsetHeight / 2;
}
