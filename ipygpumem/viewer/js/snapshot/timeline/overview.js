/** The overview strip of the snapshot viewer: requested bytes over the whole recording. */

import { fillArea, OverviewStrip } from "../../ui/overview-strip.js";
import { chartColors } from "../../ui/theme.js";
import { MARGIN } from "./timeline.js";

export class Overview {
  /** @param {import("../context.js").Context} context @param {import("../views/actions.js").Actions} actions */
  constructor(context, actions) {
    this.context = context;
    /** @type {Float64Array[]} */
    this.curves = [];
    this.strip = new OverviewStrip({
      domain: () => context.domain(),
      view: () => context.now.x,
      onSelect: (view) => context.store.set({ x: actions.clampView(view) }),
      keys: { ...actions.viewKeys(() => context.now.source), Home: () => actions.fit() },
      draw: (canvas, width, height) => this.draw(canvas, width, height),
    });
    this.element = this.strip.element;
    this.schedule = this.strip.schedule;
  }

  /** @param {number} width of the element */
  resize(width) {
    this.strip.resize(MARGIN.left, Math.max(60, Math.floor(width - MARGIN.left - MARGIN.right)));
    this.refresh();
  }

  async refresh() {
    const { context } = this;
    const { width } = this.strip;
    if (!width) return;
    const [x0, x1] = context.domain();
    const request = { axis: context.axis(), x0, x1, width };
    const curves = await Promise.all(context.files.map((_, source) => context.request("curves", request, source)));
    this.curves = curves.map(({ requested }) => requested);
    this.schedule.request();
  }

  /** @param {CanvasRenderingContext2D} canvas @param {number} width @param {number} height */
  draw(canvas, width, height) {
    const { context } = this;
    const colors = chartColors(context.theme);
    const [, maximum] = context.range();
    const [low, high] = context.domain();
    for (const [source, curve] of this.curves.entries()) {
      const current = source === context.now.source;
      if (context.crowded && !current) continue;
      const [, end] = context.facts(source).domains[context.axis()];
      canvas.fillStyle = current ? colors.overview : colors.overviewOther;
      fillArea(canvas, curve.subarray(0, Math.ceil(((end - low) / (high - low)) * width)), height, maximum);
    }
  }
}
