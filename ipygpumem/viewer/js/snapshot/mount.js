/** The door to the viewer. One mount is one viewer: all of its state, its styles and its thread are its own. */

import { api } from "./api.js";
import { connect } from "./client.js";
import { ViewerError } from "../data/errors.js";
import style from "./style.css";
import theme from "../ui/theme.css";
import { h } from "../ui/dom.js";
import { Viewer } from "./viewer.js";

/**
 * @param {HTMLElement} element
 * @param {{name: string, bytes: ArrayBuffer}[]} sources one, or several side by side
 * @param {import("./viewer.js").Options} options
 */
export function mount(element, sources, options) {
  performance.mark("ipygpumem:start");
  const shadow = element.shadowRoot ?? element.attachShadow({ mode: "open" });
  const root = h("div", { class: "viewer", data: { host: options.host } });
  const wait = h("p", { class: "wait", role: "status" }, "Reading the snapshot …");
  root.append(wait);
  shadow.replaceChildren(h("style", {}, theme, style), root);
  let gone = false;
  /** @type {Viewer|undefined} */
  let viewer;

  const opened = open();
  opened.catch((problem) => {
    wait.remove();
    const known = problem instanceof ViewerError;
    root.append(
      h(
        "p",
        { class: "failed", role: "alert" },
        known ? problem.message : `The viewer could not draw this snapshot: ${problem?.message ?? problem}`,
      ),
    );
    if (!known) console.error(problem);
  });

  async function open() {
    if (!h("canvas").getContext("2d"))
      throw new ViewerError("This browser gives the page no canvas to draw on (2d): the viewer can show nothing here.");
    const client = await connect();
    performance.mark("ipygpumem:engine");
    const all = [];
    for (const { name, bytes } of sources) all.push(await client.request("open", { name, bytes }));
    const files = told(all.filter((file) => file.devices.length));
    const bare = all.filter((file) => !file.devices.length).map((file) => file.name);
    if (gone) {
      client.close();
      throw new ViewerError("The viewer was closed.");
    }
    if (!files.length) {
      client.close();
      throw new ViewerError("This snapshot holds no device: nothing was recorded and no segment was reserved.");
    }
    performance.mark("ipygpumem:read");
    wait.remove();
    viewer = new Viewer(root, client, files, options);
    if (bare.length)
      viewer.failed(new ViewerError(`Not shown, for nothing was recorded on any device: ${bare.join(", ")}`));
    return viewer;
  }

  return {
    api: api(() => opened),
    /** Show the view that a text describes, as `onState` gave it. @param {string} state */
    show(state) {
      opened.then(
        (one) => one.show(state),
        () => {},
      );
    },
    destroy() {
      gone = true;
      viewer?.destroy();
      shadow.replaceChildren();
    },
  };
}

/**
 * Files by a name that tells them apart: with their number where there are many, or two are called alike.
 * @param {import("./engine/overview.js").Overview[]} files
 */
function told(files) {
  const alike = new Set(files.map((file) => file.name)).size < files.length;
  return files.map((file, source) => ({
    ...file,
    name: alike || files.length > 2 ? `${source + 1} · ${file.name}` : file.name,
  }));
}
