/** The table below the chart: bytes of each category at the cursor, at the peak, and at most. */

import { count, fine, size } from "../data/units.js";
import { headerCells, linkButton, numberCell } from "../ui/controls.js";
import { h } from "../ui/dom.js";
import { COLORS, formatTime } from "./chart.js";
import { CATEGORIES, COUNTERS, ORDER } from "./model.js";

const COUNTER_LABELS = { allocated: "allocated (counted by PyTorch)", reserved: "reserved" };
const HEADINGS = ["Category", "Here", "Share", "At the peak", "Maximum", "Time of the maximum"];

export class CategoryTable {
  constructor() {
    this.caption = h("caption", { id: "caption" });
    this.body = h("tbody");
    this.element = h("table", {}, this.caption, h("thead", {}, h("tr", {}, ...headerCells(HEADINGS))), this.body);
  }

  /**
   * @param {import("./model.js").DeviceTimeline} device @param {number} row @param {boolean} pinned
   * @param {import("../ui/theme.js").Theme} theme @param {number} visible nanoseconds in view @param {(row: number) => void} goTo
   */
  show(device, row, pinned, theme, visible, goTo) {
    const { row: peakRow, bytes: peakBytes } = device.overallPeak;
    const time = (/** @type {number} */ state) => formatTime(device.timeOf(state), device.span, visible);
    const where = row === peakRow ? "At the peak" : pinned ? "At the cursor" : "At the pointer";
    const change = row ? `after change ${count(row)} of ${count(device.count)}` : "before the first change";
    this.caption.textContent = `${where}: ${time(row)}, ${change}`;
    const sum = device.levels.reduce((all, values) => all + values[row], 0);
    const categories = [...ORDER].reverse().map((category) => {
      const here = device.levels[category][row];
      const highest = device.highest[category];
      const link = () => linkButton(time(highest.row), () => goTo(highest.row), { title: "Go to the maximum" });
      const swatch = h("i", { class: "swatch", style: { background: COLORS[theme][category] } });
      return h(
        "tr",
        { class: highest.bytes ? (device.shown[category] ? null : "hidden") : "none" },
        h("th", { scope: "row" }, swatch, CATEGORIES[category]),
        numberCell(fine(here)),
        numberCell(h("span", { class: "soft" }, sum ? `${((100 * here) / sum).toFixed(1)}%` : "")),
        numberCell(fine(device.levels[category][peakRow])),
        numberCell(fine(highest.bytes)),
        numberCell(highest.bytes ? link() : ""),
      );
    });
    const counters = COUNTERS.flatMap((name) => {
      const values = [device.counter(name, row), device.counter(name, peakRow)];
      if (values.every(Number.isNaN)) return [];
      const [here, there] = values.map((value) => (Number.isNaN(value) ? "unknown" : size(value)));
      return [tableRow("soft", COUNTER_LABELS[name], [here, "", there, "", ""])];
    });
    const totals = [size(sum), "", size(peakBytes), size(peakBytes), time(peakRow)];
    this.body.replaceChildren(...categories, tableRow("sum", "all categories", totals), ...counters);
  }
}

/** @param {string} kind @param {string} label @param {string[]} cells */
function tableRow(kind, label, cells) {
  return h("tr", { class: kind }, h("th", { scope: "row" }, label), ...cells.map((text) => numberCell(text)));
}
