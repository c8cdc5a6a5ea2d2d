/** Tables as CSV, for spreadsheets that run what begins like a formula. */

/** @param {string[]} head @param {(string|number|null|undefined)[][]} rows */
export function toCsv(head, rows) {
  return lines([head, ...rows]);
}

/** @param {(string|number|null|undefined)[][]} rows */
export function lines(rows) {
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** @param {string|number|null|undefined} value */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  // a spreadsheet takes text behind an apostrophe as text
  const safe = /^[\s]*[=+\-@\t\r|%]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
