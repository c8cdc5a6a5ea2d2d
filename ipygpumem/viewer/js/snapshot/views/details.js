/** One allocation, in full: the selected one. Else what is at the cursor. */

import { count, duration, fine, plural, size } from "../../data/units.js";
import { h, swap } from "../../ui/dom.js";

/** So many lines of a stack at a time. */
const MOST = 40;

export class Details {
  /** @param {import("../context.js").Context} context @param {import("./actions.js").Actions} actions */
  constructor(context, actions) {
    this.context = context;
    this.actions = actions;
    this.body = h("div", { class: "body" });
    this.element = h("section", { class: "details", aria: { label: "Selected allocation" } }, this.body);
    this.turn = 0;
  }

  async refresh() {
    const turn = ++this.turn;
    const { context } = this;
    const { row, source } = context.now;
    const event = context.event(source);
    const [facts, moment] = await Promise.all([
      row === null ? null : context.ask("allocation", { row }, source),
      context.ask("moment", { event }, source),
    ]);
    if (turn !== this.turn) return;
    swap(this.body, [this.moment(moment), ...(facts ? this.allocation(facts) : [this.empty()])]);
  }

  /** @param {any} moment */
  moment(moment) {
    const { context } = this;
    const facts = context.facts();
    const at = context.now.event === null ? "At the peak" : "At the cursor";
    const time = moment.time === null ? "" : ` · ${duration(moment.time - facts.origin)}`;
    const { about } = moment;
    const action = about?.action.replaceAll("_", " ");
    const what = about && context.now.event !== null ? `${action}${about.size ? ` ${fine(about.size)}` : ""}` : "";
    return h(
      "div",
      { class: "moment" },
      h("h2", {}, at),
      h("p", {}, moment.event < 0 ? "before the first event" : `event ${count(moment.event)}${time}`),
      h(
        "p",
        { class: "pair" },
        h("b", {}, size(moment.requested)),
        " allocated",
        moment.reserved === null ? "" : h("span", {}, " of ", h("b", {}, size(moment.reserved)), " reserved"),
      ),
      what && h("p", { class: "soft" }, what),
    );
  }

  empty() {
    return h(
      "p",
      { class: "empty" },
      "Point at an allocation to see its line; click it to keep it here with its stack, its lifetime and its address.",
    );
  }

  /** @param {any} facts */
  allocation(facts) {
    const { context, actions } = this;
    const origin = context.facts().origin;
    const event = (/** @type {number|null} */ at, /** @type {string} */ none) =>
      at === null
        ? none
        : h(
            "button",
            { class: "link", type: "button", on: { click: () => actions.goTo(at, context.now.source) } },
            `event ${count(at)}`,
          );
    const life = facts.lifetime === null ? plural(facts.lifetimeEvents, "event") : duration(facts.lifetime);
    /** @type {[string, Node|string|null][]} */
    const rows = [
      [
        "made",
        h(
          "span",
          {},
          event(facts.start, "before the recording"),
          facts.startTime === null ? "" : ` at ${duration(facts.startTime - origin)}`,
        ),
      ],
      ["freed", event(facts.end, "alive at the end")],
      ["lived", `${facts.start === null ? "at least " : ""}${life}${facts.end === null ? ", up to the end" : ""}`],
      ["cell", hidden(facts.cell, "(no cell)")],
      ["region", hidden(facts.annotation, "(outside of all)")],
      ["stream", facts.stream],
      ["pool", facts.pool],
      ["address", h("code", {}, facts.address)],
      ["name", h("code", {}, facts.name)],
      ["rounded", facts.rounded === null || facts.rounded === facts.size ? null : fine(facts.rounded)],
      ["compile context", hidden(facts.context, "N/A")],
      ["metadata", facts.metadata || null],
    ];
    if (facts.asked !== null && facts.end !== null && (facts.end - facts.asked > 1 || facts.waited >= 1000))
      rows.splice(2, 0, [
        "free asked",
        h("span", {}, event(facts.asked, ""), facts.waited ? `, ${duration(facts.waited)} before` : ""),
      ]);
    const term = (/** @type {string} */ name) => h("dt", {}, name);
    return [
      h("h2", {}, "Allocation"),
      h("p", { class: "size" }, fine(facts.size), h("small", {}, ` ${count(facts.size)} bytes`)),
      h("p", { class: "where", title: facts.line }, facts.line),
      facts.source && h("pre", { tabindex: 0 }, facts.source.slice(0, 2000)),
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", on: { click: () => actions.others() } }, "Find the others from this line"),
        h("button", { type: "button", on: { click: () => context.store.set({ row: null }) } }, "Close"),
      ),
      h(
        "dl",
        {},
        ...rows
          .filter(([, value]) => value)
          .flatMap(([name, value]) => [
            term(name),
            h("dd", {}, typeof value === "string" ? h("span", { class: "where", title: value }, value) : value),
          ]),
      ),
      h("h3", {}, "Stack"),
      stackList(facts.stack),
    ].filter((one) => one !== null && one !== "");
  }
}

/** @param {string|null} text @param {string} none */
function hidden(text, none) {
  return text === none ? null : text;
}

/** A stack: own code in sight, what lies between folded. @param {any[]} stack */
export function stackList(stack) {
  if (!stack.length)
    return h(
      "p",
      { class: "soft" },
      "No stack was recorded here: older than the recording, or on a thread without Python, such as a backward pass.",
    );
  const line = (/** @type {any} */ frame) =>
    h(
      "li",
      { class: frame.own ? "own" : "", title: frame.title },
      h("span", { class: "name" }, frame.name || "?"),
      h("span", { class: "place" }, frame.place),
      frame.source && h("code", {}, frame.source),
    );
  const list = h("ol", { class: "stack", tabindex: 0, aria: { label: "Stack" } });
  /** @type {(() => HTMLElement)[]} */
  const parts = [];
  const calls = once(stack);
  for (let i = 0; i < calls.length; ) {
    const { own, again, times } = calls[i];
    if (again) parts.push(() => h("li", { class: "soft" }, `↑ ${plural(again, "frame")}, ${times} times more`));
    if (own) parts.push(line.bind(null, calls[i]));
    if (own || again) {
      i++;
      continue;
    }
    let end = i;
    while (end < calls.length && !calls[end].own && !calls[end].again) end++;
    const folded = calls.slice(i, end);
    if (folded.length === 1 && calls.length <= 4) {
      parts.push(() => line(folded[0]));
    } else {
      const files = [...new Set(folded.map((one) => one.library))].slice(0, 2).join(", ");
      const inner = h("ol", { class: "stack" });
      const more = h("details", {}, h("summary", {}, `${plural(folded.length, "frame")} of ${files}`), inner);
      more.addEventListener("toggle", () => {
        if (!inner.childElementCount) inner.append(...folded.slice(0, 500).map(line));
      });
      parts.push(() => h("li", {}, more));
    }
    i = end;
  }
  const rest = h("button", { type: "button", class: "link", on: { click: () => add() } });
  const last = h("li", {}, rest);
  const add = () => {
    list.append(...parts.splice(0, MOST).map((part) => part()));
    rest.textContent = `${parts.length} more`;
    if (parts.length) list.append(last);
    else last.remove();
  };
  add();
  return list;
}

/** Frames, where calls that repeat, as in a recursion, come once. @param {any[]} stack */
function once(stack) {
  const names = stack.map((one) => `${one.title} ${one.name}`);
  /** @type {any[]} */
  const found = [];
  for (let i = 0; i < stack.length; ) {
    let long = 1;
    let times = 1;
    for (let period = 1; period <= 6 && times < 3; period++) {
      let end = i + period;
      while (end < stack.length && names[end] === names[end - period]) end++;
      long = period;
      times = Math.floor((end - i) / period);
    }
    if (times < 3) {
      found.push(stack[i++]);
    } else {
      found.push(...stack.slice(i, i + long), { again: long, times: times - 1 });
      i += long * times;
    }
  }
  return found;
}
