// The monitor in a notebook: an anywidget. The loader brings it here and calls render.
import { desk } from "../kernel/messages.js";
import { Course } from "./history.js";
import { Panel } from "./panel.js";

const HERE = 5000;

/** @param {{model: import("../kernel/messages.js").Model, el: HTMLElement}} context */
function render({ model, el }) {
  const stop = new AbortController();
  const view = Math.random().toString(36).slice(2);
  const place = document.createElement("div");
  el.append(place);
  const course = new Course();
  const panel = new Panel(place, course, stop.signal);
  const { ask } = desk(model, stop.signal, () => {});
  /** @param {any} content */
  const heard = (content) => {
    if (!content?.now) return;
    course.add(content.now);
    panel.news();
  };
  const gone = () => panel.end("closed: %gpumem monitor opens it again");
  model.on("msg:custom", heard);
  model.on("comm:close", gone);
  model.on("destroy", gone);
  const here = () => model.send({ here: view });
  const telling = setInterval(here, HERE);
  const bye = () => model.send({ bye: view });
  globalThis.addEventListener("pagehide", bye, { signal: stop.signal });
  stop.signal.addEventListener("abort", () => {
    clearInterval(telling);
    model.off("msg:custom", heard);
    model.off("comm:close", gone);
    model.off("destroy", gone);
  });
  here();
  ask({ get: "past" }).then(
    ({ content }) => {
      if (stop.signal.aborted) return;
      course.fill(content);
      panel.news();
    },
    () => {},
  );
  /** @type {any} */ (el).ipygpumemMonitor = { course, panel };
  return () => {
    bye();
    stop.abort();
    place.remove();
  };
}

export default { render };
