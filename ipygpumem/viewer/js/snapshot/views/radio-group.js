/** A row of buttons of which one is selected. */

import { button } from "../../ui/controls.js";
import { h } from "../../ui/dom.js";

/**
 * @template {string} T
 * @param {string} label @param {readonly (readonly [T, string, string])[]} options value, text and title
 * @param {(value: T) => void} onChange
 */
export function radioGroup(label, options, onChange) {
  const buttons = options.map(([value, text, title]) =>
    button(text, () => onChange(value), { role: "radio", title, data: { value } }),
  );
  const element = h("div", { class: "radios", role: "radiogroup", aria: { label } }, ...buttons);
  element.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const enabled = buttons.filter((option) => !option.disabled);
    const current = enabled.findIndex((option) => option.getAttribute("aria-checked") === "true");
    const next = enabled[(current + step + enabled.length) % enabled.length];
    next.focus();
    next.click();
  });
  return {
    element,
    /** @param {string} value */
    value(value) {
      for (const option of buttons) {
        const selected = option.dataset.value === value;
        option.setAttribute("aria-checked", String(selected));
        option.tabIndex = selected ? 0 : -1;
      }
    },
    /** @param {string} value @param {boolean} enabled */
    enable(value, enabled) {
      for (const option of buttons) if (option.dataset.value === value) option.disabled = !enabled;
    },
  };
}
