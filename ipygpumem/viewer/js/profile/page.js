// The stand-alone page of a profile's memory by category. Its data are embedded in the page as base64.
import { embeddedSources } from "../data/bytes.js";
import { decode } from "../data/decode.js";
import { h } from "../ui/dom.js";
import theme from "../ui/theme.css";
import { DeviceTimeline } from "./model.js";
import css from "./style.css";
import { ProfileView } from "./view.js";

const root = /** @type {HTMLElement} */ (document.getElementById("ipygpumem"));
root.className = "viewer";
document.head.append(h("style", {}, theme, css));

async function open() {
  const [{ name, bytes }] = embeddedSources();
  const { header, column } = await decode(bytes);
  const devices = header.devices.map(
    (/** @type {import("./model.js").DeviceFacts} */ facts, /** @type {number} */ number) =>
      new DeviceTimeline(facts, (field) => column(`${number}/${field}`)),
  );
  const setting = /** @type {"auto"|"light"|"dark"} */ (document.documentElement.dataset.theme ?? "auto");
  const view = new ProfileView(root, { name, notes: header.notes, devices, theme: setting });
  // Before the first click nothing on the page has the focus
  document.addEventListener("keydown", (event) => {
    if (event.key === "?" && event.target === document.body) view.help.show();
  });
  /** @type {any} */ (window).ipygpumem = view;
}

open().catch((error) =>
  root.replaceChildren(h("p", { class: "note" }, `The profile cannot be shown: ${error.message}`)),
);
