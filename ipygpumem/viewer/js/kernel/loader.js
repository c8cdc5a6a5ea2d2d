// The script that a widget synchronizes, and that notebooks may save with it. It is small: it fetches the viewer on display.
import { connect, statusLine } from "./messages.js";

/** @param {{model: import("./messages.js").Model, el: HTMLElement}} context */
function render(context) {
  const { model, el } = context;
  const stop = new AbortController();
  const status = statusLine(el);
  const { bytes } = connect(model, stop.signal, status.showWaiting);
  /** @type {(() => void) | undefined} */
  let cleanup;

  async function load() {
    const address = URL.createObjectURL(new Blob([await bytes("script")], { type: "text/javascript" }));
    try {
      const { default: widget } = await import(/* @vite-ignore */ address);
      if (!stop.signal.aborted) cleanup = widget.render(context);
    } finally {
      URL.revokeObjectURL(address);
    }
  }

  load().catch((error) => {
    if (!stop.signal.aborted) status.showError(error);
  });
  return () => {
    stop.abort();
    cleanup?.();
  };
}

export default { render };
