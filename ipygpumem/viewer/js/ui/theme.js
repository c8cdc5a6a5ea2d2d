/** The light and the dark theme, and the colors of canvas drawings, to which stylesheets do not apply. */

/** @typedef {"light"|"dark"} Theme */

/** The theme of the page or notebook around an element. @param {HTMLElement} element @param {"auto"|Theme} setting @returns {Theme} */
export function themeOf(element, setting) {
  if (setting !== "auto") return setting;
  const body = element.ownerDocument.body;
  if (body?.dataset.jpThemeLight) return body.dataset.jpThemeLight === "true" ? "light" : "dark";
  if (body?.dataset.vscodeThemeKind) return body.dataset.vscodeThemeKind.includes("dark") ? "dark" : "light";
  if (body?.classList.contains("vscode-dark")) return "dark";
  if (body?.classList.contains("vscode-light")) return "light";
  const root = element.ownerDocument.documentElement;
  if (root.getAttribute("theme") === "dark") return "dark"; // Colab
  return globalThis.matchMedia?.("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Call a function whenever the theme may have changed. @param {HTMLElement} element @param {() => void} changed @param {AbortSignal} signal */
export function watchTheme(element, changed, signal) {
  globalThis.matchMedia?.("(prefers-color-scheme: dark)").addEventListener("change", changed, { signal });
  const observer = new MutationObserver(changed);
  const { body, documentElement } = element.ownerDocument;
  const attributes = ["data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-kind", "class", "theme"];
  observer.observe(body, { attributes: true, attributeFilter: attributes });
  observer.observe(documentElement, { attributes: true, attributeFilter: ["theme", "data-theme"] });
  signal.addEventListener("abort", () => observer.disconnect());
}

/** The light and the dark color of everything that is drawn on a canvas. */
const COLORS = {
  background: ["#ffffff", "#15181d"],
  text: ["#1f2630", "#e4e8ee"],
  soft: ["#5f6b7a", "#9aa5b4"],
  grid: ["rgba(31, 38, 48, 0.07)", "rgba(228, 232, 238, 0.09)"],
  total: ["rgba(24, 32, 44, 0.75)", "rgba(236, 240, 246, 0.8)"],
  reserved: ["#a2521a", "#e8a262"],
  replayed: ["#0b7a5b", "#5fd3a8"],
  device: ["#6b4aa0", "#b79ae6"],
  capacity: ["#9a2a3c", "#f08a98"],
  oom: ["#b3261e", "#ff8a80"],
  accent: ["#1f6fb5", "#6cb2f0"],
  selection: ["rgba(255, 255, 255, 0.35)", "rgba(255, 255, 255, 0.25)"],
  peak: ["#12304f", "#f4f7fb"],
  range: ["rgba(31, 111, 181, 0.13)", "rgba(108, 178, 240, 0.18)"],
  pointer: ["rgba(31, 38, 48, 0.28)", "rgba(228, 232, 238, 0.35)"],
  labelBackground: ["rgba(255, 255, 255, 0.84)", "rgba(21, 24, 29, 0.82)"],
  strip: ["#6f7b8a", "#8591a1"],
  stripBackground: ["#f1f3f5", "#1e2229"],
  free: ["#f4f6f8", "#1b1f26"],
  edge: ["rgba(24, 32, 44, 0.55)", "rgba(236, 240, 246, 0.6)"],
  failed: ["#f4d2cd", "#582f2b"],
  running: ["#cfe3f7", "#24507c"],
  border: ["#b9c2cc", "#454d58"],
  overview: ["#c3d3e3", "#34495f"],
  overviewOther: ["rgba(200, 170, 140, 0.45)", "rgba(150, 120, 90, 0.45)"],
};
const BANDS = {
  light: ["#dce8f4", "#e9e2f3", "#dcefe8", "#f5e9d6", "#f6e0dc", "#e4e7eb"],
  dark: ["#233a52", "#362e4a", "#1f4038", "#453a24", "#47302d", "#2e343c"],
};

/** @typedef {Record<keyof typeof COLORS, string> & {bands: string[]}} ChartColors */

/** @param {Theme} theme @returns {ChartColors} */
export function chartColors(theme) {
  const choice = theme === "dark" ? 1 : 0;
  const colors = Object.entries(COLORS).map(([name, pair]) => [name, pair[choice]]);
  return { ...Object.fromEntries(colors), bands: BANDS[theme] };
}
