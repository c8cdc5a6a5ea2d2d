// The stand-alone page: its data stand in the page itself, as base64.
import { mount } from "./mount.js";
import { bytesOf } from "../data/bytes.js";

const sources = [...document.querySelectorAll("script.ipygpumem-data")].map((holder) => ({
  name: /** @type {HTMLElement} */ (holder).dataset.name ?? "",
  bytes: bytesOf(holder.textContent ?? "").buffer,
}));
const place = /** @type {HTMLElement} */ (document.getElementById("ipygpumem"));
const theme = /** @type {"auto"|"light"|"dark"} */ (document.documentElement.dataset.theme ?? "auto");
const { api, show } = mount(place, sources, {
  host: "page",
  theme,
  state: location.hash.slice(1) || place.dataset.state,
  onState(state) {
    if (state !== location.hash.slice(1)) history.replaceState(null, "", `#${state}`);
  },
});
addEventListener("hashchange", () => show(location.hash.slice(1)));
/** @type {any} */ (window).ipygpumem = api;
