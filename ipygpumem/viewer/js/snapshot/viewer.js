/** One viewer: its parts, and who is told what has changed. */

import { Context } from "./context.js";
import { fromHash, toHash } from "./link.js";
import { duration, plural, size } from "../data/units.js";
import { KEYS, MODES } from "./options.js";
import { atFirst, Store } from "./store.js";
import { AboutView } from "./views/about.js";
import { Actions } from "./views/actions.js";
import { CompareView } from "./views/compare.js";
import { Details } from "./views/details.js";
import { eachFrame, h } from "../ui/dom.js";
import { EventsView } from "./views/events.js";
import { Exporter } from "./views/export.js";
import { FindingsView } from "./views/findings.js";
import { gestures } from "./timeline/gestures.js";
import { Help } from "./views/help.js";
import { LegendView } from "./views/legend.js";
import { LiveView } from "./views/live.js";
import { Overview } from "./timeline/overview.js";
import { StateView } from "./views/state.js";
import { themeOf, watchTheme } from "../ui/theme.js";
import { Timeline } from "./timeline/timeline.js";
import { Toolbar } from "./views/toolbar.js";
import { Tooltip } from "./timeline/tooltip.js";

const TABS = [
  ["live", "Live set"],
  ["state", "Allocator state"],
  ["events", "Events"],
  ["compare", "Compare"],
  ["about", "File"],
];
/** Files that the heading names. */
const NAMED = 2;
const NARROW = 980;

/**
 * @typedef {{host: "page"|"widget", theme?: "auto"|"light"|"dark", state?: string, onState?: (state: string) => void}} Options
 */

export class Viewer {
  /** @param {HTMLElement} root @param {import("./client.js").Client} client @param {import("./engine/overview.js").Overview[]} files @param {Options} options */
  constructor(root, client, files, options) {
    this.root = root;
    this.options = options;
    const context = new Context(client, new Store({}), root);
    this.context = context;
    context.files = files;
    context.linkable = options.host === "page";
    context.store.now = this.held(options.state ?? "");
    context.legend(); // under way while the page is built
    this.theme();
    const actions = new Actions(context);
    this.actions = actions;
    this.timelines = files.map((_, source) => new Timeline(context, source));
    for (const timeline of this.timelines) timeline.onFailed = (problem) => this.failed(problem);
    actions.timelines = this.timelines;
    actions.tooltip = new Tooltip(root);
    this.exporter = new Exporter(context);
    this.exporter.timelines = this.timelines;
    this.toolbar = new Toolbar(context, actions, this.exporter);
    this.legend = new LegendView(context);
    this.overview = new Overview(context, actions);
    this.details = new Details(context, actions);
    this.findings = new FindingsView(context, actions);
    /** @type {Record<string, {element: HTMLElement, refresh: () => Promise<void>, csv?: () => Promise<string|string[]>}>} */
    this.panels = {
      live: new LiveView(context, actions),
      state: new StateView(context, actions),
      events: new EventsView(context, actions),
      compare: new CompareView(context),
      about: new AboutView(context),
    };
    this.exporter.table = () =>
      /** @type {any} */ (this.panels[context.now.tab].csv ? this.panels[context.now.tab] : this.panels.live);
    const help = new Help();
    actions.help = () => help.show();
    actions.find = () => this.toolbar.search.focus();
    const status = h("div", { class: "off", role: "status", aria: { live: "polite" } });
    context.say = (text) => {
      status.textContent = text;
    };
    this.build(status, help.element);
    for (const timeline of this.timelines) gestures(timeline, actions);
    /** @type {Set<string>} */
    this.stale = new Set();
    this.sized = "";
    this.pictured = false;
    /** @type {Set<Promise<void>>} */
    this.tasks = new Set();
    /** @type {ReturnType<typeof setTimeout>|undefined} */
    this.told = undefined;
    this.panel = eachFrame(() => this.refreshPanels());
    context.store.listen((keys) => this.changed(keys));
    const seen = new ResizeObserver(() => this.resize());
    seen.observe(root);
    context.stop.signal.addEventListener("abort", () => seen.disconnect());
    watchTheme(root, () => this.theme(), context.stop.signal);
    this.resize();
    this.heading();
    // the picture comes first: what else there is to ask waits for it
    this.timelines[0].settled().then(() => {
      this.pictured = true;
      this.others(new Set(["device"]));
    });
  }

  /** @param {HTMLElement} status @param {HTMLElement} help */
  build(status, help) {
    const { context } = this;
    this.title = h("div", { class: "title" });
    this.facts = h("dl", { class: "facts" });
    this.tabs = h("div", { class: "tabs", role: "tablist", aria: { label: "Panels" } });
    const id = `g${Math.random().toString(36).slice(2)}`;
    this.pane = h("div", { class: "panel", role: "tabpanel", id });
    for (const [name, label] of TABS) {
      this.tabs.append(
        h(
          "button",
          {
            type: "button",
            role: "tab",
            id: `${id}-${name}`,
            aria: { controls: id },
            data: { tab: name },
            on: { click: () => context.store.set({ tab: name }) },
          },
          label,
        ),
      );
    }
    this.tabs.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const at = TABS.findIndex(([name]) => name === context.now.tab);
      const next = TABS[(at + by + TABS.length) % TABS.length][0];
      context.store.set({ tab: next });
      /** @type {HTMLElement|null} */ (this.tabs?.querySelector(`[data-tab="${next}"]`))?.focus();
    });
    this.id = id;
    const timelines = this.timelines.map((timeline, source) =>
      h(
        "div",
        { class: "one" },
        this.timelines.length > 1 &&
          h(
            "p",
            { class: "file", title: context.files[source].name },
            h("b", {}, context.files[source].name),
            h("span"),
          ),
        timeline.element,
      ),
    );
    this.root.append(
      h("header", { class: "top" }, this.title, this.facts),
      this.toolbar.element,
      h(
        "div",
        { class: "main" },
        h("div", { class: "left" }, ...timelines, this.overview.element, this.legend.element, this.tabs, this.pane),
        h(
          "aside",
          { class: "right", aria: { label: "Details and findings" } },
          this.details.element,
          this.findings.element,
        ),
      ),
      status,
      help,
    );
  }

  /** What a hash says, held against the files. @param {string} text @returns {import("./store.js").Shown} */
  held(text) {
    const found = fromHash(text);
    const { files } = this.context;
    if ((found.device ?? 0) >= Math.max(...files.map((file) => file.devices.length))) delete found.device;
    if ((found.source ?? 0) >= files.length) delete found.source;
    if (found.mode && !MODES.includes(found.mode)) delete found.mode;
    if (found.key && !KEYS.includes(found.key)) delete found.key;
    const device = found.device ?? this.context.home;
    const facts = this.context.at({ ...atFirst(), device }).facts(found.source ?? 0);
    if ((found.row ?? 0) >= (facts?.allocations ?? 0)) delete found.row;
    if ((found.event ?? 0) >= Math.max(facts?.events ?? 0, 1)) delete found.event;
    if (found.range && found.range[1] >= (facts?.events ?? 0)) delete found.range;
    if (found.mark?.kind === "group" && !KEYS.includes(found.mark.key)) delete found.mark;
    const now = { ...atFirst(), ...found, device };
    return { ...now, ...new Actions(this.context.at(now)).within(now) };
  }

  /** Go to the view that a text describes. @param {string} text */
  show(text) {
    if (text.replace(/^#/, "") === toHash(this.context.now, this.context.home)) return;
    this.context.store.set(this.held(text));
  }

  theme() {
    const theme = themeOf(this.root, this.options.theme ?? "auto");
    this.root.dataset.theme = theme;
    if (theme === this.context.theme) return;
    this.context.theme = theme;
    if (this.timelines) this.changed(new Set(["mode", "device"]));
  }

  resize() {
    const width = this.root.clientWidth;
    if (!width) return;
    this.root.classList.toggle("narrow", width < NARROW);
    this.root.classList.toggle("small", width < 640);
    const left = this.timelines[0].element.parentElement?.clientWidth ?? width;
    const whole = this.options.host === "page" ? globalThis.innerHeight : 760;
    // so much of the window that what is live stands below in sight
    const { length } = this.timelines;
    const share = length > 2 ? Math.max(0.5 / length, 0.1) : length > 1 ? 0.21 : 0.36;
    const height = Math.round(Math.min(Math.max(whole * share, 500 * share), 2000 * share));
    const key = `${left} ${height} ${globalThis.devicePixelRatio} ${this.context.now.device}`;
    if (key === this.sized) return;
    this.sized = key;
    for (const timeline of this.timelines) timeline.resize(left, height);
    this.overview.resize(left);
    this.legend.fold();
    this.stale.add(this.context.now.tab);
    this.panel.ask();
  }

  /** @param {Set<string>} keys */
  changed(keys) {
    const any = (/** @type {string[]} */ ...names) => names.some((name) => keys.has(name));
    if (keys.has("device")) {
      this.heading();
      this.resize();
    }
    if (any("device", "axis", "x", "y", "mode", "hidden", "mark", "event", "range", "source")) {
      for (const timeline of this.timelines) timeline.refresh();
    } else if (keys.has("row")) {
      for (const timeline of this.timelines) timeline.again.ask();
    }
    this.others(keys);
  }

  /** All that is not a timeline. @param {Set<string>} keys */
  others(keys) {
    const { context } = this;
    const any = (/** @type {string[]} */ ...names) => names.some((name) => keys.has(name));
    if (any("device", "axis")) this.task(this.overview.refresh());
    if (any("x", "source")) this.overview.again.ask();
    if (any("device", "axis", "tool", "mode", "search", "source")) this.task(this.toolbar.refresh());
    if (any("device", "mode", "hidden", "mark", "source")) this.task(this.legend.refresh());
    if (any("device", "event", "row", "source")) this.task(this.details.refresh());
    if (any("device") || (context.crowd && any("source"))) this.task(this.findings.refresh());
    for (const [source, file] of this.root.querySelectorAll(".one > .file").entries())
      file.classList.toggle("current", source === context.now.source);
    /** @type {Record<string, string[]>} */
    const cares = {
      live: ["device", "source", "event", "range", "key", "measure", "root", "mark"],
      state: ["device", "source", "event", "mode", "row"],
      events: ["device", "source", "event"],
      compare: ["device", "source", "event", "range"],
      about: ["device"],
    };
    for (const [tab, names] of Object.entries(cares)) if (any(...names)) this.stale.add(tab);
    if (keys.has("tab") || keys.has("device")) this.showTab();
    if (this.stale.has(context.now.tab)) this.panel.ask();
    this.root.dataset.tool = context.now.tool;
    clearTimeout(this.told);
    this.told = setTimeout(() => this.options.onState?.(toHash(context.now, context.home)), 150);
  }

  refreshPanels() {
    const { tab } = this.context.now;
    if (this.pictured && this.stale.delete(tab)) this.task(this.panels[tab].refresh());
  }

  /** Say what went wrong; the rest goes on. @param {Error} problem */
  failed(problem) {
    this.root.querySelector(":scope > .failed")?.remove();
    this.root.prepend(h("p", { class: "failed", role: "alert" }, problem.message));
  }

  /** Work under way, for those who wait until all is drawn. @param {Promise<void>} work */
  task(work) {
    const done = work
      .catch((problem) => {
        if (!this.context.stop.signal.aborted) this.failed(problem);
      })
      .finally(() => this.tasks.delete(done));
    this.tasks.add(done);
  }

  showTab() {
    const { tab } = this.context.now;
    for (const button of /** @type {Iterable<HTMLElement>} */ (this.tabs?.children ?? [])) {
      const on = button.dataset.tab === tab;
      button.setAttribute("aria-selected", String(on));
      button.tabIndex = on ? 0 : -1;
    }
    this.pane?.setAttribute("aria-labelledby", `${this.id}-${tab}`);
    this.pane?.replaceChildren(this.panels[tab].element);
    this.stale.add(tab);
    this.panel.ask();
  }

  heading() {
    const { context } = this;
    const { files } = context;
    const names = files.map((file) => file.plain);
    const several = files.length > 1;
    const more = names.length - NAMED;
    const title = more > 0 ? `${names.slice(0, NAMED).join(", ")} and ${more} more` : names.join(" and ");
    const about = files.map((file, source) => {
      const facts = context.facts(source);
      return [
        facts.name,
        (file.devices.length > 1 || context.home < 0) && (several || !facts.name) ? `device ${facts.index}` : null,
        context.now.device < 0 || facts.index === context.now.device
          ? null
          : `it has nothing on device ${context.now.device}`,
        plural(facts.events, "event"),
        plural(facts.allocations, "allocation"),
        facts.timed && facts.span ? duration(facts.span) : null,
      ]
        .filter(Boolean)
        .join(" · ");
    });
    this.title?.replaceChildren(h("h1", { title: names.join("\n") }, title), h("p", {}, several ? "" : about[0]));
    for (const [source, text] of this.root.querySelectorAll(".file span").entries())
      text.textContent = ` ${about[source]}`;
    const fact = (/** @type {string} */ name, /** @type {string} */ text, /** @type {string} */ title) => [
      h("dt", {}, name),
      h("dd", { title }, text),
    ];
    const groups = files.flatMap((file, source) => {
      const { peak, reserved, total, events } = context.facts(source);
      const one = (/** @type {string} */ name, /** @type {number|null} */ bytes, /** @type {string} */ what) =>
        bytes !== null &&
        h(
          "div",
          { title: file.name },
          ...fact(several ? `${name} ${source + 1}` : name, size(bytes), `${bytes.toLocaleString("en")} bytes ${what}`),
        );
      return [
        one("Peak", events || peak.bytes ? peak.bytes : null, `requested, at event ${peak.event.toLocaleString("en")}`),
        more <= 0 && one("Reserved", reserved, "at most in all segments"),
        more <= 0 && one("Capacity", total, "on the device"),
      ];
    });
    this.facts?.replaceChildren(...groups.filter((one) => one !== false));
  }

  /** Settles when all that was asked for is drawn. */
  async settled() {
    await new Promise((settle) => setTimeout(settle));
    for (const timeline of this.timelines) await timeline.settled();
    while (this.stale.has(this.context.now.tab)) await new Promise((settle) => requestAnimationFrame(settle));
    while (this.tasks.size) await Promise.allSettled(this.tasks);
  }

  destroy() {
    this.context.stop.abort();
    this.panel.stop();
    clearTimeout(this.told);
    this.context.client.close();
    this.root.replaceChildren();
  }
}
