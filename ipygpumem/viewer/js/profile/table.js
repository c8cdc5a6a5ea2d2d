/** What each category has at the cursor, at the peak and at most. */

import { count, fine, size } from "../data/units.js";
import { h } from "../ui/dom.js";
import { NAMES, ORDER } from "./model.js";
import { COLORS, moment } from "./plot.js";

const COUNTED = /** @type {const} */ ([
  ["allocated", "allocated, by PyTorch's own count"],
  ["reserved", "reserved"],
]);

export class Table {
  constructor() {
    this.caption = h("caption");
    this.body = h("tbody");
    this.element = h(
      "table",
      {},
      this.caption,
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ...["Category", "Here", "Share", "At the peak", "At most", "When"].map((name, place) =>
            h("th", { scope: "col", class: place ? "number" : null }, name),
          ),
        ),
      ),
      this.body,
    );
  }

  /** @param {import("./model.js").Device} device @param {number} row @param {boolean} pinned @param {"light"|"dark"} theme @param {number} seen nanoseconds in view @param {(row: number) => void} go */
  show(device, row, pinned, theme, seen, go) {
    const peak = device.wholePeak;
    const where = row === peak.row ? "At the peak" : pinned ? "At the cursor" : "At the pointer";
    this.caption.textContent = `${where}: ${moment(device.when(row), device.span, seen)}, ${
      row ? `after change ${count(row)} of ${count(device.count)}` : "before the first change"
    }`;
    const whole = sum(device, row);
    const lines = [...ORDER].reverse().map((category) => {
      const here = device.levels[category][row];
      const most = device.highest[category];
      const when = most.bytes
        ? h(
            "button",
            { type: "button", class: "link", title: "Put the cursor there", on: { click: () => go(most.row) } },
            moment(device.when(most.row), device.span, seen),
          )
        : "";
      return h(
        "tr",
        { class: most.bytes ? (device.shown[category] ? null : "hidden") : "none" },
        h(
          "th",
          { scope: "row" },
          h("i", { class: "swatch", style: { background: COLORS[theme][category] } }),
          NAMES[category],
        ),
        h("td", { class: "number" }, fine(here)),
        h("td", { class: "number soft" }, whole ? `${((100 * here) / whole).toFixed(1)} %` : ""),
        h("td", { class: "number" }, fine(device.levels[category][peak.row])),
        h("td", { class: "number" }, fine(most.bytes)),
        h("td", { class: "number" }, when),
      );
    });
    lines.push(
      h(
        "tr",
        { class: "sum" },
        h("th", { scope: "row" }, "all of these"),
        h("td", { class: "number" }, size(whole)),
        h("td"),
        h("td", { class: "number" }, size(peak.bytes)),
        h("td", { class: "number" }, size(peak.bytes)),
        h("td", { class: "number" }, moment(device.when(peak.row), device.span, seen)),
      ),
    );
    for (const [name, label] of COUNTED) {
      const values = [device.counted(name, row), device.counted(name, peak.row)];
      if (Number.isNaN(values[0]) && Number.isNaN(values[1])) continue;
      const [here, there] = values.map((value) => (Number.isNaN(value) ? "unknown" : size(value)));
      lines.push(
        h(
          "tr",
          { class: "soft" },
          h("th", { scope: "row" }, label),
          h("td", { class: "number" }, here),
          h("td"),
          h("td", { class: "number" }, there),
          h("td"),
          h("td"),
        ),
      );
    }
    this.body.replaceChildren(...lines);
  }
}

/** @param {import("./model.js").Device} device @param {number} row */
function sum(device, row) {
  return device.levels.reduce((all, values) => all + values[row], 0);
}
