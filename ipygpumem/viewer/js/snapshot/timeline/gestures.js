/** Wheel, drag, click and keys of a timeline. */

import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { ROOM } from "./timeline.js";

/** How far one can zoom in: an axis of this many units in view, by event and by time (microseconds). */
const LEAST = { event: 4, time: 2 };
const STEP = 1.4;

/** @param {import("./timeline.js").Timeline} timeline @param {import("../views/actions.js").Actions} actions */
export function gestures(timeline, actions) {
  const { plot, context } = timeline;
  const { signal } = context.stop;
  const node = /** @type {any} */ (select(plot));
  let following = false; // a transform that we set ourselves

  const behaviour = /** @type {any} */ (
    zoom()
      .filter((event) => {
        if (event.type === "wheel") return !event.altKey && !event.shiftKey;
        if (event.type === "dblclick") return false;
        return !event.button && toolOf(event) === "pan";
      })
      .clickDistance(4)
      .on("start", () => plot.classList.add("panning"))
      .on("end", () => plot.classList.remove("panning"))
      .on("zoom", (event) => {
        if (following) return;
        const { k, x } = event.transform;
        const [d0, d1] = context.domain();
        const per = (d1 - d0) / (timeline.size.plotWidth * k);
        const x0 = d0 - x * per;
        const source = event.sourceEvent;
        const patch = /** @type {any} */ ({ x: whole([x0, x0 + timeline.size.plotWidth * per]) });
        if (context.now.y && source?.type === "mousemove" && source.movementY) {
          const [y0, y1] = context.now.y;
          const by = (source.movementY / timeline.size.plotHeight) * (y1 - y0);
          patch.y = actions.heights([y0 + by, y1 + by]);
        }
        context.store.set(patch);
      })
  );

  /** @param {[number, number]} x */
  function whole(x) {
    const [d0, d1] = context.domain();
    return x[0] <= d0 + 1e-9 * (d1 - d0) && x[1] >= d1 - 1e-9 * (d1 - d0) ? null : x;
  }

  /** @param {MouseEvent} event */
  function toolOf(event) {
    return event.shiftKey
      ? "range"
      : event.altKey
        ? "ruler"
        : event.ctrlKey || event.metaKey
          ? "box"
          : context.now.tool;
  }

  function follow() {
    const { plotWidth, plotHeight } = timeline.size;
    if (!plotWidth) return;
    const [d0, d1] = context.domain();
    const least = LEAST[context.axis()];
    behaviour
      .extent([
        [0, 0],
        [plotWidth, plotHeight],
      ])
      .translateExtent([
        [0, 0],
        [plotWidth, plotHeight],
      ])
      .scaleExtent([1, Math.max((d1 - d0) / least, 1)]);
    const { x0, x1 } = timeline.window();
    const k = (d1 - d0) / (x1 - x0);
    following = true;
    node.property("__zoom", zoomIdentity.translate((-(x0 - d0) / (d1 - d0)) * plotWidth * k, 0).scale(k));
    following = false;
  }

  node.call(behaviour).on("dblclick.zoom", null);
  plot.style.touchAction = "none";
  context.store.listen((keys) => {
    if (keys.has("x") || keys.has("axis") || keys.has("device")) follow();
    if (keys.has("axis") || keys.has("device")) timeline.ruler = null;
    else if (keys.has("event")) actions.lengthen(timeline);
  });

  plot.addEventListener("dblclick", () => actions.fit(), { signal });
  plot.addEventListener(
    "wheel",
    (event) => {
      if (!event.altKey && !event.shiftKey) return;
      event.preventDefault();
      const y = timeline.fromY(event.offsetY);
      const { y0, y1 } = timeline.window();
      const factor = 2 ** ((event.deltaY || event.deltaX) * (event.deltaMode ? 0.05 : 0.002));
      context.store.set({ y: actions.heights([y - (y - y0) * factor, y + (y1 - y) * factor]) });
    },
    { passive: false, signal },
  );

  /** @type {{x: number, y: number, tool: string, moved: boolean}|null} */
  let pressed = null;
  const place = (/** @type {PointerEvent|MouseEvent} */ event) => {
    const box = plot.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  // under a pointer that rests the picture may change: by wheel, key or call
  timeline.onDrawn = () => {
    if (timeline.pointer && !pressed?.moved) actions.tell(timeline, timeline.pointer);
  };
  plot.addEventListener(
    "pointerdown",
    (event) => {
      if (event.button) return;
      const tool = toolOf(event);
      pressed = { ...place(event), tool, moved: false };
      if (tool !== "pan") plot.setPointerCapture(event.pointerId);
    },
    { signal },
  );
  plot.addEventListener(
    "pointermove",
    (event) => {
      const at = place(event);
      timeline.pointer = at;
      if (pressed && Math.hypot(at.x - pressed.x, at.y - pressed.y) > 4) pressed.moved = true;
      if (pressed?.moved && pressed.tool === "ruler") {
        timeline.ruler = {
          x0: timeline.fromX(pressed.x),
          y0: timeline.fromY(pressed.y),
          x1: timeline.fromX(at.x),
          y1: timeline.fromY(Math.min(at.y, timeline.size.plotHeight)),
        };
        actions.timed(timeline);
      } else if (pressed?.moved && (pressed.tool === "box" || pressed.tool === "range")) {
        timeline.ruler = null;
        timeline.drag = {
          x0: pressed.x,
          y0: pressed.y,
          x1: at.x,
          y1: Math.min(at.y, timeline.size.plotHeight),
          kind: pressed.tool,
        };
      }
      actions.hover(timeline, pressed?.moved ? null : at);
      timeline.again.ask();
    },
    { signal },
  );
  const finish = (/** @type {PointerEvent} */ event) => {
    if (!pressed) return;
    const { tool, moved } = pressed;
    pressed = null;
    const { drag } = timeline;
    timeline.drag = null;
    if (event.type === "pointerup" && !moved) actions.click(timeline, place(event));
    else if (event.type === "pointerup" && drag && tool === "box") actions.box(timeline, drag);
    else if (event.type === "pointerup" && drag && tool === "range") actions.brush(timeline, drag);
    else if (tool === "ruler") actions.measured(timeline);
    timeline.again.ask();
  };
  plot.addEventListener("pointerup", finish, { signal });
  plot.addEventListener("pointercancel", finish, { signal });
  plot.addEventListener(
    "pointerleave",
    () => {
      timeline.pointer = null;
      actions.hover(timeline, null);
      timeline.again.ask();
    },
    { signal },
  );
  timeline.element.addEventListener(
    "pointermove",
    (event) => {
      if (event.target === plot) return;
      const box = timeline.element.getBoundingClientRect();
      actions.band(timeline, event.clientX - box.left - ROOM.left, event.clientY - box.top);
    },
    { signal },
  );
  // a pointer that leaves quickly meets nothing between a band and the outside
  timeline.element.addEventListener("pointerleave", () => actions.hover(timeline, null), { signal });
  plot.addEventListener("keydown", (event) => keys(event, timeline, actions), { signal });
  return { follow };
}

/** @param {KeyboardEvent} event @param {import("./timeline.js").Timeline} timeline @param {import("../views/actions.js").Actions} actions */
function keys(event, timeline, actions) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const source = timeline.source;
  /** @type {Record<string, () => void>} */
  const known = {
    ArrowLeft: () => (event.shiftKey ? actions.pan(-0.15) : actions.step(-1, source)),
    ArrowRight: () => (event.shiftKey ? actions.pan(0.15) : actions.step(1, source)),
    PageUp: () => actions.pan(-0.9),
    PageDown: () => actions.pan(0.9),
    ArrowUp: () => actions.climb(1, source),
    ArrowDown: () => actions.climb(-1, source),
    "+": () => actions.zoomBy(1 / STEP, source),
    "=": () => actions.zoomBy(1 / STEP, source),
    "-": () => actions.zoomBy(STEP, source),
    "]": () => actions.zoomHeight(1 / STEP),
    "[": () => actions.zoomHeight(STEP),
    Home: () => actions.goTo(0, source),
    End: () => actions.goTo(Number.POSITIVE_INFINITY, source),
    0: () => actions.fit(),
    f: () => actions.fit(),
    p: () => actions.peak(source),
    o: () => actions.others(),
    r: () => actions.markRange(source),
    m: () => actions.anchor(timeline),
    b: () => actions.boxed(timeline),
    "/": () => actions.find(),
    "?": () => actions.help(),
    Escape: () => actions.clear(),
  };
  const act = known[event.key];
  if (!act) return;
  event.preventDefault();
  event.stopPropagation();
  act();
}
