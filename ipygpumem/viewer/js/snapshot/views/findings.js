/** What is worth a look: each a click to its place. */

import { h, swap } from "../../ui/dom.js";

const SIGNS = { peak: "▲", oom: "✕", leak: "↗", pending: "◷", churn: "⟳", retry: "⇄", gap: "…" };

export class FindingsView {
  /** @param {import("../context.js").Context} context @param {import("./actions.js").Actions} actions */
  constructor(context, actions) {
    this.context = context;
    this.actions = actions;
    this.list = h("ul");
    this.notes = h("ul", { class: "notes" });
    this.element = h(
      "section",
      { class: "findings", aria: { label: "Findings" } },
      h("h2", {}, "Findings"),
      this.list,
      this.notes,
    );
  }

  async refresh() {
    const { context, actions } = this;
    const { files, store } = context;
    const chosen = context.crowd ? [context.now.source] : [...files.keys()];
    /** @type {import("../engine/findings.js").Finding[][]} */
    const found = await Promise.all(chosen.map((source) => context.ask("findings", {}, source)));
    const follow = (/** @type {number} */ source, /** @type {import("../engine/findings.js").Finding} */ one) => {
      if (context.now.source !== source) store.set({ source, event: null, row: null, range: null });
      actions.follow(one);
    };
    const items = found.map((all, number) => [
      files.length > 1 && h("li", {}, h("h3", { class: "where" }, files[chosen[number]].name)),
      ...all.map((one) =>
        h(
          "li",
          {},
          h(
            "button",
            {
              type: "button",
              class: `finding ${one.kind}`,
              title: one.text,
              on: { click: () => follow(chosen[number], one) },
            },
            h("i", { aria: { hidden: "true" } }, SIGNS[one.kind]),
            h("span", {}, h("b", {}, one.title), h("span", {}, one.text)),
          ),
        ),
      ),
      !all.length && h("li", { class: "empty" }, "Nothing stands out."),
    ]);
    swap(this.list, /** @type {HTMLElement[]} */ (items.flat().filter((item) => item !== false)));
    const notes = [...new Set(chosen.flatMap((source) => context.facts(source).notes))];
    this.notes.replaceChildren(...notes.map((text) => h("li", {}, `${text[0].toUpperCase()}${text.slice(1)}.`)));
    this.notes.hidden = !notes.length;
    await context.ask("warm");
  }
}
