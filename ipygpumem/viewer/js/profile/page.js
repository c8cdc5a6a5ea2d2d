// The stand-alone page of a profile's memory by category: its data stand in the page itself, as base64.
import { decode } from "../data/decode.js";
import { h } from "../ui/dom.js";
import css from "./style.css";
import theme from "../ui/theme.css";
import { Device } from "./model.js";
import { View } from "./view.js";

const place = /** @type {HTMLElement} */ (document.getElementById("ipygpumem"));
place.className = "viewer";
document.head.append(h("style", {}, theme, css));

async function begin() {
  const holder = /** @type {HTMLElement} */ (document.querySelector("script.ipygpumem-data"));
  const bytes = Uint8Array.from(atob(holder.textContent ?? ""), (letter) => letter.charCodeAt(0));
  const { header, column } = await decode(bytes.buffer);
  const devices = header.devices.map(
    (/** @type {import("./model.js").DeviceFacts} */ facts, /** @type {number} */ number) =>
      new Device(facts, (name) => column(`${number}/${name}`)),
  );
  const theme = /** @type {"auto"|"light"|"dark"} */ (document.documentElement.dataset.theme ?? "auto");
  const view = new View(place, { name: holder.dataset.name ?? "", notes: header.notes, devices, theme });
  // on a page that was just opened nothing has the focus yet
  document.addEventListener("keydown", (event) => {
    if (event.key === "?" && event.target === document.body) view.help();
  });
  /** @type {any} */ (window).ipygpumem = view;
}

begin().catch((error) => place.replaceChildren(h("p", { class: "note" }, `Nothing can be shown: ${error.message}`)));
