/** Keys and gestures. */

import { h } from "../../ui/dom.js";

const KEYS = [
  ["Pointer", ""],
  ["wheel", "zoom at the pointer"],
  ["Alt and wheel", "zoom the bytes at the pointer"],
  ["drag", "pan"],
  ["Shift and drag", "choose a range of events"],
  ["Alt and drag", "ruler: time and bytes between two points"],
  ["Ctrl and drag", "zoom into a box"],
  ["double click", "see all of it"],
  ["Keys, with the timeline in focus", ""],
  ["← →", "event before, event after"],
  ["↑ ↓", "allocation above, allocation below"],
  ["Shift ← →, Page Up, Page Down", "pan"],
  ["+ −", "zoom"],
  ["] [", "zoom the bytes"],
  ["Home, End", "first event, last event"],
  ["0 or F", "see all of it"],
  ["P", "to the peak"],
  ["O", "find the others from the line of the selected allocation"],
  ["R", "what is in view becomes the range"],
  ["M", "ruler from the cursor to where the arrow keys take it"],
  ["B", "zoom into the box of the ruler"],
  ["/", "search"],
  ["Esc", "clear cursor, range and marks"],
];
const WORDS = [
  "Each column of pixels shows the instant at which the most was allocated inside it, so no peak is ever lost.",
  "Allocations lower than a pixel are summed up in the paler tone of the class that has most of their bytes; those made and freed inside one column are counted in the strip “brief”. Zoom in, and all of them appear.",
  "Bytes are requested bytes. Reserved bytes are those of all segments.",
];

export class Help {
  constructor() {
    const close = h("button", { type: "button", on: { click: () => this.element.close() } }, "Close");
    this.element = h(
      "dialog",
      { class: "help", aria: { label: "Keys and gestures" } },
      h("h2", {}, "Reading the picture"),
      ...WORDS.map((text) => h("p", {}, text)),
      h(
        "dl",
        {},
        ...KEYS.flatMap(([key, text]) =>
          text ? [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)] : [h("dt", { class: "part" }, key), h("dd", {})],
        ),
      ),
      close,
    );
  }

  show() {
    if (!this.element.open) this.element.showModal();
  }
}
