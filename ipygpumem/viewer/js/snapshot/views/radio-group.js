/** A row of buttons of which one is selected: radio buttons, or tabs. */

import { button } from "../../ui/controls.js";
import { h } from "../../ui/dom.js";

const ROLES = {
  radio: { group: "radiogroup", selected: "aria-checked", class: "radios" },
  tab: { group: "tablist", selected: "aria-selected", class: "tabs" },
};

/**
 * @template {string} T
 * @param {string} label @param {readonly (readonly [T, string, string?])[]} options value, text and title
 * @param {(value: T) => void} onChange @param {keyof typeof ROLES} [role]
 */
export function radioGroup(label, options, onChange, role = "radio") {
  const { group, selected: state, class: name } = ROLES[role];
  const buttons = options.map(([value, text, title]) =>
    button(text, () => onChange(value), { role, title, data: { value } }),
  );
  const keydown = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const enabled = buttons.filter((option) => !option.disabled);
    const current = enabled.findIndex((option) => option.getAttribute(state) === "true");
    const next = enabled[(current + step + enabled.length) % enabled.length];
    next.focus();
    next.click();
  };
  return {
    element: h("div", { class: name, role: group, aria: { label }, on: { keydown } }, ...buttons),
    buttons,
    /** @param {string} value */
    value(value) {
      for (const option of buttons) {
        const selected = option.dataset.value === value;
        option.setAttribute(state, String(selected));
        option.tabIndex = selected ? 0 : -1;
      }
    },
    /** @param {string} value @param {boolean} enabled */
    enable(value, enabled) {
      for (const option of buttons) if (option.dataset.value === value) option.disabled = !enabled;
    },
  };
}
