/** Elements. All text enters as text: nothing from a snapshot is ever parsed as HTML. */

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [facts] `class`, `on` (listeners), `data`, `aria`; other keys are attributes
 * @param {...(Node|string|null|undefined|false)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, facts = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(facts)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") for (const [name, listener] of Object.entries(value)) element.addEventListener(name, listener);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "aria")
      for (const [name, text] of Object.entries(value)) element.setAttribute(`aria-${name}`, String(text));
    else if (key === "style")
      for (const [name, text] of Object.entries(value)) element.style.setProperty(name, String(text));
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(
    ...children.filter((child) => child !== null && child !== undefined && child !== false).map((child) => child || ""),
  );
  return element;
}

/**
 * New children in the place of the old ones. Where one of those had the focus, its successor has it: the one with the same
 * key, else with the same words, else at the same place.
 * @param {HTMLElement} element @param {(Node|string)[]} children
 */
export function swap(element, children) {
  const root = /** @type {ShadowRoot|Document} */ (element.getRootNode());
  const held = /** @type {HTMLElement|null} */ (root.activeElement);
  const inside = held && held !== element && element.contains(held);
  const all = () => /** @type {HTMLElement[]} */ ([...element.querySelectorAll("button, summary, [tabindex]")]);
  const at = inside ? all().indexOf(held) : -1;
  element.replaceChildren(...children);
  if (!inside) return;
  const now = all();
  const same = (/** @type {HTMLElement} */ one) =>
    held.dataset.key === undefined ? one.textContent === held.textContent : one.dataset.key === held.dataset.key;
  const next = now.find(same) ?? now[Math.min(at, now.length - 1)] ?? element;
  if (next === element && element.tabIndex < 0) element.tabIndex = -1;
  next.focus({ preventScroll: true });
}

const SVG = "http://www.w3.org/2000/svg";

/** @param {string} tag @param {Record<string, any>} [facts] @param {...(Node|string)} children @returns {SVGElement} */
export function s(tag, facts = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(facts)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(key, String(value));
  }
  element.append(...children);
  return /** @type {SVGElement} */ (element);
}

/** A canvas of a size in CSS pixels, sharp on dense screens. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
export function fit(canvas, width, height) {
  const dense = density();
  const [w, hh] = [Math.max(1, Math.round(width * dense)), Math.max(1, Math.round(height * dense))];
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== hh) canvas.height = hh;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(dense, 0, 0, dense, 0, 0);
  return context;
}

/** Device pixels per CSS pixel; more than two are not worth their time. */
export function density() {
  return Math.min(Math.max(globalThis.devicePixelRatio || 1, 1), 2);
}

/** Text cut to a width. @param {CanvasRenderingContext2D} context @param {string} text @param {number} width */
export function clipped(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? `${text.slice(0, low)}…` : "";
}

/** Calls of a function, at most one for each picture of the screen. @param {() => void} work */
export function eachFrame(work) {
  let asked = 0;
  return {
    ask() {
      asked ||= requestAnimationFrame(() => {
        asked = 0;
        work();
      });
    },
    stop() {
      cancelAnimationFrame(asked);
      asked = 0;
    },
  };
}

/** Hand a file to the reader. @param {string} name @param {Blob} blob @param {ShadowRoot|HTMLElement} root */
export function download(name, blob, root) {
  const address = URL.createObjectURL(blob);
  const link = h("a", { href: address, download: name, hidden: true });
  root.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
