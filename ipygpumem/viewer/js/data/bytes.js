/** Embedded data: base64 text, and zlib streams. */

import { ViewerError } from "./errors.js";

/** @param {string} text base64 */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** The encoded data of a stand-alone page, with the name of each source. */
export function embeddedSources() {
  return [...document.querySelectorAll("script.ipygpumem-data")].map((script) => ({
    name: /** @type {HTMLElement} */ (script).dataset.name ?? "",
    bytes: fromBase64(script.textContent ?? "").buffer,
  }));
}

/**
 * Decompress a zlib stream.
 * @param {Uint8Array<ArrayBuffer>} compressed
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function inflate(compressed) {
  if (typeof DecompressionStream === "undefined") {
    throw new ViewerError(
      "This browser cannot decompress the data because it has no DecompressionStream. Use Chrome 80, Firefox 113, Safari 16.4 or later.",
    );
  }
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("deflate"));
  try {
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new ViewerError("The data in this page is damaged and cannot be decompressed. Create the page again.");
  }
}
