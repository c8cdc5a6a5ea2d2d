/** The tabs of the panels below the timelines. */

import { h } from "../../ui/dom.js";

const LABELS = {
  live: "Allocations",
  state: "Allocator state",
  events: "Events",
  compare: "Compare",
  about: "File",
};

/** @typedef {{element: HTMLElement, refresh: () => Promise<void>, csv?: () => Promise<string|string[]>}} Panel */

export class Tabs {
  /** @param {import("../context.js").Context} context @param {Record<string, Panel>} panels */
  constructor(context, panels) {
    this.context = context;
    this.panels = panels;
    this.id = `g${Math.random().toString(36).slice(2)}`;
    this.pane = h("div", { class: "panel", role: "tabpanel", id: this.id });
    this.buttons = Object.entries(LABELS).map(([tab, label]) =>
      h(
        "button",
        {
          type: "button",
          role: "tab",
          id: `${this.id}-${tab}`,
          aria: { controls: this.id },
          data: { tab },
          on: { click: () => context.store.set({ tab }) },
        },
        label,
      ),
    );
    this.list = h(
      "div",
      {
        class: "tabs",
        role: "tablist",
        aria: { label: "Panels" },
        on: { keydown: (/** @type {KeyboardEvent} */ event) => this.keys(event) },
      },
      ...this.buttons,
    );
  }

  /** @param {KeyboardEvent} event */
  keys(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const current = this.buttons.findIndex((button) => button.dataset.tab === this.context.now.tab);
    const next = this.buttons[(current + step + this.buttons.length) % this.buttons.length];
    this.context.store.set({ tab: next.dataset.tab });
    next.focus();
  }

  /** Show the current panel. */
  show() {
    const { tab } = this.context.now;
    for (const button of this.buttons) {
      const selected = button.dataset.tab === tab;
      button.setAttribute("aria-selected", String(selected));
      button.tabIndex = selected ? 0 : -1;
    }
    this.pane.setAttribute("aria-labelledby", `${this.id}-${tab}`);
    this.pane.replaceChildren(this.panels[tab].element);
  }
}
