/** The legend of a profile, which also shows and hides categories and counters. */

import { fine } from "../data/units.js";
import { h, replaceChildren } from "../ui/dom.js";
import { COLORS } from "./chart.js";
import { CATEGORIES, COUNTERS, ORDER } from "./model.js";

/** @type {Record<import("./model.js").Counter, string>} */
export const COUNTER_NAMES = { allocated: "allocated (PyTorch's own count)", reserved: "reserved" };

/** @param {HTMLElement} element @param {import("./state.js").ProfileState} state @param {import("../ui/theme.js").Theme} theme */
export function updateLegend(element, state, theme) {
  const { device, counters } = state;
  const chip = (
    /** @type {string} */ kind,
    /** @type {boolean} */ pressed,
    /** @type {(event: MouseEvent) => void} */ click,
    /** @type {HTMLElement[]} */ ...content
  ) => h("button", { type: "button", class: `chip ${kind}`, aria: { pressed }, on: { click } }, ...content);
  const chips = ORDER.map((category, position) => {
    const button = chip(
      "",
      device.shown[category],
      (event) => state.toggle(position, event.shiftKey),
      h("i", { class: "swatch", style: { background: COLORS[theme][category] } }),
      h("span", {}, CATEGORIES[category]),
      h("span", { class: "soft" }, fine(device.levels[category][device.overallPeak.row])),
    );
    button.title = `Show or hide this category (${position + 1}). Shift and click: show only this category`;
    return button;
  });
  const lines = COUNTERS.filter((name) => device.counters[name]).map((name) => {
    const toggle = () => state.toggleCounter(name);
    return chip(
      `line ${name}`,
      counters[name],
      toggle,
      h("i", { class: "stroke" }),
      h("span", {}, COUNTER_NAMES[name]),
    );
  });
  replaceChildren(element, [h("span", { class: "soft" }, "At the peak:"), ...chips, ...lines]);
}
