/** Keys and gestures, and how the picture is to be read. */

import { h } from "../ui/dom.js";

const WORDS = [
  "Each column of pixels shows the instant at which most was allocated inside it, so no peak is ever lost. Zoom in, and every change appears.",
  "Categories are told from how operators use a tensor, as torch's profiler saw it. What was allocated before the profile counts from the beginning, if something used it; what nothing used is not seen. PyTorch's own count has it.",
  "A profile sees the operators of the thread that it began in, and of autograd's threads. What other threads allocated is not in the picture.",
];
const KEYS = [
  ["wheel, + −", "zoom"],
  ["drag, Shift ← →, Page Up, Page Down", "pan"],
  ["click", "put the cursor there, or take it away"],
  ["← →", "change before, change after, of what is shown"],
  ["Home, End", "beginning, end"],
  ["P", "to the peak"],
  ["0 or F, double click", "see all of it"],
  ["A", "by time, by change"],
  ["1 to 8", "show or hide a category"],
  ["Esc", "take the cursor away"],
];

export class Help {
  constructor() {
    this.element = h(
      "dialog",
      { aria: { label: "Keys and gestures" } },
      h("h2", {}, "Reading the picture"),
      ...WORDS.map((text) => h("p", {}, text)),
      h("dl", {}, ...KEYS.flatMap(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
      h("button", { type: "button", on: { click: () => this.element.close() } }, "Close"),
    );
  }

  show() {
    if (!this.element.open) this.element.showModal();
  }
}
