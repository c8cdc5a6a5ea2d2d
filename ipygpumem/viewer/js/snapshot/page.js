// The stand-alone page of snapshots. Their data are embedded in the page as base64.
import { embeddedSources } from "../data/bytes.js";
import { mount } from "./mount.js";

const element = /** @type {HTMLElement} */ (document.getElementById("ipygpumem"));
const theme = /** @type {"auto"|"light"|"dark"} */ (document.documentElement.dataset.theme ?? "auto");
const { api, show } = mount(element, embeddedSources(), {
  host: "page",
  theme,
  state: location.hash.slice(1),
  onState(state) {
    if (state !== location.hash.slice(1)) history.replaceState(null, "", `#${state}`);
  },
});
addEventListener("hashchange", () => show(location.hash.slice(1)));
/** @type {any} */ (window).ipygpumem = api;
