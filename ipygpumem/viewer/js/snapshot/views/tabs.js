/** The tabs of the panels below the timelines. */

import { h } from "../../ui/dom.js";
import { radioGroup } from "./radio-group.js";

const LABELS = /** @type {const} */ ([
  ["live", "Allocations"],
  ["state", "Allocator state"],
  ["events", "Events"],
  ["compare", "Compare"],
  ["about", "File"],
]);

/** @typedef {{element: HTMLElement, refresh: () => Promise<void>, csv?: () => Promise<string|string[]>}} Panel */

export class Tabs {
  /** @param {import("../context.js").Context} context @param {Record<string, Panel>} panels */
  constructor(context, panels) {
    this.context = context;
    this.panels = panels;
    this.id = `g${Math.random().toString(36).slice(2)}`;
    this.pane = h("div", { class: "panel", role: "tabpanel", id: this.id });
    this.tabs = radioGroup("Panels", LABELS, (tab) => context.store.set({ tab }), "tab");
    for (const tab of this.tabs.buttons) {
      tab.id = `${this.id}-${tab.dataset.value}`;
      tab.setAttribute("aria-controls", this.id);
    }
    this.list = this.tabs.element;
  }

  /** Show the current panel. */
  show() {
    const { tab } = this.context.now;
    this.tabs.value(tab);
    this.pane.setAttribute("aria-labelledby", `${this.id}-${tab}`);
    this.pane.replaceChildren(this.panels[tab].element);
  }
}
