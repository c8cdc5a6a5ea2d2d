// The viewer in a notebook: an anywidget. The loader brings it here and calls render.
import { desk, notice, WAITING } from "../kernel/messages.js";
import { mount } from "./mount.js";
import { still } from "./still-picture.js";

const SETTLED = 300;

/** @param {{model: import("../kernel/messages.js").Model, el: HTMLElement}} context */
function render({ model, el }) {
  const stop = new AbortController();
  const line = notice(el);
  const { ask, bytes } = desk(model, stop.signal, (waits) => line.say(waits ? WAITING : ""));
  const picture = still(el, stop.signal);
  /** @type {(() => void) | undefined} */
  let destroy;

  async function open() {
    const { names, stills } = (await ask({ get: "about" })).content;
    const sources = [];
    for (const [number, name] of names.entries()) sources.push({ name, bytes: await bytes(String(number)) });
    if (stop.signal.aborted) return;
    const place = document.createElement("div");
    el.append(place);
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let late;
    const viewer = mount(place, sources, {
      host: "widget",
      theme: "auto",
      state: model.get("state"),
      onState(state) {
        clearTimeout(late);
        late = setTimeout(() => keep(state), SETTLED);
      },
    });
    destroy = () => {
      clearTimeout(late);
      viewer.destroy();
    };
    /** @type {any} */ (el).ipygpumem = viewer.api;
    // What cannot be drawn says so itself, below the picture
    await viewer.api.view().then(
      () => picture.hide(stills),
      () => {},
    );
  }

  /** @param {string} state */
  function keep(state) {
    if (stop.signal.aborted) return;
    model.set("state", state);
    model.save_changes();
  }

  open().catch((error) => {
    if (!stop.signal.aborted) line.say(`ipygpumem: no viewer here: ${error.message}`);
  });
  return () => {
    stop.abort();
    picture.show();
    destroy?.();
  };
}

export default { render };
