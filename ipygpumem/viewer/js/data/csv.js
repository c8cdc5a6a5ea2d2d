/** CSV tables whose cells no spreadsheet evaluates as formulas. Texts are escaped as by `core/text.py`. */

const CONTROL =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are the characters to be replaced
  /[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu;
const FORMULA = /(^|;)(?=[\s"\u00ad\u180e\u200b-\u200d\u2060-\u2064\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20])/g;

/** @typedef {string|number|null|undefined} Cell */

/** @param {(readonly Cell[])[]} rows */
export function toCsv(rows) {
  return rows.map((row) => `${row.map(cellText).join(",")}\r\n`).join("");
}

/** The rows of a table of objects. @param {readonly string[]} fields @param {any[]} objects @returns {Cell[][]} */
export function rowsOf(fields, objects) {
  return objects.map((object) => fields.map((field) => object[field]));
}

/** @param {Cell} value */
function cellText(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  // Spreadsheets treat a cell that starts with an apostrophe as text
  const safe = value.replace(CONTROL, " ").replace(FORMULA, "$1'");
  return /[",]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
