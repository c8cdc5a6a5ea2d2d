/** The menu of exports. */

import { button } from "../../ui/controls.js";
import { h, listen } from "../../ui/dom.js";

const MIN_LEFT = 180; // pixels from the left, below which the menu opens to the right

/** @param {import("./export.js").Exporter} exporter @param {boolean} linkable whether the view has an address */
export function exportMenu(exporter, linkable) {
  const menu = h(
    "details",
    { class: "menu" },
    h("summary", {}, "Export"),
    h(
      "div",
      { class: "sheet" },
      button("Image as PNG", () => exporter.png(), { title: "The timeline as on the screen" }),
      button("Image as SVG", () => exporter.svg(), { title: "The timeline with scalable text and lines" }),
      button("Table as CSV", () => exporter.csv(), { title: "The table below the timeline" }),
      linkable &&
        button("Copy link to this view", () => exporter.link(), { title: "The address of this page and its view" }),
    ),
  );
  listen(menu, {
    click: (event) => {
      if (event.target.tagName === "BUTTON") menu.open = false;
    },
    keydown: (event) => {
      if (event.key !== "Escape" || !menu.open) return;
      menu.open = false;
      menu.querySelector("summary")?.focus();
    },
    toggle: () => menu.classList.toggle("first", menu.offsetLeft < MIN_LEFT),
    focusout: (event) => {
      if (!menu.contains(event.relatedTarget)) menu.open = false;
    },
  });
  return menu;
}
