/** A box of text beside the pointer. */

import { h } from "./dom.js";

const MARGIN = 4;

export class Tooltip {
  /** @param {HTMLElement} root the element that the tooltip stays inside */
  constructor(root) {
    this.root = root;
    this.element = h("div", { class: "tooltip", role: "status", aria: { live: "off" }, hidden: true });
    root.append(this.element);
  }

  hide() {
    this.element.hidden = true;
  }

  /** @param {HTMLElement} plot @param {{x: number, y: number}} position in the plot @param {HTMLElement[]} lines */
  show(plot, position, lines) {
    const { element, root } = this;
    element.replaceChildren(...lines);
    element.hidden = false;
    const inner = plot.getBoundingClientRect();
    const outer = root.getBoundingClientRect();
    const x = inner.left - outer.left + position.x;
    const y = inner.top - outer.top + position.y;
    const { offsetWidth, offsetHeight } = element;
    const left = x + 16 + offsetWidth > outer.width ? x - offsetWidth - 14 : x + 16;
    const top = Math.min(y - offsetHeight / 2, outer.height - offsetHeight - MARGIN);
    element.style.transform = `translate(${Math.max(left, 2)}px, ${Math.max(top, MARGIN)}px)`;
  }
}
