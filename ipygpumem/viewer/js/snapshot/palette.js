/**
 * Colors of allocations. Classes without an order use a set that is distinct for all kinds of color vision and calm in large
 * areas (after Paul Tol's "light" scheme); ordered classes use steps of one scale from light to dark.
 */

/** @typedef {"light"|"dark"} Theme */

/** @type {Record<Theme, string[]>} */
const DISTINCT = {
  light: ["#77aadd", "#ee8866", "#44bb99", "#eedd88", "#b9a0dc", "#99ddff", "#aaaa00", "#ffaabb", "#8fb7a8", "#c9a27e"],
  dark: ["#5b8fc4", "#d0704f", "#36997d", "#c2b163", "#937bb8", "#74b6d6", "#8a8a12", "#d18493", "#6b9384", "#a3815f"],
};
/** @type {Record<Theme, string[]>} */
const STEPS = {
  light: ["#dbe9f6", "#bdd7ec", "#93c3df", "#64a9d3", "#3e8ec4", "#2171b5", "#0f529c", "#0a3a72"],
  dark: ["#1d3a56", "#23507a", "#2a689c", "#3a82ba", "#5a9dd0", "#82b8e0", "#acd0ec", "#d6e7f7"],
};
/** @type {Record<Theme, string[]>} groups without a name: older, without Python, without a stack */
const UNNAMED = {
  light: ["#b4bfcc", "#c9c2b4", "#bfc8d2", "#d8cfb4"],
  dark: ["#4f5b69", "#6a6353", "#59636f", "#7a7058"],
};
/** @type {Record<Theme, {other: string, thin: string, background: string, dim: string}>} */
const PLAIN = {
  light: { other: "#c4c9d0", thin: "#b3b9c2", background: "#ffffff", dim: "#eef0f2" },
  dark: { other: "#5a616b", thin: "#5c646f", background: "#15181d", dim: "#262b32" },
};

/** The maximum number of classes in a picture, including the one for all others. */
export const CLASSES = 10;

/** Styles of thin bands, as in `rasterize.js`. */
const THIN_STYLES = 128;
const THIN_UNKNOWN = 254;

/** @param {string} color #rrggbb @returns {[number, number, number]} */
function channels(color) {
  const value = Number.parseInt(color.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** @param {string} first @param {string} second @param {number} share of the second @returns {[number, number, number]} */
function mix(first, second, share) {
  const [a, b] = [channels(first), channels(second)];
  const part = (/** @type {number} */ i) => Math.round(a[i] + (b[i] - a[i]) * share);
  return [part(0), part(1), part(2)];
}

/** A pixel of image data: alpha, blue, green, red. @param {[number, number, number]} rgb */
function pixel([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** The color of a class. @param {Theme} theme @param {boolean} ordered @param {number} place as in `Class` @param {number} count of classes */
export function swatch(theme, ordered, place, count) {
  if (place === -1) return PLAIN[theme].other;
  if (place < 0) return UNNAMED[theme][-place % UNNAMED[theme].length];
  if (!ordered) return DISTINCT[theme][place % DISTINCT[theme].length];
  const steps = STEPS[theme];
  return steps[count <= 1 ? 4 : Math.round(1 + (place * (steps.length - 2)) / (count - 1))];
}

/**
 * Colors by style. A style is four times the class, plus 1 for every other allocation, plus 2 if it is dimmed.
 * @param {Theme} theme @param {string[]} swatches by class
 */
export function colors(theme, swatches) {
  const table = new Uint32Array(512);
  const { background, dim, thin } = PLAIN[theme];
  const ink = "#000000";
  for (const [place, color] of swatches.entries()) {
    for (const second of [0, 1]) {
      const tone = /** @type {[number, number, number]} */ (mix(color, background, second ? 0.16 : 0));
      const faint = mix(color, dim, 0.82);
      table[4 * place + second] = pixel(tone);
      table[4 * place + second + 2] = pixel(faint);
      table[256 + 4 * place + second] = pixel(mix(color, ink, theme === "light" ? 0.16 : 0.28));
      table[256 + 4 * place + second + 2] = pixel(mix(color, dim, 0.6));
    }
    table[THIN_STYLES + 2 * place] = table[256 + THIN_STYLES + 2 * place] = pixel(mix(color, thin, 0.38));
    table[THIN_STYLES + 2 * place + 1] = table[256 + THIN_STYLES + 2 * place + 1] = pixel(mix(color, dim, 0.88));
  }
  table[THIN_UNKNOWN] = table[256 + THIN_UNKNOWN] = pixel(channels(thin));
  return table;
}
