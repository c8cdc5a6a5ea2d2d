/** Replaces d3-format, which d3-scale imports: all numbers are formatted by `units.js`. */

/** @returns {typeof String} */
export const format = () => String;

export {
  format as formatPrefix,
  format as formatSpecifier,
  format as precisionFixed,
  format as precisionPrefix,
  format as precisionRound,
};
