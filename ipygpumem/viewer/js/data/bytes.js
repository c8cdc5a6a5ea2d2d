/** Bytes as they travel: in base64, or packed with zlib. */

import { ViewerError } from "./errors.js";

/** @param {string} text base64 */
export function bytesOf(text) {
  const letters = atob(text);
  const found = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) found[i] = letters.charCodeAt(i);
  return found;
}

/**
 * Unpack a zlib stream.
 * @param {Uint8Array<ArrayBuffer>} packed
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function inflate(packed) {
  if (typeof DecompressionStream === "undefined") {
    throw new ViewerError(
      "This browser cannot unpack the data (it has no DecompressionStream): Chrome 80, Firefox 113 or Safari 16.4 can.",
    );
  }
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  try {
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new ViewerError("The data of this snapshot are damaged: they cannot be unpacked.");
  }
}
