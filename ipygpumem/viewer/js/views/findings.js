/** What is worth a look: each a click to its place. */

import { h } from "./dom.js";

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
    const found = /** @type {import("../model/findings.js").Finding[]} */ (await context.ask("findings"));
    this.list.replaceChildren(
      ...found.map((one) =>
        h(
          "li",
          {},
          h(
            "button",
            { type: "button", class: `finding ${one.kind}`, title: one.text, on: { click: () => actions.follow(one) } },
            h("i", { aria: { hidden: "true" } }, SIGNS[one.kind]),
            h("span", {}, h("b", {}, one.title), h("span", {}, one.text)),
          ),
        ),
      ),
    );
    if (!found.length) this.list.replaceChildren(h("li", { class: "empty" }, "Nothing stands out."));
    const { notes } = context.facts();
    this.notes.replaceChildren(...notes.map((text) => h("li", {}, `${text[0].toUpperCase()}${text.slice(1)}.`)));
    this.notes.hidden = !notes.length;
    await context.ask("warm");
  }
}
