/** Wheel, drag and keys of the plot. */

import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";

const LEAST = { time: 200, change: 4 };
const STEP = 1.5;

/** @param {import("./view.js").View} view */
export function gestures(view) {
  const canvas = view.pad; // lies over the plot alone: its left edge is the plot's
  const node = /** @type {any} */ (select(canvas));
  let following = false;
  const behaviour = /** @type {any} */ (
    zoom()
      .filter((event) => (event.type === "wheel" ? true : event.type !== "dblclick" && !event.button))
      .clickDistance(4)
      .on("zoom", (event) => {
        if (following) return;
        const { k, x } = event.transform;
        const [d0, d1] = view.domain();
        const width = view.plotWidth();
        const per = (d1 - d0) / (width * k);
        const x0 = d0 - x * per;
        view.look([x0, x0 + width * per]);
      })
  );

  function follow() {
    const width = view.plotWidth();
    if (width <= 0) return;
    const [d0, d1] = view.domain();
    behaviour
      .extent([
        [0, 0],
        [width, 1],
      ])
      .translateExtent([
        [0, 0],
        [width, 1],
      ])
      .scaleExtent([1, Math.max((d1 - d0) / LEAST[view.axis], 1)]);
    const [x0, x1] = view.x;
    const k = (d1 - d0) / (x1 - x0);
    following = true;
    node.property("__zoom", zoomIdentity.translate((-(x0 - d0) / (d1 - d0)) * width * k, 0).scale(k));
    following = false;
  }

  node.call(behaviour).on("dblclick.zoom", null);
  canvas.style.touchAction = "none";
  canvas.addEventListener("dblclick", () => view.fit());
  canvas.addEventListener("pointermove", (event) => view.hover(event));
  canvas.addEventListener("pointerleave", () => view.hover(null));
  canvas.addEventListener("click", (event) => view.click(event));
  canvas.addEventListener("keydown", (event) => keys(event, view));
  return { follow };
}

/** @param {KeyboardEvent} event @param {import("./view.js").View} view */
function keys(event, view) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  /** @type {Record<string, () => void>} */
  const known = {
    ArrowLeft: () => (event.shiftKey ? view.pan(-0.15) : view.step(-1)),
    ArrowRight: () => (event.shiftKey ? view.pan(0.15) : view.step(1)),
    PageUp: () => view.pan(-0.9),
    PageDown: () => view.pan(0.9),
    "+": () => view.zoomBy(1 / STEP),
    "=": () => view.zoomBy(1 / STEP),
    "-": () => view.zoomBy(STEP),
    Home: () => view.goTo(0),
    End: () => view.goTo(view.device.count),
    0: () => view.fit(),
    f: () => view.fit(),
    p: () => view.goTo(view.device.peak.row),
    a: () => view.turn(view.axis === "time" ? "change" : "time"),
    "?": () => view.help(),
    Escape: () => view.clear(),
  };
  for (let key = 1; key <= 8; key++) known[key] = () => view.toggle(key - 1);
  const act = known[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}
