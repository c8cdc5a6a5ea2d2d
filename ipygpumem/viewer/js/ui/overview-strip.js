/** A small chart of the whole recording, with a brush that selects the visible part. */

import { brushX } from "d3-brush";
import { select } from "d3-selection";
import { fitCanvas } from "./canvas.js";
import { frameScheduler, h, handleKey, s } from "./dom.js";

const HEIGHT = 42;

export class OverviewStrip {
  /**
   * @param {object} options
   * @param {() => [number, number]} options.domain
   * @param {() => [number, number]|null} options.view null: everything is in view
   * @param {(view: [number, number]) => void} options.onSelect
   * @param {Record<string, () => void>} options.keys
   * @param {(context: CanvasRenderingContext2D, width: number, height: number) => void} options.draw
   */
  constructor({ domain, view, onSelect, keys, draw }) {
    this.domain = domain;
    this.view = view;
    this.paint = draw;
    this.canvas = h("canvas", { aria: { hidden: "true" } });
    this.svg = s("svg", { "aria-hidden": "true" });
    this.element = h("div", {
      class: "overview",
      tabindex: 0,
      role: "group",
      aria: { label: "Overview. Arrow keys move the visible part, plus and minus resize it." },
      title: "Drag to select a part, or click to move the visible part there",
      on: { keydown: (/** @type {KeyboardEvent} */ event) => handleKey(event, keys) },
    });
    this.element.append(this.canvas, this.svg);
    this.width = 0;
    this.moving = false;
    this.schedule = frameScheduler(() => this.draw());
    this.brush = /** @type {any} */ (
      brushX().on("brush end", ({ selection, sourceEvent, type }) => {
        if (this.moving || !sourceEvent) return;
        const [low, high] = domain();
        const value = (/** @type {number} */ pixel) => low + (pixel / this.width) * (high - low);
        if (selection) {
          onSelect([value(selection[0]), value(selection[1])]);
        } else if (type === "end") {
          const [from, to] = view() ?? domain();
          const center = value(sourceEvent.clientX - this.svg.getBoundingClientRect().left);
          onSelect([center - (to - from) / 2, center + (to - from) / 2]);
          this.schedule.request();
        }
      })
    );
  }

  /** @param {number} left @param {number} width of the plot, in CSS pixels */
  resize(left, width) {
    this.width = width;
    this.canvas.style.left = `${left}px`;
    Object.assign(this.svg.style, { left: `${left}px`, width: `${width}px`, height: `${HEIGHT}px` });
    this.brush.extent([
      [0, 0],
      [width, HEIGHT],
    ]);
    // d3-brush would add its own keys and focus
    select(this.svg).call(this.brush);
  }

  draw() {
    const { width } = this;
    if (!width) return;
    const context = fitCanvas(this.canvas, width, HEIGHT);
    context.clearRect(0, 0, width, HEIGHT);
    this.paint(context, width, HEIGHT);
    const view = this.view();
    const [low, high] = this.domain();
    const selection =
      view?.map((value) => Math.min(Math.max(((value - low) / (high - low)) * width, 0), width)) ?? null;
    if (selection && selection[1] - selection[0] < 2) selection[1] = Math.min(selection[0] + 2, width);
    this.moving = true;
    /** @type {any} */ (select(this.svg)).call(this.brush.move, selection);
    this.moving = false;
  }
}

/**
 * Fill the area below a curve that has one value per pixel.
 * @param {CanvasRenderingContext2D} context @param {ArrayLike<number>} values @param {number} height @param {number} maximum
 */
export function fillArea(context, values, height, maximum) {
  context.beginPath();
  context.moveTo(0, height);
  for (let x = 0; x < values.length; x++) {
    const y = height - (values[x] / maximum) * (height - 2);
    context.lineTo(x, y);
    context.lineTo(x + 1, y);
  }
  context.lineTo(values.length, height);
  context.fill();
}
