/** The heading of the viewer: names of the files and their most important numbers. */

import { count, duration, plural, size } from "../../data/units.js";
import { h } from "../../ui/dom.js";

const MAX_NAMES = 2; // files in the heading

export class Header {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    this.title = h("div", { class: "title" });
    this.numbers = h("dl", { class: "facts" });
    this.element = h("header", { class: "top" }, this.title, this.numbers);
    this.captionFacts = context.files.map(() => h("span"));
    /** The caption of each timeline. */
    this.captions = context.files.map(({ name }, source) =>
      h("p", { class: "file", title: name }, h("b", {}, name), this.captionFacts[source]),
    );
  }

  refresh() {
    const { files } = this.context;
    const several = files.length > 1;
    const names = files.map((file) => file.plain);
    const more = names.length - MAX_NAMES;
    const title = more > 0 ? `${names.slice(0, MAX_NAMES).join(", ")} and ${more} more` : names.join(" and ");
    const texts = files.map((_, source) => this.factsText(source));
    this.title.replaceChildren(h("h1", { title: names.join("\n") }, title), h("p", {}, several ? "" : texts[0]));
    for (const [source, facts] of this.captionFacts.entries()) facts.textContent = ` ${texts[source]}`;
    this.numbers.replaceChildren(...files.flatMap((_, source) => this.numberItems(source, more > 0)));
  }

  /** Mark the file that the panels show. */
  showCurrent() {
    for (const [source, caption] of this.captions.entries())
      caption.classList.toggle("current", source === this.context.now.source);
  }

  /** @param {number} source */
  factsText(source) {
    const { context } = this;
    const { files, home, now } = context;
    const { index, name, events, allocations, timed, span } = context.facts(source);
    const ambiguous = files[source].devices.length > 1 || home < 0;
    return [
      name,
      ambiguous && (files.length > 1 || !name) && index >= 0 && `device ${index}`,
      now.device >= 0 && context.where(source).device !== now.device && `no data on device ${now.device}`,
      plural(events, "event"),
      plural(allocations, "allocation"),
      timed && span && duration(span),
    ]
      .filter(Boolean)
      .join(" · ");
  }

  /** @param {number} source @param {boolean} peakOnly */
  numberItems(source, peakOnly) {
    const { files } = this.context;
    const { peak, reserved, total, events } = this.context.facts(source);
    /** @type {[string, number|null, string][]} */
    const items = [
      ["Peak", events || peak.bytes ? peak.bytes : null, `requested, at event ${count(peak.event)}`],
      ["Reserved", reserved, "reserved by all segments at their peak"],
      ["Capacity", total, "on the device"],
    ];
    const shown = items.slice(0, peakOnly ? 1 : items.length);
    return shown.flatMap(([name, bytes, text]) => {
      if (bytes === null) return [];
      const term = h("dt", {}, files.length > 1 ? `${name} ${source + 1}` : name);
      const value = h("dd", { title: `${count(bytes)} bytes ${text}` }, size(bytes));
      return [h("div", { title: files[source].name }, term, value)];
    });
  }
}
