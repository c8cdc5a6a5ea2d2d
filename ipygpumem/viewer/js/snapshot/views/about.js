/** The panel with information about the file: device, events, capacity and allocator settings. */

import { count, duration, oneLine, size } from "../../data/units.js";
import { h } from "../../ui/dom.js";

const MAX_SETTINGS = 200;

export class AboutView {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    this.element = h("div", { class: "about-file" });
  }

  async refresh() {
    const sections = this.context.files.map((file, source) => {
      const items = this.facts(file, source).flatMap(([name, value]) => [item("dt", name), item("dd", value)]);
      return h("section", {}, h("h2", { class: "where", title: file.name }, file.name), h("dl", {}, ...items));
    });
    this.element.replaceChildren(...sections);
  }

  /** @param {import("../context.js").Overview} file @param {number} source */
  facts(file, source) {
    const { index, name, events, allocations, segments, timed, span, origin, peak, reserved, total } =
      this.context.facts(source);
    const start = () => new Date(origin / 1000).toISOString().replace("T", " ").slice(0, 19);
    const bytes = (/** @type {number} */ value) => `${size(value)} (${count(value)} bytes)`;
    const all = Object.entries(file.settings);
    const settings = all
      .slice(0, MAX_SETTINGS)
      .map(([key, value]) => [
        oneLine(key),
        oneLine(typeof value === "string" ? value || "(empty)" : JSON.stringify(value)),
      ]);
    if (all.length > settings.length) settings.push(["settings", `and ${count(all.length - settings.length)} more`]);
    return [
      ["device", name ? `${index}, ${name}` : String(index)],
      ["events", count(events)],
      ["allocations", count(allocations)],
      ["stacks", count(file.stacks)],
      ["segments at the end", count(segments)],
      ["recorded", timed ? `${duration(span)}, from ${start()} UTC` : "without timestamps"],
      ["peak allocated", `${bytes(peak.bytes)}, requested`],
      ["peak reserved", reserved === null ? "unknown" : bytes(reserved)],
      ["capacity", total === null ? "not in the file" : size(total)],
      ...settings,
    ];
  }
}

/** @param {"dt"|"dd"} tag @param {string} text */
function item(tag, text) {
  return h(tag, { class: "where", title: text }, text);
}
