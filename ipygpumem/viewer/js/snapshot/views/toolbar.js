/** The controls above the timeline. */

import { MODES } from "../options.js";
import { count, fine, plural } from "../../data/units.js";
import { h } from "../../ui/dom.js";
import { select } from "./live.js";

const TOOLS = /** @type {const} */ ([
  ["pan", "Pan", "Drag to move, wheel to zoom"],
  ["ruler", "Ruler", "Drag to measure time and bytes (Alt and drag)"],
  ["box", "Box", "Drag a box to see it alone (Ctrl and drag)"],
  ["range", "Range", "Drag over events to add up all that lived in them (Shift and drag)"],
]);
/** @type {Record<string, string>} */
const NAMES = { annotation: "region", context: "compile context" };

export class Toolbar {
  /** @param {import("../context.js").Context} context @param {import("./actions.js").Actions} actions @param {import("./export.js").Exporter} exporter */
  constructor(context, actions, exporter) {
    this.context = context;
    this.actions = actions;
    const { store } = context;
    this.axis = radios(
      "Axis",
      [
        ["event", "Events", "Each event as wide as the other"],
        ["time", "Time", "As wide as it took"],
      ],
      (axis) => {
        const source = context.now.source;
        const event = context.now.event;
        store.set({ axis: /** @type {any} */ (axis), x: null });
        if (event !== null) actions.goTo(event, source);
      },
    );
    this.tool = radios("Drag", TOOLS, (tool) => store.set({ tool: /** @type {any} */ (tool) }));
    this.mode = select(
      "Color by",
      MODES.map((mode) => [mode, NAMES[mode] ?? mode]),
      (mode) => store.set({ mode, hidden: [] }),
    );
    this.device = select("Device", [], (device) =>
      store.set({
        device: Number(device),
        x: null,
        y: null,
        event: null,
        row: null,
        range: null,
        mark: { kind: "none" },
        hidden: [],
      }),
    );
    this.device.element.classList.add("device");
    this.search = h("input", {
      type: "search",
      placeholder: "file, 0x7f…, >10 MiB",
      aria: { label: "Search all events: text of a frame, an address, a block's name, a size, an action" },
      on: {
        input: () => this.typed(),
        keydown: (/** @type {KeyboardEvent} */ event) => {
          if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1);
          if (event.key === "Escape") this.find("");
        },
      },
    });
    this.result = h("span", { class: "result", role: "status" });
    this.before = h(
      "button",
      {
        type: "button",
        class: "icon",
        aria: { label: "Event before that matches" },
        on: { click: () => this.next(-1) },
      },
      "‹",
    );
    this.after = h(
      "button",
      { type: "button", class: "icon", aria: { label: "Next event that matches" }, on: { click: () => this.next(1) } },
      "›",
    );
    const button = (/** @type {string} */ text, /** @type {string} */ title, /** @type {() => void} */ click) =>
      h("button", { type: "button", title, on: { click } }, text);
    const menu = h(
      "details",
      { class: "menu" },
      h("summary", {}, "Export"),
      h(
        "div",
        { class: "sheet" },
        button("Picture as PNG", "The timeline as it is on the screen", () => exporter.png()),
        button("Picture as SVG", "The timeline, with text and lines that scale", () => exporter.svg()),
        button("Table as CSV", "The table below the timeline", () => exporter.csv()),
        context.linkable &&
          button("Copy link to this view", "The address of this page with the view in it", () => exporter.link()),
      ),
    );
    menu.addEventListener("click", (event) => {
      if (/** @type {HTMLElement} */ (event.target).tagName === "BUTTON") menu.open = false;
    });
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !menu.open) return;
      menu.open = false;
      menu.querySelector("summary")?.focus();
    });
    menu.addEventListener("toggle", () => menu.classList.toggle("first", menu.offsetLeft < 180));
    menu.addEventListener("focusout", (event) => {
      if (!menu.contains(/** @type {Node|null} */ (event.relatedTarget))) menu.open = false;
    });
    this.element = h(
      "div",
      { class: "toolbar", role: "group", aria: { label: "View" } },
      this.device.element,
      this.axis.element,
      this.tool.element,
      this.mode.element,
      h(
        "div",
        { class: "row" },
        button("Fit", "All of it (double click, or 0)", () => actions.fit()),
        button("Peak", "To the peak (P)", () => actions.peak()),
      ),
      menu,
      h(
        "button",
        { type: "button", class: "icon", aria: { label: "Keys and gestures" }, on: { click: () => actions.help() } },
        "?",
      ),
      h("div", { class: "row search" }, this.search, this.before, this.after, this.result),
    );
    this.timer = 0;
  }

  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.find(this.search.value), 180);
  }

  /** @param {string} text */
  find(text) {
    const search = text.trim();
    this.context.store.set({ search, mark: search ? { kind: "search", text: search } : { kind: "none" } });
  }

  /** @param {1|-1} step */
  async next(step) {
    clearTimeout(this.timer);
    this.find(this.search.value);
    const { context } = this;
    const { search: text } = context.now;
    let { source } = context.now;
    if (!text) return;
    const at = context.event();
    let event = await context.ask("next", { text, event: at, step });
    // behind the last one of this file the next file goes on
    if (event < 0 || (event - at) * step <= 0) {
      const { length } = context.files;
      for (let turn = 1; turn < length; turn++) {
        const other = (source + step * turn + length * turn) % length;
        const from = step > 0 ? -1 : context.facts(other).events;
        const there = await context.ask("next", { text, event: from, step }, other);
        if (there >= 0) {
          event = there;
          source = other;
          break;
        }
      }
    }
    if (event < 0) return;
    const { row } = await context.ask("moment", { event }, source);
    await this.actions.goTo(event, source, { row: row >= 0 ? row : null });
  }

  async refresh() {
    const { context } = this;
    const { now } = context;
    const facts = context.facts();
    this.axis.value(context.axis());
    this.axis.able("time", facts.timed);
    this.tool.value(now.tool);
    this.mode.value(now.mode);
    const most = Math.max(...context.files.map((file) => file.devices.length));
    const devices = context.files.find((file) => file.devices.length === most)?.devices ?? [];
    const apart = context.home < 0;
    if (this.device.field.childElementCount !== devices.length + Number(apart)) {
      this.device.field.replaceChildren(
        ...(apart ? [h("option", { value: -1 }, "each its own")] : []),
        ...devices.map((one) =>
          h(
            "option",
            { value: one.index },
            `${one.index}${one.name ? `: ${one.name}` : ""}${one.events ? "" : " (no events)"}`,
          ),
        ),
      );
    }
    this.device.element.hidden = devices.length < 2;
    this.device.value(String(now.device));
    const root = /** @type {ShadowRoot|Document} */ (this.search.getRootNode());
    if (root.activeElement !== this.search) this.search.value = now.search;
    for (const one of [this.before, this.after]) one.disabled = !now.search;
    if (!now.search) {
      this.result.textContent = "";
      return;
    }
    const { files } = context;
    const each = await Promise.all(files.map((_, source) => context.ask("search", { text: now.search }, source)));
    const [found] = each;
    if (found.text !== context.now.search) return;
    const told = (/** @type {any} */ one) =>
      `${plural(one.events, "event")} · ${plural(one.allocations, "allocation")}, ${fine(one.bytes)}`;
    const several = files.length > 1;
    const any = each.some((one) => one.events || one.allocations);
    const total = each.reduce((sum, one) => sum + one.events, 0);
    this.result.textContent = !any
      ? "nothing found"
      : context.crowd
        ? `${plural(total, "event")} in ${each.filter((one) => one.events || one.allocations).length} of ${files.length} files`
        : several
          ? each.map((one, source) => `${short(files[source].name)}: ${count(one.events)}`).join(" · ")
          : told(found);
    const all = several ? each.map((one, source) => `${files[source].name}: ${told(one)}`) : [];
    this.result.title = [found.how && `Searched for ${found.how}`, ...all].filter(Boolean).join("\n");
  }
}

/** A file's name in a line that has room for little. @param {string} name */
function short(name) {
  const plain = name.replace(/\.(pickle|pkl|json)(\.\w+)?$/, "");
  return plain.length > 24 ? `${plain.slice(0, 23)}…` : plain;
}

/**
 * A row of buttons of which one is on.
 * @param {string} label @param {readonly (readonly [string, string, string])[]} options @param {(value: string) => void} chosen
 */
function radios(label, options, chosen) {
  const buttons = options.map(([value, text, title]) =>
    h("button", { type: "button", role: "radio", title, data: { value }, on: { click: () => chosen(value) } }, text),
  );
  const element = h("div", { class: "radios", role: "radiogroup", aria: { label } }, ...buttons);
  element.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const open = buttons.filter((one) => !one.disabled);
    const at = open.findIndex((one) => one.getAttribute("aria-checked") === "true");
    const next = open[(at + step + open.length) % open.length];
    next.focus();
    next.click();
  });
  return {
    element,
    /** @param {string} value */
    value(value) {
      for (const button of buttons) {
        const on = button.dataset.value === value;
        button.setAttribute("aria-checked", String(on));
        button.tabIndex = on ? 0 : -1;
      }
    },
    /** @param {string} value @param {boolean} can */
    able(value, can) {
      for (const button of buttons) if (button.dataset.value === value) button.disabled = !can;
    },
  };
}
