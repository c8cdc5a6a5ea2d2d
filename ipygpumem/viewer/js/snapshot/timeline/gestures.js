/** Wheel, drag, click and keys of a timeline. */

import { handleKey, listen } from "../../ui/dom.js";
import { horizontalZoom, scaleRange, shiftRange } from "../../ui/zoom.js";
import { MINIMUM, ZOOM_STEP } from "../views/actions.js";
import { MARGIN } from "./timeline.js";

const DRAG_DISTANCE = 4; // pixels that turn a click into a drag

/** @typedef {import("./timeline.js").Timeline} Timeline @typedef {import("../views/actions.js").Actions} Actions */

/** @param {Timeline} timeline @param {Actions} actions */
export function addGestures(timeline, actions) {
  const { context, plot } = timeline;
  const { signal } = context.stop;
  addZoom(timeline, actions);
  const pointerleave = () => {
    timeline.pointer = null;
    actions.hover(timeline, null);
    timeline.schedule.request();
  };
  const pointermove = (/** @type {PointerEvent} */ event) => {
    if (event.target === plot) return;
    const box = timeline.element.getBoundingClientRect();
    actions.hoverBand(timeline, event.clientX - box.left - MARGIN.left, event.clientY - box.top);
  };
  // A fast pointer may leave from a band without entering the plot
  listen(timeline.element, { pointerleave, pointermove }, { signal });
  const move = actions.viewKeys(() => timeline.source);
  const keys = { ...move, ...keyActions(timeline, actions) };
  const keydown = (/** @type {KeyboardEvent} */ event) =>
    handleKey(event, event.shiftKey ? { ...keys, ...move } : keys);
  const dblclick = () => actions.fit();
  listen(plot, { ...dragListeners(timeline, actions), pointerleave, dblclick, keydown }, { signal });
}

/** @param {Timeline} timeline @param {Actions} actions */
function addZoom(timeline, actions) {
  const { context, plot } = timeline;
  const follow = horizontalZoom(plot, {
    domain: () => context.domain(),
    view: () => context.now.x ?? context.domain(),
    width: () => timeline.size.plotWidth,
    minimum: () => MINIMUM[context.axis()],
    filter: (event) => (event.type === "wheel" ? !event.altKey && !event.shiftKey : toolOf(event, context) === "pan"),
    onChange: (view, source) => {
      /** @type {Partial<import("../store.js").Shown>} */
      const patch = { x: actions.clampView(view) };
      if (context.now.y && source?.type === "mousemove" && source.movementY)
        patch.y = actions.clampBytes(shiftRange(context.now.y, source.movementY / timeline.size.plotHeight));
      context.store.set(patch);
    },
  });
  context.store.listen((keys) => {
    if (keys.has("x") || keys.has("axis") || keys.has("device")) follow();
    if (keys.has("axis") || keys.has("device")) timeline.ruler = null;
    else if (keys.has("event")) actions.ruler.extend(timeline);
  });
  timeline.onResized = follow;
  plot.addEventListener(
    "wheel",
    (event) => {
      if (!event.altKey && !event.shiftKey) return;
      event.preventDefault();
      const { y0, y1 } = timeline.window();
      const factor = 2 ** ((event.deltaY || event.deltaX) * (event.deltaMode ? 0.05 : 0.002));
      context.store.set({ y: actions.clampBytes(scaleRange([y0, y1], factor, timeline.fromY(event.offsetY))) });
    },
    { passive: false, signal: context.stop.signal },
  );
}

/** The tool of a drag: a modifier key overrides the toolbar. @param {MouseEvent} event @param {import("../context.js").Context} context */
function toolOf(event, context) {
  if (event.shiftKey) return "range";
  if (event.altKey) return "ruler";
  return event.ctrlKey || event.metaKey ? "box" : context.now.tool;
}

/** @param {Timeline} timeline @param {Actions} actions */
function dragListeners(timeline, actions) {
  const { context, plot } = timeline;
  /** @type {{x: number, y: number, tool: string, moved: boolean}|null} */
  let pressed = null;
  const position = (/** @type {MouseEvent} */ event) => {
    const box = plot.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  // The picture may change below a pointer that does not move
  timeline.onDrawn = () => {
    if (timeline.pointer && !pressed?.moved) actions.showTooltip(timeline, timeline.pointer);
  };
  const finish = (/** @type {PointerEvent} */ event) => {
    if (!pressed) return;
    const { tool, moved } = pressed;
    const { drag } = timeline;
    pressed = null;
    timeline.drag = null;
    if (event.type === "pointerup" && !moved) actions.click(timeline, position(event));
    else if (event.type === "pointerup" && drag?.kind === "box") actions.zoomToBox(timeline, drag);
    else if (event.type === "pointerup" && drag) actions.selectRange(timeline, drag);
    else if (tool === "ruler") actions.ruler.announce(timeline);
    timeline.schedule.request();
  };
  return {
    /** @param {PointerEvent} event */
    pointerdown(event) {
      if (event.button) return;
      const tool = toolOf(event, context);
      pressed = { ...position(event), tool, moved: false };
      if (tool !== "pan") plot.setPointerCapture(event.pointerId);
    },
    /** @param {PointerEvent} event */
    pointermove(event) {
      const { x, y } = position(event);
      timeline.pointer = { x, y };
      if (pressed && Math.hypot(x - pressed.x, y - pressed.y) > DRAG_DISTANCE) pressed.moved = true;
      if (pressed?.moved && pressed.tool !== "pan") {
        const bottom = Math.min(y, timeline.size.plotHeight);
        const { x: x0, y: y0, tool } = pressed;
        if (tool === "ruler") {
          const [from, to] = [x0, x].map((pixel) => timeline.fromX(pixel));
          timeline.ruler = { x0: from, y0: timeline.fromY(y0), x1: to, y1: timeline.fromY(bottom) };
          actions.ruler.addTime(timeline);
        } else {
          timeline.ruler = null;
          timeline.drag = { x0, y0, x1: x, y1: bottom, kind: /** @type {"box"|"range"} */ (tool) };
        }
      }
      actions.hover(timeline, pressed?.moved ? null : timeline.pointer);
      timeline.schedule.request();
    },
    pointerup: finish,
    pointercancel: finish,
  };
}

/** @param {Timeline} timeline @param {Actions} actions @returns {Record<string, () => void>} */
function keyActions(timeline, actions) {
  const { source } = timeline;
  return {
    ArrowLeft: () => actions.step(-1, source),
    ArrowRight: () => actions.step(1, source),
    ArrowUp: () => actions.selectAdjacent(1, source),
    ArrowDown: () => actions.selectAdjacent(-1, source),
    "]": () => actions.zoomBytes(1 / ZOOM_STEP),
    "[": () => actions.zoomBytes(ZOOM_STEP),
    Home: () => actions.goTo(0, source),
    End: () => actions.goTo(Number.POSITIVE_INFINITY, source),
    f: () => actions.fit(),
    p: () => actions.peak(source),
    o: () => actions.markLine(),
    r: () => actions.rangeFromView(source),
    m: () => actions.ruler.start(timeline),
    b: () => actions.ruler.zoom(timeline),
    "/": () => actions.focusSearch(),
    "?": () => actions.showHelp(),
    Escape: () => actions.clear(),
  };
}
