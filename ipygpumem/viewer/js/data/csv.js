/** CSV tables whose cells no spreadsheet evaluates as formulas. */

/** @typedef {string|number|null|undefined} Cell */

/** @param {Cell[][]} rows */
export function toCsv(rows) {
  return rows.map((row) => `${row.map(cellText).join(",")}\r\n`).join("");
}

/** @param {Cell} value */
function cellText(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  // Spreadsheets treat a cell that starts with an apostrophe as text
  const safe = /^[\s]*[=+\-@\t\r|%]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
