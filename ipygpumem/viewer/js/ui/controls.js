/** Buttons, select fields, the help dialog and table cells that the pages share. */

import { h, replaceChildren } from "./dom.js";

/**
 * @param {string|(Node|string|null|undefined|false)[]} content @param {(event: MouseEvent) => void} onClick
 * @param {Record<string, any>} [attributes]
 */
export function button(content, onClick, attributes = {}) {
  const children = [content].flat();
  return h("button", { type: "button", ...attributes, on: { click: onClick, ...attributes.on } }, ...children);
}

/** @param {string} text @param {() => void} onClick @param {Record<string, any>} [attributes] */
export function linkButton(text, onClick, attributes) {
  return button(text, onClick, { class: "link", ...attributes });
}

/** A select field with its label. @param {string} label @param {readonly (readonly string[])[]} options value and text @param {(value: string) => void} onChange */
export function select(label, options, onChange) {
  const field = h("select", { on: { change: () => onChange(field.value) } });
  const setOptions = (/** @type {typeof options} */ list) =>
    field.replaceChildren(...list.map(([value, text]) => h("option", { value }, text)));
  setOptions(options);
  return {
    options: setOptions,
    element: h("label", { class: "choice" }, h("span", {}, label), field),
    field,
    /** @param {string} value */
    value(value) {
      if (field.value !== value) field.value = value;
    },
  };
}

/** @param {string} label @param {(checked: boolean) => void} onChange */
export function checkbox(label, onChange) {
  const field = h("input", { type: "checkbox", on: { change: () => onChange(field.checked) } });
  return { element: h("label", { class: "check" }, field, label), field };
}

/** A list of names and values, which are truncated if they are texts. @param {readonly (readonly [string, Node|string|null])[]} items */
export function definitions(items) {
  const value = (/** @type {Node|string|null} */ value) =>
    typeof value === "string" ? h("span", { class: "where", title: value }, value) : value;
  return h("dl", {}, ...items.flatMap(([name, content]) => [h("dt", {}, name), h("dd", {}, value(content))]));
}

/** The row above a panel. @param {(Node|null)[]} left @param {(Node|null)[]} right @param {string} [kind] */
export function headRow(left, right, kind = "row head") {
  return h("div", { class: kind }, ...left, h("span", { class: "space" }), ...right);
}

/** A cell of a table that holds a number. @param {...(Node|string|null)} children */
export function numberCell(...children) {
  return h("td", { class: "number" }, ...children);
}

/** @param {readonly string[]} names the first one is the heading of the row labels, the others are of numbers */
export function headerCells(names) {
  return names.map((name, column) => h("th", { scope: "col", class: column ? "number" : null }, name));
}

/** A cell with a bar behind its text. @param {string} text @param {number} percent @param {string} [kind] */
export function barCell(text, percent, kind = "") {
  const bar = h("i", { style: { width: `${percent.toFixed(1)}%` } });
  return h("td", { class: `number share ${kind}` }, bar, h("span", {}, text));
}

/** A table that scrolls, with a line below it. */
export class ScrollTable {
  /** @param {string} label */
  constructor(label) {
    this.head = h("tr");
    this.body = h("tbody");
    this.foot = h("p", { class: "soft" });
    const table = h("table", {}, h("thead", {}, this.head), this.body);
    const attributes = { class: "scroll", tabindex: 0, role: "region", aria: { label } };
    this.element = h("div", attributes, table, this.foot);
  }

  /** @param {readonly string[]} headings @param {HTMLElement[]} rows @param {string} foot */
  show(headings, rows, foot) {
    this.head.replaceChildren(...headerCells(headings));
    replaceChildren(this.body, rows);
    this.foot.textContent = foot;
  }
}

/** How to read the chart, and what each key does. */
export class HelpDialog {
  /** @param {readonly string[]} paragraphs @param {readonly (readonly string[])[]} keys key and effect; without an effect a heading */
  constructor(paragraphs, keys) {
    const items = keys.flatMap(([key, text]) =>
      text ? [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)] : [h("dt", { class: "part" }, key)],
    );
    const texts = paragraphs.map((text) => h("p", {}, text));
    const close = button("Close", () => this.element.close());
    const attributes = { class: "help", aria: { label: "Keys and gestures" } };
    this.element = h("dialog", attributes, h("h2", {}, "Reading the chart"), ...texts, h("dl", {}, ...items), close);
  }

  show() {
    if (!this.element.open) this.element.showModal();
  }
}
