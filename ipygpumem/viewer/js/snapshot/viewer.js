/** One viewer: creates its parts, and refreshes those that a change affects. */

import { HelpDialog } from "../ui/controls.js";
import { frameScheduler, h } from "../ui/dom.js";
import { themeOf, watchTheme } from "../ui/theme.js";
import { Tooltip } from "../ui/tooltip.js";
import { Context } from "./context.js";
import { fromHash, toHash } from "./link.js";
import { initialState, Store } from "./store.js";
import { addGestures } from "./timeline/gestures.js";
import { Overview } from "./timeline/overview.js";
import { Timeline } from "./timeline/timeline.js";
import { AboutView } from "./views/about.js";
import { Actions } from "./views/actions.js";
import { CompareView } from "./views/compare.js";
import { Details } from "./views/details.js";
import { EventsView } from "./views/events.js";
import { Exporter } from "./views/export.js";
import { FindingsView } from "./views/findings.js";
import { Header } from "./views/header.js";
import { HELP, KEYS } from "./views/help.js";
import { LegendView } from "./views/legend.js";
import { LiveView } from "./views/live.js";
import { StateView } from "./views/state.js";
import { Tabs } from "./views/tabs.js";
import { Toolbar } from "./views/toolbar.js";

/** Widths below which the layout changes. */
const NARROW = 980;
const SMALL = 640;
const WIDGET_HEIGHT = 760; // in place of the height of the window
const STATE_DELAY_MS = 150;

/** The parts of the view that each panel depends on. @type {Record<string, string[]>} */
const DEPENDENCIES = {
  live: ["device", "source", "event", "range", "key", "measure", "root", "mark"],
  state: ["device", "source", "event", "mode", "row", "replayed"],
  events: ["device", "source", "event"],
  compare: ["device", "source", "event", "range"],
  about: ["device"],
};

/**
 * @typedef {{host: "page"|"widget", theme?: "auto"|import("../ui/theme.js").Theme, state?: string,
 *   onState?: (state: string) => void}} Options
 */

export class Viewer {
  /** @param {HTMLElement} root @param {import("./client.js").Client} client @param {import("./engine/overview.js").Overview[]} files @param {Options} options */
  constructor(root, client, files, options) {
    this.root = root;
    this.options = options;
    const context = new Context(client, new Store(), root);
    this.context = context;
    context.files = files;
    context.linkable = options.host === "page";
    context.store.now = this.parse(options.state ?? "");
    context.legend(); // requested while the page is built
    this.updateTheme();
    const actions = new Actions(context);
    this.actions = actions;
    this.timelines = files.map((_, source) => new Timeline(context, source));
    for (const timeline of this.timelines) timeline.onError = (error) => this.showError(error);
    actions.timelines = this.timelines;
    actions.tooltip = new Tooltip(root);
    const exporter = new Exporter(context);
    exporter.timelines = this.timelines;
    this.toolbar = new Toolbar(context, actions, exporter);
    this.header = new Header(context);
    this.legend = new LegendView(context);
    this.overview = new Overview(context, actions);
    this.details = new Details(context, actions);
    this.findings = new FindingsView(context, actions);
    this.tabs = new Tabs(context, {
      live: new LiveView(context),
      state: new StateView(context, actions),
      events: new EventsView(context, actions),
      compare: new CompareView(context),
      about: new AboutView(context),
    });
    const { panels } = this.tabs;
    exporter.table = () => /** @type {any} */ (panels[context.now.tab].csv ? panels[context.now.tab] : panels.live);
    const help = new HelpDialog(HELP, KEYS);
    actions.showHelp = () => help.show();
    actions.focusSearch = () => this.toolbar.search.focus();
    this.build(help.element);
    for (const timeline of this.timelines) addGestures(timeline, actions);
    /** Panels that have to be refreshed before they are shown. @type {Set<string>} */
    this.stale = new Set();
    this.layout = "";
    this.pictureShown = false;
    /** @type {Set<Promise<void>>} */
    this.tasks = new Set();
    /** @type {ReturnType<typeof setTimeout>|undefined} */
    this.stateTimer = undefined;
    this.panelScheduler = frameScheduler(() => this.refreshPanel());
    context.store.listen((keys) => this.update(keys));
    const observer = new ResizeObserver(() => this.resize());
    observer.observe(root);
    context.stop.signal.addEventListener("abort", () => observer.disconnect());
    watchTheme(root, () => this.updateTheme(), context.stop.signal);
    this.resize();
    this.header.refresh();
    // Everything else is requested after the first picture
    this.timelines[0].settled().then(() => {
      this.pictureShown = true;
      this.updateViews(new Set(["device"]));
    });
  }

  /** @param {HTMLElement} help */
  build(help) {
    const status = h("div", { class: "off", role: "status", aria: { live: "polite" } });
    this.context.announce = (text) => {
      status.textContent = text;
    };
    const several = this.timelines.length > 1;
    const timelines = this.timelines.map(({ element }, source) =>
      h("div", { class: "file-timeline" }, several && this.header.captions[source], element),
    );
    const { list, pane } = this.tabs;
    const left = h("div", { class: "left" }, ...timelines, this.overview.element, this.legend.element, list, pane);
    const aside = { class: "right", aria: { label: "Details and findings" } };
    const right = h("aside", aside, this.details.element, this.findings.element);
    this.root.append(this.header.element, this.toolbar.element, h("div", { class: "main" }, left, right), status, help);
  }

  /** The view that a text describes, without values that these files do not have. @param {string} text @returns {import("./store.js").Shown} */
  parse(text) {
    const view = fromHash(text);
    const { context } = this;
    const { files } = context;
    if ((view.device ?? 0) >= Math.max(...files.map((file) => file.devices.length))) delete view.device;
    if ((view.source ?? 0) >= files.length) delete view.source;
    const device = view.device ?? context.home;
    const { allocations, events } = context.with({ ...initialState(), device }).facts(view.source ?? 0);
    if ((view.row ?? 0) >= allocations) delete view.row;
    if ((view.event ?? 0) >= Math.max(events, 1)) delete view.event;
    if (view.range && view.range[1] >= events) delete view.range;
    const now = { ...initialState(), ...view, device };
    return { ...now, ...new Actions(context.with(now)).clampLink(now) };
  }

  /** Show the view that a text describes. @param {string} text */
  show(text) {
    if (text.replace(/^#/, "") === toHash(this.context.now, this.context.home)) return;
    this.context.store.set(this.parse(text));
  }

  updateTheme() {
    const theme = themeOf(this.root, this.options.theme ?? "auto");
    this.root.dataset.theme = theme;
    if (theme === this.context.theme) return;
    this.context.theme = theme;
    if (this.timelines) this.update(new Set(["mode", "device"]));
  }

  resize() {
    const width = this.root.clientWidth;
    if (!width) return;
    this.root.classList.toggle("narrow", width < NARROW);
    this.root.classList.toggle("small", width < SMALL);
    const left = this.timelines[0].element.parentElement?.clientWidth ?? width;
    const available = this.options.host === "page" ? globalThis.innerHeight : WIDGET_HEIGHT;
    // The table of live allocations stays visible below the timelines
    const { length } = this.timelines;
    const share = length > 2 ? Math.max(0.5 / length, 0.1) : length > 1 ? 0.21 : 0.36;
    const height = Math.round(Math.min(Math.max(available, 500), 2000) * share);
    const layout = `${left} ${height} ${globalThis.devicePixelRatio} ${this.context.now.device}`;
    if (layout === this.layout) return;
    this.layout = layout;
    for (const timeline of this.timelines) timeline.resize(left, height);
    this.overview.resize(left);
    this.legend.fold();
    this.stale.add(this.context.now.tab);
    this.panelScheduler.request();
  }

  /** @param {Set<string>} keys what has changed in the store */
  update(keys) {
    const any = (/** @type {string[]} */ ...names) => names.some((name) => keys.has(name));
    if (keys.has("device")) {
      this.header.refresh();
      this.resize();
    }
    if (any("device", "axis", "x", "y", "mode", "hidden", "mark", "event", "range", "source"))
      for (const timeline of this.timelines) timeline.refresh();
    else if (keys.has("row")) for (const timeline of this.timelines) timeline.schedule.request();
    this.updateViews(keys);
  }

  /** Refresh everything except the timelines. @param {Set<string>} keys */
  updateViews(keys) {
    const { context } = this;
    const any = (/** @type {string[]} */ ...names) => names.some((name) => keys.has(name));
    if (any("device", "axis")) this.run(this.overview.refresh());
    if (any("x", "source")) this.overview.schedule.request();
    if (any("device", "axis", "tool", "mode", "search", "source")) this.run(this.toolbar.refresh());
    if (any("device", "mode", "hidden", "mark", "source")) this.run(this.legend.refresh());
    if (any("device", "event", "row", "source")) this.run(this.details.refresh());
    if (any("device") || (context.crowded && any("source"))) this.run(this.findings.refresh());
    this.header.showCurrent();
    for (const [tab, names] of Object.entries(DEPENDENCIES)) if (any(...names)) this.stale.add(tab);
    if (any("tab", "device")) {
      this.tabs.show();
      this.stale.add(context.now.tab);
    }
    if (this.stale.has(context.now.tab)) this.panelScheduler.request();
    this.root.dataset.tool = context.now.tool;
    clearTimeout(this.stateTimer);
    const report = () => this.options.onState?.(toHash(context.now, context.home));
    this.stateTimer = setTimeout(report, STATE_DELAY_MS);
  }

  refreshPanel() {
    const { tab } = this.context.now;
    if (this.pictureShown && this.stale.delete(tab)) this.run(this.tabs.panels[tab].refresh());
  }

  /** Show an error above everything else, which goes on. @param {Error} error */
  showError(error) {
    this.root.querySelector(":scope > .failed")?.remove();
    this.root.prepend(h("p", { class: "failed", role: "alert" }, error.message));
  }

  /** Keep track of a task until it is done. @param {Promise<void>} task */
  run(task) {
    const done = task
      .catch((error) => {
        if (!this.context.stop.signal.aborted) this.showError(error);
      })
      .finally(() => this.tasks.delete(done));
    this.tasks.add(done);
  }

  /** Resolves as soon as everything that was requested is drawn. */
  async settled() {
    await new Promise((resolve) => setTimeout(resolve));
    for (const timeline of this.timelines) await timeline.settled();
    while (this.stale.has(this.context.now.tab)) await new Promise((resolve) => requestAnimationFrame(resolve));
    while (this.tasks.size) await Promise.allSettled(this.tasks);
  }

  destroy() {
    this.context.stop.abort();
    this.panelScheduler.cancel();
    clearTimeout(this.stateTimer);
    this.context.client.close();
    this.root.replaceChildren();
  }
}
