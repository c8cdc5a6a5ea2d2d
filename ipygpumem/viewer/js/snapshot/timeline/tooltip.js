/** What is under the pointer, in a few lines beside it. */

import { count, duration, fine, plural, size } from "../../data/units.js";
import { h } from "../../ui/dom.js";

export class Tooltip {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.element = h("div", { class: "tooltip", role: "status", aria: { live: "off" }, hidden: true });
    root.append(this.element);
  }

  hide() {
    this.element.hidden = true;
  }

  /**
   * @param {import("./timeline.js").Timeline} timeline @param {{x: number, y: number}} place in the plot
   * @param {{at: NonNullable<ReturnType<import("./timeline.js").Timeline["at"]>>, facts: any, thin: {count: number, bytes: number}|null}} told
   */
  show(timeline, place, { at, facts, thin }) {
    const lines = [];
    if (facts) {
      lines.push(h("b", {}, fine(facts.size)), h("span", { class: "where" }, facts.line));
      if (facts.source) lines.push(h("code", { class: "where" }, facts.source));
      const life = facts.lifetime === null ? plural(facts.lifetimeEvents, "event") : duration(facts.lifetime);
      lines.push(
        h(
          "span",
          { class: "soft" },
          facts.end === null
            ? `alive at the end, for ${facts.start === null ? "≥ " : ""}${life}`
            : `lives ${facts.start === null ? "≥ " : ""}${life}`,
        ),
      );
    } else if (thin) {
      lines.push(
        h("b", {}, `${plural(thin.count, "allocation")}, ${fine(thin.bytes)}`),
        h("span", { class: "soft" }, "each lower than a pixel: zoom in to see them"),
      );
    } else if (at.strip) {
      lines.push(
        at.hidden.count
          ? h("b", {}, `${plural(at.hidden.count, "brief allocation")}, ${fine(at.hidden.bytes)}`)
          : h("b", {}, "No brief allocation"),
        h("span", { class: "soft" }, "made and freed inside this pixel: zoom in to see them"),
      );
    }
    const levels = timeline.levels(at.event);
    const told = Number.isNaN(at.reserved) || levels.some(([name]) => name.startsWith("outside"));
    for (const [name, bytes] of levels) {
      const rest = size(Math.max(bytes - at.reserved, 0));
      const outside = told ? "" : ` · ${rest} outside PyTorch and other processes`;
      lines.push(h("span", {}, `${size(bytes)} ${name}${outside}`));
    }
    const events = at.last > at.first ? `events ${count(at.first)} – ${count(at.last)}` : `event ${count(at.event)}`;
    lines.push(
      h(
        "span",
        { class: "foot" },
        `${size(at.total)} allocated`,
        Number.isNaN(at.reserved) ? "" : ` · ${size(at.reserved)} reserved`,
      ),
      h("span", { class: "soft" }, events),
    );
    if (at.thin.count && !thin && facts)
      lines.push(
        h(
          "span",
          { class: "soft" },
          `${plural(at.thin.count, "allocation")} lower than a pixel: ${fine(at.thin.bytes)}`,
        ),
      );
    this.put(timeline, place, lines);
  }

  /** @param {import("./timeline.js").Timeline} timeline @param {{x: number, y: number}} place @param {import("../engine/overview.js").Band} band */
  words(timeline, place, band) {
    const life =
      band.start !== null && band.end !== null ? duration(band.end - band.start) : "not closed in the recording";
    this.put(timeline, place, [h("b", { class: "where" }, band.label), h("span", { class: "soft" }, life)]);
  }

  /** @param {import("./timeline.js").Timeline} timeline @param {{x: number, y: number}} place @param {HTMLElement[]} lines */
  put(timeline, place, lines) {
    const { element, root } = this;
    element.replaceChildren(...lines);
    element.hidden = false;
    const plot = timeline.plot.getBoundingClientRect();
    const whole = root.getBoundingClientRect();
    const x = plot.left - whole.left + place.x;
    const y = plot.top - whole.top + place.y;
    const { offsetWidth, offsetHeight } = element;
    const left = x + 16 + offsetWidth > whole.width ? x - offsetWidth - 14 : x + 16;
    const top = Math.min(Math.max(y - offsetHeight / 2, 4), Math.max(whole.height - offsetHeight - 4, 4));
    element.style.transform = `translate(${Math.max(left, 2)}px, ${top}px)`;
  }
}
