/** Replaces the indices in a header by the texts to which they refer, and truncates long texts. */

import { shorten } from "../../data/units.js";

/** @param {import("../../data/decode.js").Header} header @returns {import("../../data/decode.js").Header} */
export function expand({ strings: names, texts, numbers, sources, frames, annotations, cells, ...header }) {
  const strings = names.map(shorten);
  return {
    ...header,
    texts: texts.map(shorten),
    numbers: byShortName(numbers),
    sources: byShortName(sources),
    frames: frames.map((/** @type {number[]} */ [file, line, name]) => [strings[file], line, strings[name]]),
    annotations: rows({ ...annotations, name: annotations.name.map((/** @type {number} */ text) => strings[text]) }),
    cells: rows({ ...cells, filename: cells.filename.map((/** @type {number} */ text) => strings[text]) }),
  };
}

/** The rows of a table. @param {Record<string, any[]>} columns */
function rows(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, row) => Object.fromEntries(names.map((name) => [name, columns[name][row]])));
}

/** @param {Record<string, any>} values by file name */
function byShortName(values) {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [shorten(name), value]));
}
