/** The call tree as rectangles, with the outermost call at the top. */

import { fine, plural } from "../../data/units.js";
import { button } from "../../ui/controls.js";
import { h, replaceChildren } from "../../ui/dom.js";

const ROW = 19; // pixels
const MIN_LABEL_WIDTH = 26;
const MIN_WIDTH = 2.5;

/** @typedef {import("../engine/icicle.js").Box} Box */

export class Icicle {
  /** @param {import("../context.js").Context} context */
  constructor(context) {
    this.context = context;
    this.tree = h("div", {
      class: "boxes",
      role: "tree",
      aria: { label: "Call tree by bytes. Arrow keys move, Enter zooms into a call." },
      on: { keydown: (/** @type {KeyboardEvent} */ event) => this.keys(event) },
    });
    this.note = h("p", { class: "soft" });
    this.element = h("div", { class: "icicle" }, this.tree, this.note);
    this.turn = 0;
    /** @type {Box[]} */
    this.boxes = [];
  }

  /** @param {boolean} timed whether lifetimes are known */
  async refresh(timed) {
    const turn = ++this.turn;
    const { context } = this;
    const { range, key, measure, root } = context.now;
    const width = this.element.clientWidth || 480;
    const request = { event: context.event(), range, key, measure, root, threshold: MIN_WIDTH / width };
    const { boxes, left } = await context.request("icicle", request);
    if (turn !== this.turn) return;
    this.boxes = boxes;
    const deepest = Math.max(...this.boxes.map(({ depth }) => depth));
    this.tree.style.height = `${(deepest + 1) * ROW}px`;
    const format = (/** @type {number} */ value) => {
      if (measure === "bytes") return fine(value);
      return timed ? `${fine(Math.round(value / 1e6))}·s` : `${fine(value)}·events`;
    };
    replaceChildren(
      this.tree,
      this.boxes.map((box, i) => this.box(box, i, width, format(box.value))),
    );
    const focused = /** @type {HTMLElement|null} */ (this.tree.querySelector(":focus"));
    if (focused) this.setTabStop(focused);
    this.note.textContent = `${plural(left, "narrower call")} not shown: click a box to zoom into it`;
    this.note.hidden = !left;
  }

  /** @param {Box} box @param {number} i @param {number} width of the tree @param {string} value */
  box({ label, title, depth, x0, x1, count, own, path, rest }, i, width, value) {
    const { root } = this.context.now;
    const current = !rest && path === root;
    const facts = `${value}, ${plural(count, "allocation")}`;
    const text = depth === 0 || rest ? `${label} · ${value}` : label;
    const content = [(x1 - x0) * width > MIN_LABEL_WIDTH && h("span", {}, text)];
    return button(content, () => this.context.store.set({ root: path }), {
      role: "treeitem",
      class: rest ? "rest" : `${own ? "own" : ""} ${current ? "root" : ""}`,
      tabindex: i === 0 ? 0 : -1,
      aria: { label: `${label}: ${facts}`, level: depth + 1, selected: current },
      title: `${title ?? label}\n${facts}`,
      data: { i, key: `${rest ? "rest" : ""}${path}` },
      style: {
        left: `${(x0 * 100).toFixed(3)}%`,
        width: `calc(${((x1 - x0) * 100).toFixed(3)}% - 1px)`,
        top: `${depth * ROW}px`,
        "--shade": `${shade(label)}%`,
      },
    });
  }

  /** @param {KeyboardEvent} event */
  keys(event) {
    const i = Number(/** @type {HTMLElement|null} */ (event.target)?.dataset.i ?? -1);
    const box = this.boxes[i];
    if (!box) return;
    const { boxes } = this;
    const middle = (box.x0 + box.x1) / 2;
    const row = boxes.filter(({ depth }) => depth === box.depth);
    const inside = (/** @type {Box} */ { x0, x1 }) => x0 >= box.x0 - 1e-9 && x1 <= box.x1 + 1e-9;
    /** @type {Record<string, () => Box|undefined>} */
    const moves = {
      ArrowRight: () => row[row.indexOf(box) + 1],
      ArrowLeft: () => row[row.indexOf(box) - 1],
      ArrowDown: () => boxes.find((inner) => inner.depth === box.depth + 1 && inside(inner)),
      ArrowUp: () => boxes.find(({ depth, x0, x1 }) => depth === box.depth - 1 && x0 <= middle && middle <= x1),
    };
    if (!Object.hasOwn(moves, event.key)) return;
    event.preventDefault();
    const next = moves[event.key]();
    if (!next) return;
    const item = /** @type {HTMLElement} */ (this.tree.children[boxes.indexOf(next)]);
    this.setTabStop(item);
    item.focus();
  }

  /** Make one box the only one that the Tab key reaches. @param {HTMLElement} item */
  setTabStop(item) {
    for (const child of /** @type {Iterable<HTMLElement>} */ (this.tree.children))
      child.tabIndex = child === item ? 0 : -1;
  }
}

/** A shade for a text, which distinguishes neighboring boxes. @param {string} text */
function shade(text) {
  let sum = 0;
  for (let i = 0; i < text.length; i++) sum = (sum * 33 + text.charCodeAt(i)) >>> 0;
  return 12 + (sum % 5) * 5;
}
