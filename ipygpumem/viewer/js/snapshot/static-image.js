// The static image that the kernel publishes above the viewer, in a separate output. It is hidden while the viewer works.

const AREA = ".jp-OutputArea, .output_wrapper";
const OUTPUT = ".jp-OutputArea-child, .output_area, .output";
const MAX_TRIES = 50;
const RETRY_MS = 100;

/**
 * @param {HTMLElement} el the element of the widget
 * @param {AbortSignal} signal
 */
export function staticImage(el, signal) {
  /** @type {HTMLElement[]} */
  let hidden = [];

  /** The last image before the widget whose data ends with a suffix. @param {string} suffix */
  function find(suffix) {
    const area = el.closest(AREA) ?? document;
    return [...area.querySelectorAll("img")].findLast(
      (image) =>
        image.src.trim().endsWith(suffix) &&
        image.compareDocumentPosition(el) & Node.DOCUMENT_POSITION_FOLLOWING &&
        !hidden.some((output) => output.contains(image)),
    );
  }

  /** @param {string[]} suffixes the end of each image's data */
  function hide(suffixes, tries = MAX_TRIES) {
    if (signal.aborted) return;
    if (!el.isConnected) {
      // Some hosts insert the element into the page only after it has been rendered
      if (tries) setTimeout(hide, RETRY_MS, suffixes, tries - 1);
      return;
    }
    for (const suffix of suffixes) {
      const image = find(suffix);
      const output = /** @type {HTMLElement | null} */ (image?.closest(OUTPUT) ?? image);
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
