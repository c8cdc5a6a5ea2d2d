/** What the colors mean; a click leaves a class out. */

import { fine, plural, size } from "../../data/units.js";
import { h, swap } from "../../ui/dom.js";

export class LegendView {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    this.open = false;
    this.more = h("button", { type: "button", class: "link", on: { click: () => this.unfold() } });
    this.element = h("div", { class: "legend", role: "group", aria: { label: "Legend: what the colors mean" } });
  }

  async refresh() {
    const { context } = this;
    const { files } = context;
    const legends = await Promise.all(files.map((_, source) => context.legend(source)));
    // the classes of all files are the same, but for how many others there are
    const legend = legends[0];
    const swatches = context.swatches(legend);
    const { hidden, mark } = context.now;
    /** @param {number} number */
    const sum = (number) => legends.reduce((all, { classes }) => all + (classes[number]?.bytes ?? 0), 0);
    const order = [...legend.classes.keys()];
    if (files.length > 1 && !legend.ordered) order.sort((a, b) => sum(b) - sum(a));
    const chips = order.map((number) => {
      const each = legends.map(({ classes }) => classes[number] ?? { label: "", bytes: 0, count: 0 });
      const { label } = files.length > 1 && legend.classes[number].place === -1 ? { label: "others" } : each[0];
      const told = context.crowd ? [each[context.now.source]] : each;
      const sums = each.map(({ bytes, count }, source) => {
        const name = files.length > 1 ? `${files[source].name}: ` : "";
        return `${name}${size(bytes)} at the peak, ${plural(count, "allocation")} in all.\n`;
      });
      return each.some((one) => one.count)
        ? h(
            "button",
            {
              type: "button",
              class: "chip",
              data: { key: number },
              aria: { pressed: String(!hidden.includes(number)) },
              title: `${label}\n${sums.join("")}Click to leave it out, double click to see it alone.`,
              on: {
                click: () => this.toggle(number),
                dblclick: () => this.alone(number, legend.classes.length),
              },
            },
            h("i", { style: { background: swatches[number] } }),
            h("span", {}, label),
            h("small", {}, told.map((one) => fine(one.bytes)).join(" · ")),
          )
        : null;
    });
    const clear = h(
      "button",
      { type: "button", class: "link", on: { click: () => context.store.set({ mark: { kind: "none" }, search: "" }) } },
      "Clear marks",
    );
    const all = h(
      "button",
      { type: "button", class: "link", on: { click: () => context.store.set({ hidden: [] }) } },
      "Show all",
    );
    swap(this.element, [
      h("small", { class: "soft" }, "At the peak:"),
      ...chips.filter((chip) => chip !== null),
      this.more,
      ...(hidden.length ? [all] : []),
      ...(mark.kind === "none" ? [] : [clear]),
    ]);
    this.fold();
  }

  unfold() {
    this.open = !this.open;
    this.fold();
  }

  /** Two rows at most, unless all was asked for. */
  fold() {
    const { element, more, open } = this;
    const chips = /** @type {HTMLElement[]} */ ([...element.querySelectorAll(".chip")]);
    more.hidden = true;
    if (!chips.length) return;
    for (const chip of chips) chip.hidden = false;
    const row = (/** @type {HTMLElement} */ one) =>
      Math.round((middle(one) - middle(chips[0])) / chips[0].offsetHeight);
    // no row of its own for the words before the first
    const words = /** @type {HTMLElement} */ (element.firstElementChild);
    words.hidden = false;
    words.hidden = row(words) < 0;
    const last = /** @type {HTMLElement|null} */ (
      element.lastElementChild === more ? chips.at(-1) : element.lastElementChild
    );
    if (!last || row(last) < 2) return;
    more.hidden = false;
    more.textContent = "fewer";
    more.setAttribute("aria-expanded", String(open));
    if (open) return;
    const end = /** @type {HTMLElement} */ (element.lastElementChild);
    for (let left = chips.length - 1; left > 0 && row(end) > 1; left--) {
      chips[left].hidden = true;
      more.textContent = `${chips.length - left} more`;
    }
  }

  /** @param {number} number */
  toggle(number) {
    const { hidden } = this.context.now;
    this.context.store.set({
      hidden: hidden.includes(number)
        ? hidden.filter((one) => one !== number)
        : [...hidden, number].sort((a, b) => a - b),
    });
  }

  /** @param {number} number @param {number} count */
  alone(number, count) {
    this.context.store.set({ hidden: Array.from({ length: count }, (_, one) => one).filter((one) => one !== number) });
  }
}

/** The middle of a thing, in pixels from above. @param {HTMLElement} one */
function middle(one) {
  return one.offsetTop + one.offsetHeight / 2;
}
