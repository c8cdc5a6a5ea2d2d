// The snapshot viewer in a notebook, an anywidget: the loader fetches this script and calls render.
import { connect, statusLine } from "../kernel/messages.js";
import { mount } from "./mount.js";
import { staticImage } from "./static-image.js";

const SAVE_DELAY_MS = 300;

/** @param {{model: import("../kernel/messages.js").Model, el: HTMLElement}} context */
function render({ model, el }) {
  const stop = new AbortController();
  const status = statusLine(el);
  const { request, bytes } = connect(model, stop.signal, status.showWaiting);
  const image = staticImage(el, stop.signal);
  /** @type {(() => void) | undefined} */
  let destroy;

  async function open() {
    const { names, images } = (await request({ get: "about" })).content;
    const sources = [];
    for (const [number, name] of names.entries()) sources.push({ name, bytes: await bytes(String(number)) });
    if (stop.signal.aborted) return;
    const element = document.createElement("div");
    el.append(element);
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    const viewer = mount(element, sources, {
      host: "widget",
      theme: "auto",
      state: model.get("state"),
      onState(state) {
        clearTimeout(timer);
        timer = setTimeout(() => save(state), SAVE_DELAY_MS);
      },
    });
    destroy = () => {
      clearTimeout(timer);
      viewer.destroy();
    };
    /** @type {any} */ (el).ipygpumem = viewer.api;
    // If the viewer fails, it shows the reason itself, and the image stays
    await viewer.api.view().then(
      () => image.hide(images),
      () => {},
    );
  }

  /** @param {string} state */
  function save(state) {
    if (stop.signal.aborted) return;
    model.set("state", state);
    model.save_changes();
  }

  open().catch((error) => {
    if (!stop.signal.aborted) status.showError(error);
  });
  return () => {
    stop.abort();
    image.show();
    destroy?.();
  };
}

export default { render };
