/** A call stack as a list: the user's own code is visible, and the library code in between is folded. */

import { plural } from "../../data/units.js";
import { linkButton } from "../../ui/controls.js";
import { h } from "../../ui/dom.js";

const NO_STACK =
  "No stack was recorded: the allocation is older than the recording, or was made without Python, for example in a backward pass.";
const BATCH = 40; // lines that are shown at a time
const MAX_FOLDED = 500;
const MAX_PERIOD = 6; // calls in a repeated pattern
const MIN_REPEATS = 3;

/** @param {any[]} stack */
export function stackList(stack) {
  if (!stack.length) return h("p", { class: "soft" }, NO_STACK);
  const items = stackItems(foldRepeats(stack));
  const list = h("ol", { class: "stack", tabindex: 0, aria: { label: "Stack" } });
  const more = linkButton("", () => showMore());
  const last = h("li", {}, more);
  const showMore = () => {
    list.append(...items.splice(0, BATCH).map((create) => create()));
    more.textContent = `${items.length} more`;
    if (items.length) list.append(last);
    else last.remove();
  };
  showMore();
  return list;
}

/** @param {any} frame */
function frameItem({ own, title, name, place, source }) {
  return h(
    "li",
    { class: own ? "own" : "", title },
    h("span", { class: "name" }, name || "?"),
    h("span", { class: "place" }, place),
    source && h("code", {}, source),
  );
}

/** Functions that create the items of a list. @param {any[]} frames @returns {(() => HTMLElement)[]} */
function stackItems(frames) {
  const items = [];
  for (let i = 0; i < frames.length; ) {
    const { own, repeated, times } = frames[i];
    if (repeated) items.push(() => h("li", { class: "soft" }, `↑ ${plural(repeated, "frame")}, ${times} more times`));
    if (own) items.push(frameItem.bind(null, frames[i]));
    if (own || repeated) {
      i++;
      continue;
    }
    let end = i;
    while (end < frames.length && !frames[end].own && !frames[end].repeated) end++;
    const folded = frames.slice(i, end);
    items.push(() => (folded.length === 1 && frames.length <= 4 ? frameItem(folded[0]) : foldedItem(folded)));
    i = end;
  }
  return items;
}

/** @param {any[]} frames */
function foldedItem(frames) {
  const libraries = [...new Set(frames.map(({ library }) => library))].slice(0, 2).join(", ");
  const inner = h("ol", { class: "stack" });
  const details = h("details", {}, h("summary", {}, `${plural(frames.length, "frame")} in ${libraries}`), inner);
  details.addEventListener("toggle", () => {
    if (!inner.childElementCount) inner.append(...frames.slice(0, MAX_FOLDED).map(frameItem));
  });
  return h("li", {}, details);
}

/** Replace repeated calls, as in a recursion, with one copy and the number of repeats. @param {any[]} stack */
function foldRepeats(stack) {
  const names = stack.map(({ title, name }) => `${title} ${name}`);
  /** @type {any[]} */
  const frames = [];
  for (let i = 0; i < stack.length; ) {
    let length = 1;
    let times = 1;
    for (let period = 1; period <= MAX_PERIOD && times < MIN_REPEATS; period++) {
      let end = i + period;
      while (end < stack.length && names[end] === names[end - period]) end++;
      length = period;
      times = Math.floor((end - i) / period);
    }
    if (times < MIN_REPEATS) {
      frames.push(stack[i++]);
    } else {
      frames.push(...stack.slice(i, i + length), { repeated: length, times: times - 1 });
      i += length * times;
    }
  }
  return frames;
}
