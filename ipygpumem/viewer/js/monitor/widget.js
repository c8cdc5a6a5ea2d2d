// The monitor in a notebook, an anywidget: the loader fetches this script and calls render.
import { connect } from "../kernel/messages.js";
import { History } from "./history.js";
import { Panel } from "./panel.js";

const HEARTBEAT_MS = 5000;

/** @param {{model: import("../kernel/messages.js").Model, el: HTMLElement}} context */
function render({ model, el }) {
  const stop = new AbortController();
  const view = Math.random().toString(36).slice(2);
  const element = document.createElement("div");
  el.append(element);
  const history = new History();
  const panel = new Panel(element, history, stop.signal);
  const { request } = connect(model, stop.signal, () => {});

  /** @param {any} content */
  const onMessage = (content) => {
    if (!content?.now) return;
    history.add(content.now);
    panel.update();
  };
  const onClose = () => panel.close("the monitor was closed: run %gpumem monitor to open it again");
  const heartbeat = () => model.send({ visible: view });
  const leave = () => model.send({ closed: view });
  /** @type {[string, (...values: any[]) => void][]} */
  const listeners = [
    ["msg:custom", onMessage],
    ["comm:close", onClose],
    ["destroy", onClose],
  ];
  for (const [name, listener] of listeners) model.on(name, listener);
  const timer = setInterval(heartbeat, HEARTBEAT_MS);
  globalThis.addEventListener("pagehide", leave, { signal: stop.signal });
  stop.signal.addEventListener("abort", () => {
    clearInterval(timer);
    for (const [name, listener] of listeners) model.off(name, listener);
  });
  heartbeat();
  request({ get: "history" }).then(
    ({ content }) => {
      if (stop.signal.aborted) return;
      history.prepend(content);
      panel.update();
    },
    () => {}, // new readings arrive nevertheless
  );
  /** @type {any} */ (el).ipygpumemMonitor = { history, panel };
  return () => {
    leave();
    stop.abort();
    element.remove();
  };
}

export default { render };
