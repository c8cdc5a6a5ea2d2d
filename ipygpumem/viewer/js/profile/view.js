/** The page of a profile's memory by category: its parts, what they show, and what keys and gestures do. */

import { count, duration, fine, plural, size } from "../data/units.js";
import { fitCanvas, pixelRatio } from "../ui/canvas.js";
import { button, headRow, HelpDialog, select } from "../ui/controls.js";
import { frameScheduler, h, handleKey, listen } from "../ui/dom.js";
import { fillArea, OverviewStrip } from "../ui/overview-strip.js";
import { chartColors, themeOf, watchTheme } from "../ui/theme.js";
import { Tooltip } from "../ui/tooltip.js";
import { horizontalZoom, viewKeys } from "../ui/zoom.js";
import { COLORS, drawChart, MARGIN, plotBox } from "./chart.js";
import { exportCsv, exportPng } from "./export.js";
import { COUNTER_NAMES, updateLegend } from "./legend.js";
import { CATEGORIES, COUNTERS, ORDER } from "./model.js";
import { MINIMUM, ProfileState } from "./state.js";
import { CategoryTable } from "./table.js";

const ZOOM_STEP = 1.5;
const HELP = [
  "Each pixel column shows the highest memory usage in its time range, so that no peak is lost. Zoom in to see every change.",
  "Categories are derived from how operators use a tensor, as recorded by torch.profiler. Memory that was allocated before the profile counts from its start if an operator uses it. Memory that no operator uses is missing here; PyTorch's own count includes it.",
  "A profile records the operators of the thread that started it and of autograd's threads. Memory that other threads allocate is not included.",
];
const KEYS = [
  ["wheel, + −", "zoom"],
  ["drag, Shift ← →, Page Up, Page Down", "pan"],
  ["click", "set the cursor, or remove it"],
  ["← →", "previous, next change in the shown categories"],
  ["Home, End", "start, end"],
  ["P", "go to the peak"],
  ["0 or F, double click", "show everything"],
  ["A", "switch between time and change"],
  ["1 to 8", "show or hide a category"],
  ["Esc", "remove the cursor"],
];

/**
 * @typedef {{name: string, notes: string[], devices: import("./model.js").DeviceTimeline[],
 *   theme: "auto"|import("../ui/theme.js").Theme}} ProfileSource
 */

export class ProfileView {
  /** @param {HTMLElement} root @param {ProfileSource} source */
  constructor(root, source) {
    this.root = root;
    this.source = source;
    this.schedule = frameScheduler(() => this.refresh());
    this.state = new ProfileState(
      source.devices,
      (legend) => (legend ? this.updateLegend() : this.schedule.request()),
      (text) => {
        this.status.textContent = text;
      },
    );
    this.theme = themeOf(root, source.theme);
    this.overviewKey = "";
    /** @type {number[]} */
    this.overviewBytes = [];
    /** @type {import("./chart.js").Drawn|null} */
    this.drawn = null;
    this.facts = h("span", { class: "soft" });
    this.legend = h("div", { class: "chips", role: "group", aria: { label: "Categories" } });
    this.status = h("div", { class: "off", role: "status", aria: { live: "polite" } });
    this.help = new HelpDialog(HELP, KEYS);
    this.table = new CategoryTable();
    this.canvas = h("canvas", { aria: { hidden: true } });
    this.plot = h("div", {
      class: "pad",
      tabindex: 0,
      role: "application",
      aria: { label: "Memory by category over time", describedby: "caption" },
    });
    this.frame = h("div", { class: "frame" }, this.canvas, this.plot);
    this.overview = new OverviewStrip({
      domain: () => this.state.domain(),
      view: () => (this.state.allVisible ? null : this.state.view),
      onSelect: (view) => this.state.setView(view),
      keys: this.viewKeys(),
      draw: (context, width, height) => this.drawOverview(context, width, height),
    });
    this.build();
    this.tooltip = new Tooltip(root);
    this.followView = horizontalZoom(this.plot, {
      domain: () => this.state.domain(),
      view: () => this.state.view,
      width: () => plotBox(this.frame.clientWidth, 0).width,
      minimum: () => MINIMUM[this.state.axis],
      onChange: (view) => this.state.setView(view),
    });
    this.listen();
    watchTheme(root, () => this.updateTheme(), new AbortController().signal);
    new ResizeObserver(() => this.schedule.request()).observe(this.frame);
    this.updateTheme();
    this.refresh();
  }

  build() {
    const { source } = this;
    const axisField = select(
      "Axis",
      [
        ["time", "time"],
        ["change", "changes"],
      ],
      (axis) => this.state.setAxis(/** @type {import("./model.js").AxisKind} */ (axis)),
    );
    const deviceField = select(
      "Device",
      source.devices.map((device, number) => [String(number), device.name]),
      (number) => this.state.setDevice(Number(number)),
    );
    this.fields = { axis: axisField, device: deviceField };
    const controls = [
      source.devices.length > 1 ? deviceField.element : null,
      axisField.element,
      button("Peak", () => this.state.goTo(this.state.device.peak.row), { title: "Move the cursor to the peak (P)" }),
      button("All", () => this.state.showAll(), { title: "Show everything (0)" }),
      button("−", () => this.state.zoomBy(ZOOM_STEP), { title: "Zoom out (−)" }),
      button("+", () => this.state.zoomBy(1 / ZOOM_STEP), { title: "Zoom in (+)" }),
      button("PNG", () => exportPng(this), { title: "Save the chart as an image" }),
      button("CSV", () => exportCsv(this), { title: "Save the bytes of each category after each change" }),
      button("?", () => this.help.show(), { title: "Keys and gestures" }),
    ];
    this.root.append(
      headRow([h("h1", {}, source.name), this.facts], controls, "head"),
      ...source.notes.map((note) => h("p", { class: "note" }, note)),
      this.legend,
      this.frame,
      this.overview.element,
      h("div", { class: "scroll" }, this.table.element),
      this.status,
      this.help.element,
    );
  }

  listen() {
    const keys = this.keys();
    const move = this.viewKeys();
    listen(this.plot, {
      dblclick: () => this.state.showAll(),
      pointermove: (event) => this.point(event),
      pointerleave: () => this.point(null),
      click: (event) => this.click(event),
      keydown: (event) => handleKey(event, event.shiftKey ? { ...keys, ...move } : keys),
    });
  }

  /** Keys that move and zoom the view. */
  viewKeys() {
    const { state } = this;
    return viewKeys(
      (share) => state.pan(share),
      (factor) => state.zoomBy(factor),
      () => state.showAll(),
      ZOOM_STEP,
    );
  }

  /** @returns {Record<string, () => void>} */
  keys() {
    const toggles = ORDER.map((_, position) => [position + 1, () => this.state.toggle(position)]);
    return {
      ...this.viewKeys(),
      ...Object.fromEntries(toggles),
      ArrowLeft: () => this.state.step(-1),
      ArrowRight: () => this.state.step(1),
      Home: () => this.state.goTo(0),
      End: () => this.state.goTo(this.state.device.count),
      f: () => this.state.showAll(),
      p: () => this.state.goTo(this.state.device.peak.row),
      a: () => this.state.setAxis(this.state.axis === "time" ? "change" : "time"),
      "?": () => this.help.show(),
      Escape: () => this.clear(),
    };
  }

  clear() {
    this.state.cursor = null;
    this.point(null);
  }

  updateLegend() {
    this.fields?.axis.value(this.state.axis);
    this.fields?.device.value(String(this.source.devices.indexOf(this.state.device)));
    updateLegend(this.legend, this.state, this.theme);
    this.schedule.request();
  }

  // The pointer

  /** @param {{clientX: number, clientY: number}|null} event */
  point(event) {
    this.state.pointer = event && { clientX: event.clientX, clientY: event.clientY };
    this.schedule.request();
  }

  /** @param {MouseEvent} event */
  click(event) {
    const target = this.at(event);
    if (target) this.state.cursor = target.row === this.state.cursor ? null : target.row;
    this.schedule.request();
  }

  /** What is below the pointer. @param {{clientX: number, clientY: number}} event */
  at(event) {
    if (!this.drawn) return null;
    const { rows, top, box } = this.drawn;
    const pad = this.plot.getBoundingClientRect();
    const [x, y] = [event.clientX - pad.left, event.clientY - pad.top];
    const row = rows[Math.min(Math.max(Math.floor((x / box.width) * rows.length), 0), rows.length - 1)];
    return { row, category: this.state.device.categoryAt(row, top * (1 - y / box.height)), x, y };
  }

  // Drawing

  updateTheme() {
    this.theme = themeOf(this.root, this.source.theme);
    this.root.dataset.theme = this.theme;
    this.updateLegend();
  }

  refresh() {
    const { clientWidth: width, clientHeight: height } = this.frame;
    if (!width) return;
    const { device } = this.state;
    const target = this.state.pointer && this.at(this.state.pointer);
    this.state.pointed = target?.row ?? null;
    const context = fitCanvas(this.canvas, width, height);
    this.drawn = drawChart(context, width, height, this.state.chartState(), this.theme, pixelRatio());
    if (this.overview.width !== this.drawn.box.width) this.overview.resize(MARGIN.left, this.drawn.box.width);
    this.overview.draw();
    this.followView();
    this.showTooltip();
    const row = this.state.pointed ?? this.state.cursor ?? device.overallPeak.row;
    const goTo = (/** @type {number} */ state) => this.state.goTo(state);
    this.table.show(device, row, this.state.pointed === null, this.theme, this.state.visibleTime(), goTo);
    const name = this.source.devices.length > 1 ? "" : `${device.name} · `;
    this.facts.textContent = `${name}${plural(device.count, "change")} in ${duration(device.span / 1000)}`;
  }

  showTooltip() {
    const target = this.state.pointer && this.at(this.state.pointer);
    if (!target) return this.tooltip.hide();
    const { device } = this.state;
    const { row, category } = target;
    const lines = [h("span", {}, `${size(device.total[row])} ${device.allShown ? "in total" : "shown"}`)];
    if (category >= 0) {
      const swatch = h("i", { class: "swatch", style: { background: COLORS[this.theme][category] } });
      lines.unshift(h("b", {}, swatch, `${CATEGORIES[category]} ${fine(device.levels[category][row])}`));
    }
    for (const name of COUNTERS) {
      const bytes = device.counter(name, row);
      if (!Number.isNaN(bytes)) lines.push(h("span", { class: "soft" }, `${size(bytes)} ${COUNTER_NAMES[name]}`));
    }
    lines.push(h("span", { class: "soft" }, `${this.state.timeText(row)} · change ${count(row)}`));
    this.tooltip.show(this.plot, target, lines);
    return undefined;
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height */
  drawOverview(context, width, height) {
    const { device, axis } = this.state;
    const columns = Math.round(width);
    const key = `${this.source.devices.indexOf(device)} ${axis} ${columns} ${device.shown}`;
    if (this.overviewKey !== key) {
      this.overviewKey = key;
      const rows = device.rows(device.columns(axis, this.state.domain(), columns));
      this.overviewBytes = Array.from(rows, (row) => device.total[row]);
    }
    context.fillStyle = chartColors(this.theme).overview;
    fillArea(context, this.overviewBytes, height, Math.max(device.peak.bytes, 1));
  }
}
