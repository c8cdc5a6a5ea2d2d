/**
 * The viewer: one mount is one viewer, with all of its state.
 * @param {HTMLElement} element
 * @param {{name: string, bytes: ArrayBuffer}[]} sources one, or two to compare
 * @param {{host: "page"|"widget", theme?: "auto"|"light"|"dark", state?: string, onState?: (state: string) => void}} options
 */
export function mount(element, sources, options) {
  const root = element.shadowRoot ?? element.attachShadow({ mode: "open" });
  const heading = document.createElement("h2");
  heading.textContent = sources.map((source) => source.name).join(" and ");
  heading.dataset.host = options.host;
  root.replaceChildren(heading);
  return { api: {}, destroy: () => root.replaceChildren() };
}
