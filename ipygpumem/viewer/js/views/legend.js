/** What the colours mean; a click leaves a class out. */

import { fine, plural, size } from "../model/units.js";
import { h } from "./dom.js";

export class LegendView {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    this.element = h("div", { class: "legend", role: "group", aria: { label: "Legend: what the colours mean" } });
  }

  async refresh() {
    const { context } = this;
    const legend = await context.legend();
    const swatches = context.swatches(legend);
    const { hidden, mark } = context.now;
    const chips = legend.classes.map((one, number) =>
      one.count
        ? h(
            "button",
            {
              type: "button",
              class: "chip",
              aria: { pressed: String(!hidden.includes(number)) },
              title: `${one.label}\n${size(one.bytes)} at the peak, ${plural(one.count, "allocation")} in all.\nClick to leave it out, double click to see it alone.`,
              on: {
                click: () => this.toggle(number),
                dblclick: () => this.alone(number, legend.classes.length),
              },
            },
            h("i", { style: { background: swatches[number] } }),
            h("span", {}, one.label),
            h("small", {}, fine(one.bytes)),
          )
        : null,
    );
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
    this.element.replaceChildren(
      ...chips.filter((chip) => chip !== null),
      ...(hidden.length ? [all] : []),
      ...(mark.kind === "none" ? [] : [clear]),
    );
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
