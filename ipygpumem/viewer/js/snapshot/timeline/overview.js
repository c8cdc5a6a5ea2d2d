/** The whole recording, small, with a brush for the part in view. */

import { brushX } from "d3-brush";
import { select } from "d3-selection";
import { eachFrame, fit, h, s } from "../../ui/dom.js";
import { ink } from "../../ui/theme.js";
import { ROOM } from "./timeline.js";

const HEIGHT = 42;

export class Overview {
  /** @param {import("../context.js").Context} context @param {import("../views/actions.js").Actions} actions */
  constructor(context, actions) {
    this.context = context;
    this.canvas = h("canvas", { aria: { hidden: "true" } });
    this.svg = s("svg", { "aria-hidden": "true" });
    this.element = h("div", {
      class: "overview",
      tabindex: 0,
      role: "group",
      aria: { label: "Overview: arrow keys move the visible part, plus and minus change its width" },
    });
    this.element.append(this.canvas, this.svg);
    this.width = 0;
    this.moving = false;
    /** @type {{requested: Float64Array, reserved: Float64Array}[]} */
    this.curves = [];
    this.again = eachFrame(() => this.draw());
    this.brush = /** @type {any} */ (
      brushX().on("brush end", (event) => {
        if (this.moving || !event.sourceEvent) return;
        if (!event.selection) {
          if (event.type === "end") actions.fit();
          return;
        }
        const [d0, d1] = context.domain();
        const [from, to] = event.selection.map((/** @type {number} */ one) => d0 + (one / this.width) * (d1 - d0));
        context.store.set({ x: actions.widths([from, to]) });
      })
    );
    this.element.addEventListener("keydown", (event) => {
      const { source } = context.now;
      /** @type {Record<string, () => void>} */
      const keys = {
        ArrowLeft: () => actions.pan(-0.15),
        ArrowRight: () => actions.pan(0.15),
        "+": () => actions.zoomBy(1 / 1.4, source),
        "-": () => actions.zoomBy(1.4, source),
        Home: () => actions.fit(),
      };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  /** @param {number} width of the element */
  resize(width) {
    this.width = Math.max(60, Math.floor(width - ROOM.left - ROOM.right));
    Object.assign(this.canvas.style, { left: `${ROOM.left}px` });
    Object.assign(this.svg.style, { left: `${ROOM.left}px`, width: `${this.width}px`, height: `${HEIGHT}px` });
    this.brush.extent([
      [0, 0],
      [this.width, HEIGHT],
    ]);
    select(this.svg).call(this.brush);
    // the brush has a second pair of keys and focus of its own: the element's are enough
    this.refresh();
  }

  async refresh() {
    if (!this.width) return;
    const { context, width } = this;
    const [x0, x1] = context.domain();
    this.curves = await Promise.all(
      context.files.map((_, source) => context.ask("curves", { axis: context.axis(), x0, x1, width }, source)),
    );
    this.again.ask();
  }

  draw() {
    const { context, width } = this;
    const colors = ink(context.theme);
    const canvas = fit(this.canvas, width, HEIGHT);
    canvas.clearRect(0, 0, width, HEIGHT);
    const [, most] = context.range();
    const [d0, d1] = context.domain();
    for (const [source, { requested }] of this.curves.entries()) {
      if (context.crowd && source !== context.now.source) continue;
      const [, end] = context.facts(source).domains[context.axis()];
      const last = Math.ceil(((end - d0) / (d1 - d0)) * width);
      canvas.fillStyle = source === context.now.source ? colors.overview : colors.overviewOther;
      canvas.beginPath();
      canvas.moveTo(0, HEIGHT);
      for (let x = 0; x < Math.min(width, last); x++) {
        const y = HEIGHT - (requested[x] / most) * (HEIGHT - 2);
        canvas.lineTo(x, y);
        canvas.lineTo(x + 1, y);
      }
      canvas.lineTo(Math.min(width, last), HEIGHT);
      canvas.fill();
    }
    const x = context.now.x;
    const selection = x ? x.map((one) => Math.min(Math.max(((one - d0) / (d1 - d0)) * width, 0), width)) : null;
    if (selection && selection[1] - selection[0] < 2) selection[1] = Math.min(selection[0] + 2, width);
    this.moving = true;
    /** @type {any} */ (select(this.svg)).call(this.brush.move, selection);
    this.moving = false;
  }
}
