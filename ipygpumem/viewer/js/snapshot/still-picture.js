// The still picture stands above the viewer in an output of its own. The viewer hides it for as long as it works.

const AREA = ".jp-OutputArea, .output_wrapper";
const OUTPUT = ".jp-OutputArea-child, .output_area, .output";
const PATIENCE = 50;

/**
 * @param {HTMLElement} el the widget's own element
 * @param {AbortSignal} signal
 */
export function still(el, signal) {
  /** @type {HTMLElement[]} */
  let hidden = [];

  /** @param {string} end */
  function find(end) {
    const area = el.closest(AREA) ?? document;
    const before = [...area.querySelectorAll("img")].filter(
      (one) =>
        one.src.trim().endsWith(end) &&
        one.compareDocumentPosition(el) & Node.DOCUMENT_POSITION_FOLLOWING &&
        !hidden.some((output) => output.contains(one)),
    );
    return before.at(-1);
  }

  /** @param {string[]} ends the last letters of each picture */
  function hide(ends, tries = PATIENCE) {
    if (signal.aborted) return;
    if (!el.isConnected) {
      // Some hosts put the element into the page after it has been drawn into
      if (tries) setTimeout(hide, 100, ends, tries - 1);
      return;
    }
    for (const end of ends) {
      const picture = find(end);
      const output = /** @type {HTMLElement | null} */ (picture?.closest(OUTPUT) ?? picture);
      if (!output || output.contains(el)) continue;
      output.style.display = "none";
      hidden.push(output);
    }
  }

  function show() {
    for (const output of hidden) output.style.display = "";
    hidden = [];
  }

  return { hide, show };
}
