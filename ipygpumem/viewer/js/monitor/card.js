/** One device, or the host: its name, its values at the cursor, and its chart. */

import { size } from "../data/units.js";
import { fitCanvas } from "../ui/canvas.js";
import { h } from "../ui/dom.js";
import { axisTop, clockTime, drawChart, MARGIN, maximum, monitorColors, stackRows } from "./chart.js";
import { PARTS } from "./history.js";

const HEIGHT = 170;
const LABELS = {
  allocated: "allocated",
  cached: "cache",
  outside: "outside PyTorch",
  others: "other processes and unattributed memory",
};

export class Card {
  /** @param {string} name of the device, or "host" @param {(time: number|null) => void} onPoint @param {() => {begin: number, end: number}} period */
  constructor(name, onPoint, period) {
    this.name = name;
    this.canvas = h("canvas", { tabindex: 0, role: "img" });
    this.head = h("div", { class: "head" });
    this.values = h("ul", { class: "values" });
    this.element = h("section", { aria: { label: name } }, this.head, this.values, this.canvas);
    this.canvas.addEventListener("pointermove", (event) => {
      const { left, width } = this.canvas.getBoundingClientRect();
      const { begin, end } = period();
      const share = (event.clientX - left - MARGIN.left) / (width - MARGIN.left);
      onPoint(share >= 0 && share <= 1 ? begin + share * (end - begin) : null);
    });
    this.canvas.addEventListener("pointerleave", () => onPoint(null));
  }

  /** The rows of the stacked chart, from the bottom. @param {import("./history.js").History} history @param {string[]} areas */
  rows(history, areas) {
    const device = history.devices.get(this.name);
    if (!device) return [{ label: "resident (this process)", values: history.rss, color: areas[0] }];
    const own = device.own.at(-1) ?? true;
    return PARTS.map((part, i) => ({
      label: part === "outside" && !own ? "outside PyTorch, all processes" : LABELS[part],
      values: device[part],
      color: areas[i],
    })).filter(({ values }) => values.some((value) => value !== null));
  }

  /**
   * @param {import("./history.js").History} history
   * @param {{begin: number, end: number, cursor: number|null, whole: boolean, theme: import("../ui/theme.js").Theme}} state
   */
  draw(history, { begin, end, cursor, whole, theme }) {
    const colors = monitorColors(theme);
    const rows = this.rows(history, colors.areas);
    const device = history.devices.get(this.name);
    const capacity = device ? (device.capacity.findLast((bytes) => bytes !== null) ?? null) : history.total;
    const index = history.at(cursor ?? end);
    const used = (device ? device.used[index] : history.rss[index]) ?? null;
    this.drawHead(
      history.labels[this.name],
      used,
      capacity,
      cursor === null ? "" : clockTime(history.time[index] ?? cursor),
    );
    this.values.replaceChildren(
      ...rows.map(({ label, values, color }) => {
        const bytes = values[index] ?? null;
        const text = bytes === null ? "unknown" : size(bytes);
        return h("li", {}, h("i", { style: { background: color } }), h("span", {}, label), h("b", {}, text));
      }),
    );
    const width = Math.max(this.element.clientWidth, 200);
    const context = fitCanvas(this.canvas, width, HEIGHT);
    const tops = stackRows(rows.map(({ values }) => values));
    const areas = rows.map(({ color }) => color);
    if (rows.length) {
      const visible = maximum(tops[tops.length - 1], history.at(begin), history.at(end));
      const top = axisTop(visible, capacity, whole);
      drawChart(context, width, HEIGHT, { history, tops, areas, begin, end, top, capacity, cursor }, colors);
    }
    this.canvas.setAttribute("aria-label", `${this.name}: ${this.values.innerText.replaceAll("\n", " ")}`);
  }

  /** @param {string|undefined} label @param {number|null} used @param {number|null} capacity @param {string} time */
  drawHead(label, used, capacity, time) {
    const host = this.name === "host";
    const hasLevels = used !== null && capacity !== null;
    const free = hasLevels && !host ? ` used, ${size(capacity - used)} free` : "";
    this.head.replaceChildren(
      h("b", {}, host ? "host memory" : this.name),
      h("span", { class: "soft" }, label ?? ""),
      h("span", { class: "space" }),
      h("span", { class: "time" }, time),
      h("span", {}, hasLevels ? `${size(used)} of ${size(capacity)}${free}` : ""),
    );
  }
}
