/** The file itself: devices, what it does not tell, the allocator's settings. */

import { count, duration, oneLine, size } from "../../data/units.js";
import { h } from "../../ui/dom.js";

export class AboutView {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    this.element = h("div", { class: "about-file" });
  }

  async refresh() {
    const { context } = this;
    this.element.replaceChildren(
      ...context.files.map((file, source) => {
        const facts = context.facts(source);
        const rows = [
          ["device", `${facts.index}${facts.name ? `, ${facts.name}` : ""}`],
          ["events", count(facts.events)],
          ["allocations", count(facts.allocations)],
          ["stacks", count(file.stacks)],
          ["segments at the end", count(facts.segments)],
          [
            "recorded",
            facts.timed
              ? `${duration(facts.span)}, from ${new Date(facts.origin / 1000).toISOString().replace("T", " ").slice(0, 19)} UTC`
              : "no times",
          ],
          ["peak allocated", `${size(facts.peak.bytes)} (${count(facts.peak.bytes)} bytes), requested bytes`],
          [
            "peak reserved",
            facts.reserved === null ? "unknown" : `${size(facts.reserved)} (${count(facts.reserved)} bytes)`,
          ],
          ["capacity", facts.total === null ? "not in the file" : size(facts.total)],
          ...Object.entries(file.settings).map(([name, value]) => [
            oneLine(name),
            oneLine(typeof value === "string" ? value || "(empty)" : JSON.stringify(value)),
          ]),
        ];
        return h(
          "section",
          {},
          h("h2", { class: "where", title: file.name }, file.name),
          h(
            "dl",
            {},
            ...rows.flatMap(([name, value]) => [
              h("dt", { class: "where", title: name }, name),
              h("dd", { class: "where", title: value }, value),
            ]),
          ),
        );
      }),
    );
  }
}
