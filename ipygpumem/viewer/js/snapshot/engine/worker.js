/** Runs the engine in a worker: a message has an id, a name and a request, its response the same id. Also usable as a module. */

import { Engine, transferables } from "./engine.js";

if (typeof document === "undefined") {
  const engine = new Engine();
  self.onmessage = async ({ data: { id, name, request } }) => {
    try {
      await engine.ready(name, request);
      const response = await /** @type {any} */ (engine)[name](request);
      self.postMessage({ id, response }, { transfer: transferables(response) });
    } catch (error) {
      self.postMessage({ id, error: error instanceof Error ? error.message : String(error) });
    }
  };
}

export { Engine };
