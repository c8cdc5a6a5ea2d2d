/** Creates a viewer in an element, with its own state, styles and worker. */

import { ViewerError } from "../data/errors.js";
import { h } from "../ui/dom.js";
import theme from "../ui/theme.css";
import { api } from "./api.js";
import { connect } from "./client.js";
import style from "./style.css";
import { Viewer } from "./viewer.js";

/**
 * @param {HTMLElement} element
 * @param {{name: string, bytes: ArrayBuffer}[]} sources one snapshot, or several side by side
 * @param {import("./viewer.js").Options} options
 */
export function mount(element, sources, options) {
  performance.mark("ipygpumem:start");
  const shadow = element.shadowRoot ?? element.attachShadow({ mode: "open" });
  const root = h("div", { class: "viewer", data: { host: options.host } });
  const loading = h("p", { class: "wait", role: "status" }, "Reading the snapshot …");
  root.append(loading);
  shadow.replaceChildren(h("style", {}, theme, style), root);
  let destroyed = false;
  /** @type {Viewer|undefined} */
  let viewer;

  const opened = open();
  opened.catch((error) => {
    const expected = error instanceof ViewerError;
    const text = expected ? error.message : `The snapshot cannot be shown: ${error?.message ?? error}`;
    loading.remove();
    root.append(h("p", { class: "failed", role: "alert" }, text));
    if (!expected) console.error(error);
  });

  async function open() {
    if (!h("canvas").getContext("2d"))
      throw new ViewerError("The viewer needs a 2D canvas, which this browser does not provide to the page.");
    const client = await connect();
    performance.mark("ipygpumem:engine");
    const all = [];
    for (const { name, bytes } of sources) all.push(await client.request("open", { name, bytes }));
    const files = uniqueNames(all.filter((file) => file.devices.length));
    const empty = all.filter((file) => !file.devices.length).map((file) => file.name);
    if (destroyed || !files.length) {
      client.close();
      throw new ViewerError(
        destroyed
          ? "The viewer was closed."
          : "This snapshot contains no data for any device: no events were recorded and no segments were reserved.",
      );
    }
    performance.mark("ipygpumem:read");
    loading.remove();
    viewer = new Viewer(root, client, files, options);
    if (empty.length)
      viewer.showError(new ViewerError(`Not shown, because nothing was recorded on any device: ${empty.join(", ")}`));
    return viewer;
  }

  return {
    api: api(() => opened),
    /** Show the view that a text describes, as `onState` received it. @param {string} state */
    show(state) {
      opened.then(
        (current) => current.show(state),
        () => {},
      );
    },
    destroy() {
      destroyed = true;
      viewer?.destroy();
      shadow.replaceChildren();
    },
  };
}

/**
 * Number the names of files if there are many, or if two have the same name.
 * @param {import("./engine/overview.js").Overview[]} files
 */
function uniqueNames(files) {
  const repeated = new Set(files.map((file) => file.name)).size < files.length;
  if (!repeated && files.length <= 2) return files;
  return files.map((file, source) => ({ ...file, name: `${source + 1} · ${file.name}` }));
}
