/** Stands for d3-format, with which scales write numbers: all our numbers come from `units.js`. */

/** @returns {typeof String} */
export const format = () => String;

export {
  format as formatPrefix,
  format as formatSpecifier,
  format as precisionFixed,
  format as precisionPrefix,
  format as precisionRound,
};
