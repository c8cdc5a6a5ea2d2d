/** The controls above the timelines. */

import { count, fine, plural } from "../../data/units.js";
import { button, select } from "../../ui/controls.js";
import { h } from "../../ui/dom.js";
import { COLOR_MODES, GROUP_LABELS } from "../options.js";
import { exportMenu } from "./export-menu.js";
import { radioGroup } from "./radio-group.js";

const SEARCH_DELAY_MS = 180;
const MAX_NAME = 24; // characters of a file name
const AXES = /** @type {const} */ ([
  ["event", "Events", "Each event has the same width"],
  ["time", "Time", "The distance between two events is the time between them"],
]);
const TOOLS = /** @type {const} */ ([
  ["pan", "Pan", "Drag to move, wheel to zoom"],
  ["ruler", "Ruler", "Drag to measure time and bytes (Alt and drag)"],
  ["box", "Box", "Drag to zoom into a box (Ctrl+drag)"],
  ["range", "Range", "Drag to sum up all allocations in a range of events (Shift and drag)"],
]);
/** What a change of the device resets. @type {Partial<import("../store.js").Shown>} */
const RESET = { x: null, y: null, event: null, row: null, range: null, mark: { kind: "none" }, hidden: [] };

export class Toolbar {
  /** @param {import("../context.js").Context} context @param {import("./actions.js").Actions} actions @param {import("./export.js").Exporter} exporter */
  constructor(context, actions, exporter) {
    this.context = context;
    this.actions = actions;
    const { store } = context;
    this.axis = radioGroup("Axis", AXES, (axis) => this.setAxis(axis));
    this.tool = radioGroup("Drag", TOOLS, (tool) => store.set({ tool }));
    const modes = COLOR_MODES.map((mode) => [mode, GROUP_LABELS[mode] ?? mode]);
    this.mode = select("Color by", modes, (mode) => store.set({ mode, hidden: [] }));
    this.device = select("Device", [], (device) => store.set({ ...RESET, device: Number(device) }));
    this.device.element.classList.add("device");
    this.search = h("input", {
      type: "search",
      placeholder: "file, 0x7f…, >10 MiB",
      aria: { label: "Search all events by text of a frame, address, block name, size or action" },
      on: {
        input: () => this.searchSoon(),
        keydown: (/** @type {KeyboardEvent} */ event) => {
          if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1);
          if (event.key === "Escape") actions.search("");
        },
      },
    });
    this.result = h("span", { class: "result", role: "status" });
    const icon = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ click) =>
      button(text, click, { class: "icon", aria: { label } });
    this.steps = [
      icon("‹", "Previous event that matches", () => this.next(-1)),
      icon("›", "Next event that matches", () => this.next(1)),
    ];
    const fit = button("Fit", () => actions.fit(), { title: "Show everything (double click, or 0)" });
    const peak = button("Peak", () => actions.peak(), { title: "Go to the peak (P)" });
    this.element = h(
      "div",
      { class: "toolbar", role: "group", aria: { label: "View" } },
      this.device.element,
      this.axis.element,
      this.tool.element,
      this.mode.element,
      h("div", { class: "row" }, fit, peak),
      exportMenu(exporter, context.linkable),
      icon("?", "Keys and gestures", () => actions.showHelp()),
      h("div", { class: "row search" }, this.search, ...this.steps, this.result),
    );
    this.timer = 0;
  }

  /** @param {"event"|"time"} axis */
  setAxis(axis) {
    const { source, event } = this.context.now;
    this.context.store.set({ axis, x: null });
    if (event !== null) this.actions.goTo(event, source);
  }

  searchSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.actions.search(this.search.value), SEARCH_DELAY_MS);
  }

  /** Go to the next match, which may be in another file. @param {1|-1} step */
  async next(step) {
    clearTimeout(this.timer);
    this.actions.search(this.search.value);
    const { context } = this;
    const { search: text, source: current } = context.now;
    if (!text) return;
    const from = context.event();
    let source = current;
    let event = await context.request("next", { text, event: from, step });
    const wrapped = event < 0 || (event - from) * step <= 0;
    const { length } = context.files;
    for (let turn = 1; wrapped && turn < length; turn++) {
      const candidate = (current + step * turn + length * turn) % length;
      const start = step > 0 ? -1 : context.facts(candidate).events;
      const match = await context.request("next", { text, event: start, step }, candidate);
      if (match < 0) continue;
      event = match;
      source = candidate;
      break;
    }
    if (event < 0) return;
    const { row } = await context.request("moment", { event }, source);
    await this.actions.goTo(event, source, { row: row >= 0 ? row : null });
  }

  async refresh() {
    const { now } = this.context;
    this.axis.value(this.context.axis());
    this.axis.enable("time", this.context.facts().timed);
    this.tool.value(now.tool);
    this.mode.value(now.mode);
    this.updateDevices();
    const root = /** @type {ShadowRoot|Document} */ (this.search.getRootNode());
    if (root.activeElement !== this.search) this.search.value = now.search;
    for (const step of this.steps) step.disabled = !now.search;
    await this.showResult();
  }

  updateDevices() {
    const { files, home, now } = this.context;
    const lists = files.map((file) => file.devices).sort((a, b) => b.length - a.length);
    const options = lists[0].map(({ index, name, events }, place) => [
      String(place),
      `${[index < 0 ? "" : index, name].filter((part) => part !== "" && part !== null).join(": ")}${events ? "" : " (no events)"}`,
    ]);
    if (home < 0) options.unshift(["-1", "the device with the highest peak in each file"]);
    const { field, element } = this.device;
    if (field.childElementCount !== options.length) this.device.options(options);
    element.hidden = lists[0].length < 2;
    this.device.value(String(now.device));
  }

  async showResult() {
    const { context, result } = this;
    const { files, now } = context;
    if (!now.search) {
      result.textContent = "";
      return;
    }
    const answers = await Promise.all(
      files.map((_, source) => context.request("search", { text: now.search }, source)),
    );
    if (answers[0].text !== context.now.search) return;
    const matching = answers.filter(({ events, allocations }) => events || allocations);
    const events = answers.reduce((sum, answer) => sum + answer.events, 0);
    const facts = answers.map(
      (answer) =>
        `${plural(answer.events, "event")} · ${plural(answer.allocations, "allocation")}, ${fine(answer.bytes)}`,
    );
    const names = files.map(({ name }) => name);
    if (!matching.length) result.textContent = "no matches";
    else if (context.crowded)
      result.textContent = `${plural(events, "event")} in ${matching.length} of ${files.length} files`;
    else if (files.length > 1)
      result.textContent = answers.map((answer, i) => `${shortName(names[i])}: ${count(answer.events)}`).join(" · ");
    else result.textContent = facts[0];
    const perFile = files.length > 1 ? facts.map((text, i) => `${names[i]}: ${text}`) : [];
    result.title = [answers[0].how && `Searched for ${answers[0].how}`, ...perFile].filter(Boolean).join("\n");
  }
}

/** @param {string} name of a file */
function shortName(name) {
  const plain = name.replace(/\.(pickle|pkl|json)(\.\w+)?$/, "");
  return plain.length > MAX_NAME ? `${plain.slice(0, MAX_NAME - 1)}…` : plain;
}
