/** Zooming and panning of a horizontal axis: by wheel and drag (d3-zoom), and by computing a new view. */

import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";

/** @typedef {[number, number]} Range */

/** @param {number} a @param {number} b @returns {Range} */
export function ascending(a, b) {
  return a < b ? [a, b] : [b, a];
}

/** A view of at least a minimum size, moved inside the domain. @param {Range} view @param {Range} domain @param {number} minimum @returns {Range} */
export function clampRange([from, to], [low, high], minimum) {
  const span = Math.min(Math.max(to - from, minimum), high - low);
  const start = Math.min(Math.max(from, low), high - span);
  return [start, start + span];
}

/** @param {Range} view @param {number} factor below 1 zooms in @param {number} center @returns {Range} */
export function scaleRange([from, to], factor, center) {
  return [center - (center - from) * factor, center + (to - center) * factor];
}

/** @param {Range} view @param {number} share of its size @returns {Range} */
export function shiftRange([from, to], share) {
  const distance = (to - from) * share;
  return [from + distance, to + distance];
}

/**
 * The keys that move and zoom a view.
 * @param {(share: number) => void} pan @param {(factor: number) => void} zoomBy @param {() => void} showAll
 * @param {number} step factor of one key press
 * @returns {Record<string, () => void>}
 */
export function viewKeys(pan, zoomBy, showAll, step) {
  return {
    ArrowLeft: () => pan(-0.15),
    ArrowRight: () => pan(0.15),
    PageUp: () => pan(-0.9),
    PageDown: () => pan(0.9),
    "+": () => zoomBy(1 / step),
    "=": () => zoomBy(1 / step),
    "-": () => zoomBy(step),
    0: showAll,
  };
}

/**
 * Zoom and pan with the pointer.
 * @param {HTMLElement} element as wide as the plot
 * @param {object} options
 * @param {() => Range} options.domain the whole axis
 * @param {() => Range} options.view the visible part
 * @param {() => number} options.width pixels
 * @param {() => number} options.minimum the smallest part that can be shown
 * @param {(view: Range, source: any) => void} options.onChange source: the pointer event
 * @param {(event: any) => boolean} [options.filter] which wheel and pointer events count
 * @returns {() => void} call it when the view has changed in another way
 */
export function horizontalZoom(element, { domain, view, width, minimum, onChange, filter = () => true }) {
  const node = /** @type {any} */ (select(element));
  let updating = false; // d3 also reports transforms that this module sets
  const behavior = /** @type {any} */ (
    zoom()
      .filter((event) => (event.type === "wheel" || (event.type !== "dblclick" && !event.button)) && filter(event))
      .clickDistance(4)
      .on("start", () => element.classList.add("panning"))
      .on("end", () => element.classList.remove("panning"))
      .on("zoom", ({ transform: { k, x }, sourceEvent }) => {
        if (updating) return;
        const [low, high] = domain();
        const unit = (high - low) / (width() * k);
        const start = low - x * unit;
        onChange([start, start + width() * unit], sourceEvent);
      })
  );
  node.call(behavior).on("dblclick.zoom", null);
  element.style.touchAction = "none";

  return function update() {
    const pixels = width();
    if (pixels <= 0) return;
    const [low, high] = domain();
    const [from, to] = view();
    const extent = [
      [0, 0],
      [pixels, 1],
    ];
    const scale = (high - low) / (to - from);
    behavior.extent(extent).translateExtent(extent);
    behavior.scaleExtent([1, Math.max((high - low) / minimum(), 1)]);
    updating = true;
    node.property("__zoom", zoomIdentity.translate((-(from - low) / (high - low)) * pixels * scale, 0).scale(scale));
    updating = false;
  };
}
