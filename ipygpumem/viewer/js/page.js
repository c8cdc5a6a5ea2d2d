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
const { api } = mount(/** @type {HTMLElement} */ (document.getElementById("ipygpumem")), sources, { host: "page" });
/** @type {any} */ (window).ipygpumem = api;
