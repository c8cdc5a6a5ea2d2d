/** DOM elements. Text is always inserted as text: nothing from a snapshot is ever parsed as HTML. */

/**
 * Create an HTML element.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [attributes] `on` (listeners), `data`, `aria` and `style` are objects; other keys are attributes
 * @param {...(Node|string|null|undefined|false)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") listen(element, value);
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

/** @param {EventTarget} target @param {Record<string, (event: any) => void>} listeners @param {AddEventListenerOptions} [options] */
export function listen(target, listeners, options) {
  for (const [name, listener] of Object.entries(listeners)) target.addEventListener(name, listener, options);
}

const SVG = "http://www.w3.org/2000/svg";

/** Create an SVG element. @param {string} tag @param {Record<string, any>} [attributes] @param {...(Node|string)} children @returns {SVGElement} */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(key, String(value));
  }
  element.append(...children);
  return /** @type {SVGElement} */ (element);
}

/**
 * Replace the children of an element and keep the keyboard focus: on the child with the same key, else with the same text,
 * else at the same position.
 * @param {HTMLElement} element @param {(Node|string)[]} children
 */
export function replaceChildren(element, children) {
  const root = /** @type {ShadowRoot|Document} */ (element.getRootNode());
  const focused = /** @type {HTMLElement|null} */ (root.activeElement);
  const inside = focused && focused !== element && element.contains(focused);
  const focusable = () => /** @type {HTMLElement[]} */ ([...element.querySelectorAll("button, summary, [tabindex]")]);
  const index = inside ? focusable().indexOf(focused) : -1;
  element.replaceChildren(...children);
  if (!inside) return;
  const candidates = focusable();
  const same = (/** @type {HTMLElement} */ candidate) =>
    focused.dataset.key === undefined
      ? candidate.textContent === focused.textContent
      : candidate.dataset.key === focused.dataset.key;
  const next = candidates.find(same) ?? candidates[Math.min(index, candidates.length - 1)] ?? element;
  if (next === element && element.tabIndex < 0) element.tabIndex = -1;
  next.focus({ preventScroll: true });
}

/** Run a function at most once per animation frame. @param {() => void} callback */
export function frameScheduler(callback) {
  let pending = 0;
  return {
    request() {
      pending ||= requestAnimationFrame(() => {
        pending = 0;
        callback();
      });
    },
    cancel() {
      cancelAnimationFrame(pending);
      pending = 0;
    },
  };
}

/**
 * Run the action of a key. Keys with Ctrl, Meta or Alt belong to the browser.
 * @param {KeyboardEvent} event @param {Record<string, () => void>} actions by `event.key`
 */
export function handleKey(event, actions) {
  if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(actions, event.key)) return;
  event.preventDefault();
  event.stopPropagation(); // a notebook has its own shortcuts
  actions[event.key]();
}

/** Offer a file for download. @param {string} source name of what it was made from @param {string} extension @param {BlobPart[]|Blob} content @param {HTMLElement} root */
export function download(source, extension, content, root) {
  const name = source
    .replace(/\.(pickle|pkl|json|gz|xz|html?)(?=\.|$)/g, "")
    .replace(/[^\w.-]+/g, "_")
    .slice(0, 80);
  const type = { csv: "text/csv", svg: "image/svg+xml" }[extension];
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob(content, { type }));
  const link = h("a", { href: address, download: `${name || "memory"}.${extension}`, hidden: true });
  root.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
