// What is synchronised, and so written into notebooks that keep widgets: it brings the viewer's script when it is shown.
import { desk, notice, WAITING } from "./messages.js";

/** @param {{model: import("./messages.js").Model, el: HTMLElement}} context */
function render(context) {
  const { model, el } = context;
  const stop = new AbortController();
  const line = notice(el);
  const { bytes } = desk(model, stop.signal, (waits) => line.say(waits ? WAITING : ""));
  /** @type {(() => void) | undefined} */
  let end;

  async function bring() {
    const address = URL.createObjectURL(new Blob([await bytes("script")], { type: "text/javascript" }));
    try {
      const { default: widget } = await import(/* @vite-ignore */ address);
      if (!stop.signal.aborted) end = widget.render(context);
    } finally {
      URL.revokeObjectURL(address);
    }
  }

  bring().catch((error) => {
    if (!stop.signal.aborted) line.say(`ipygpumem: no viewer here: ${error.message}`);
  });
  return () => {
    stop.abort();
    end?.();
  };
}

export default { render };
