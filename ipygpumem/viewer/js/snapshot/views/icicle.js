/** The call tree as rectangles, the outermost call above. */

import { fine, plural } from "../../data/units.js";
import { h, swap } from "../../ui/dom.js";

const ROW = 19;
const NARROW = 26;

export class Icicle {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    this.field = h("div", {
      class: "boxes",
      role: "tree",
      aria: { label: "Call tree by bytes: arrow keys move, Enter widens a call" },
      on: { keydown: (/** @type {KeyboardEvent} */ event) => this.keys(event) },
    });
    this.note = h("p", { class: "soft" });
    this.element = h("div", { class: "icicle" }, this.field, this.note);
    this.turn = 0;
    /** @type {import("../engine/icicle.js").Box[]} */
    this.boxes = [];
  }

  /** @param {{bytes: number, timed: boolean}} live */
  async refresh(live) {
    const turn = ++this.turn;
    const { context } = this;
    const { range, key, measure, root } = context.now;
    const width = this.element.clientWidth || 480;
    const answer = await context.ask("icicle", {
      event: context.event(),
      range,
      key,
      measure,
      root,
      least: 2.5 / width,
    });
    if (turn !== this.turn) return;
    this.boxes = answer.boxes;
    const deepest = this.boxes.reduce((most, box) => Math.max(most, box.depth), 0);
    this.field.style.height = `${(deepest + 1) * ROW}px`;
    const value = (/** @type {number} */ one) =>
      measure === "bytes" ? fine(one) : live.timed ? `${fine(Math.round(one / 1e6))}·s` : `${fine(one)}·events`;
    swap(
      this.field,
      this.boxes.map((box, i) => {
        const wide = (box.x1 - box.x0) * width;
        const text = `${box.label}: ${value(box.value)}, ${plural(box.count, "allocation")}`;
        return h(
          "button",
          {
            type: "button",
            role: "treeitem",
            class: box.rest ? "rest" : `${box.own ? "own" : ""} ${box.path === root ? "root" : ""}`,
            tabindex: i === 0 ? 0 : -1,
            aria: { label: text, level: box.depth + 1, selected: String(!box.rest && box.path === root) },
            title: `${box.title ?? box.label}\n${value(box.value)}, ${plural(box.count, "allocation")}`,
            data: { i, key: `${box.rest ? "rest" : ""}${box.path}` },
            style: {
              left: `${(box.x0 * 100).toFixed(3)}%`,
              width: `calc(${((box.x1 - box.x0) * 100).toFixed(3)}% - 1px)`,
              top: `${box.depth * ROW}px`,
              "--shade": `${shade(box.label)}%`,
            },
            on: { click: () => context.store.set({ root: box.path }) },
          },
          wide > NARROW
            ? h("span", {}, box.depth === 0 || box.rest ? `${box.label} · ${value(box.value)}` : box.label)
            : "",
        );
      }),
    );
    const focused = /** @type {HTMLElement|null} */ (this.field.querySelector(":focus"));
    if (focused) this.only(focused);
    this.note.textContent = answer.left
      ? `${plural(answer.left, "narrower call")} not shown: click a box to widen it`
      : "";
    this.note.hidden = !answer.left;
  }

  /** @param {KeyboardEvent} event */
  keys(event) {
    const focused = /** @type {HTMLElement|null} */ (event.target);
    const i = Number(focused?.dataset.i ?? -1);
    if (i < 0) return;
    const box = this.boxes[i];
    const among = (/** @type {number} */ depth) =>
      this.boxes.map((one, at) => ({ one, at })).filter(({ one }) => one.depth === depth);
    const middle = (box.x0 + box.x1) / 2;
    /** @type {number|undefined} */
    let next;
    const row = among(box.depth).map(({ at }) => at);
    if (event.key === "ArrowRight") next = row[row.indexOf(i) + 1];
    else if (event.key === "ArrowLeft") next = row[row.indexOf(i) - 1];
    else if (event.key === "ArrowDown")
      next = among(box.depth + 1).find(({ one }) => one.x0 >= box.x0 - 1e-9 && one.x1 <= box.x1 + 1e-9)?.at;
    else if (event.key === "ArrowUp")
      next = among(box.depth - 1).find(({ one }) => one.x0 <= middle && middle <= one.x1)?.at;
    else return;
    event.preventDefault();
    if (next === undefined) return;
    const item = /** @type {HTMLElement} */ (this.field.children[next]);
    this.only(item);
    item.focus();
  }

  /** The one box that the Tab key comes to. @param {HTMLElement} one */
  only(one) {
    for (const item of /** @type {Iterable<HTMLElement>} */ (this.field.children))
      item.tabIndex = item === one ? 0 : -1;
  }
}

/** @param {string} text */
function shade(text) {
  let sum = 0;
  for (let i = 0; i < text.length; i++) sum = (sum * 33 + text.charCodeAt(i)) >>> 0;
  return 12 + (sum % 5) * 5;
}
