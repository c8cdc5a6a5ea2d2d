// The stand-alone page: its data stand in the page itself, as base64.
import { mount } from "./main.js";

/** @param {string} text */
function bytes(text) {
  const letters = atob(text);
  const found = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) found[i] = letters.charCodeAt(i);
  return found.buffer;
}

const sources = [...document.querySelectorAll("script.ipygpumem-data")].map((holder) => ({
  name: /** @type {HTMLElement} */ (holder).dataset.name ?? "",
  bytes: bytes(holder.textContent ?? ""),
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
