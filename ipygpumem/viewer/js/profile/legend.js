/** The legend of a profile, which also shows and hides categories and counters. */

import { fine } from "../data/units.js";
import { button } from "../ui/controls.js";
import { h, replaceChildren } from "../ui/dom.js";
import { COLORS } from "./chart.js";
import { CATEGORIES, COUNTERS, ORDER } from "./model.js";

/** @type {Record<import("./model.js").Counter, string>} */
export const COUNTER_NAMES = { allocated: "allocated (PyTorch's own count)", reserved: "reserved" };

/** @param {HTMLElement} element @param {import("./state.js").ProfileState} state @param {import("../ui/theme.js").Theme} theme */
export function updateLegend(element, state, theme) {
  const { device, counters } = state;
  const chips = ORDER.map((category, position) => {
    const content = [
      h("i", { class: "swatch", style: { background: COLORS[theme][category] } }),
      h("span", {}, CATEGORIES[category]),
      h("span", { class: "soft" }, fine(device.levels[category][device.overallPeak.row])),
    ];
    return button(content, (event) => state.toggle(position, event.shiftKey), {
      class: "chip",
      aria: { pressed: device.shown[category] },
      title: `Show or hide this category (${position + 1}). Shift and click: show only this category`,
    });
  });
  const lines = COUNTERS.filter((name) => device.counters[name]).map((name) => {
    const attributes = { class: `chip line ${name}`, aria: { pressed: counters[name] } };
    const content = [h("i", { class: "stroke" }), h("span", {}, COUNTER_NAMES[name])];
    return button(content, () => state.toggleCounter(name), attributes);
  });
  replaceChildren(element, [h("span", { class: "soft" }, "At the peak:"), ...chips, ...lines]);
}
