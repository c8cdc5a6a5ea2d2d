/** Replaces d3-interpolate: only numbers are interpolated. */

/** @param {number} a @param {number} b @returns {(t: number) => number} */
export function interpolateNumber(a, b) {
  return (t) => a * (1 - t) + b * t;
}

/** @param {number} a @param {number} b @returns {(t: number) => number} */
export function interpolateRound(a, b) {
  return (t) => Math.round(a * (1 - t) + b * t);
}

export { interpolateNumber as interpolate, interpolateNumber as interpolateZoom, interpolateNumber as piecewise };
