/** The list of findings, each with a link to its event or allocation, and the limitations of the file. */

import { button } from "../../ui/controls.js";
import { h, replaceChildren } from "../../ui/dom.js";

const SIGNS = { peak: "▲", oom: "✕", leak: "↗", pending: "◷", churn: "⟳", retry: "⇄" };

/** @typedef {import("../engine/findings.js").Finding} Finding */

export class FindingsView {
  /** @param {import("../context.js").Context} context @param {import("./actions.js").Actions} actions */
  constructor(context, actions) {
    this.context = context;
    this.actions = actions;
    this.list = h("ul");
    this.notes = h("ul", { class: "notes" });
    const attributes = { class: "findings", aria: { label: "Findings" } };
    this.element = h("section", attributes, h("h2", {}, "Findings"), this.list, this.notes);
  }

  async refresh() {
    const { context } = this;
    const sources = context.crowded ? [context.now.source] : [...context.files.keys()];
    /** @type {Finding[][]} */
    const findings = await Promise.all(sources.map((source) => context.request("findings", {}, source)));
    const items = sources.flatMap((source, i) => [
      ...(context.files.length > 1 ? [h("li", {}, h("h3", { class: "where" }, context.files[source].name))] : []),
      ...findings[i].map((finding) => this.item(source, finding)),
      ...(findings[i].length ? [] : [h("li", { class: "empty" }, "Nothing to report.")]),
    ]);
    replaceChildren(this.list, items);
    const notes = [...new Set(sources.flatMap((source) => context.facts(source).notes))];
    this.notes.replaceChildren(...notes.map((text) => h("li", {}, `${text[0].toUpperCase()}${text.slice(1)}.`)));
    this.notes.hidden = !notes.length;
    await context.request("prepareSegments");
  }

  /** @param {number} source @param {Finding} finding */
  item(source, finding) {
    const { kind, title, text } = finding;
    const { context, actions } = this;
    const click = () => {
      if (context.now.source !== source) context.store.set({ source, event: null, row: null, range: null });
      actions.follow(finding);
    };
    const sign = h("i", { aria: { hidden: "true" } }, SIGNS[kind]);
    const content = [sign, h("span", {}, h("b", {}, title), h("span", {}, text))];
    return h("li", {}, button(content, click, { class: `finding ${kind}`, title: text }));
  }
}
