/** The engine in a thread of its own: a message is a number, a name and a request; so is the answer. Or as a module. */

import { Engine, handedOver } from "./engine.js";

if (typeof document === "undefined") {
  const engine = new Engine();
  self.onmessage = async ({ data: { id, name, request } }) => {
    try {
      await engine.ready(name, request);
      const answer = await /** @type {any} */ (engine)[name](request);
      self.postMessage({ id, answer }, { transfer: handedOver(answer) });
    } catch (problem) {
      self.postMessage({ id, problem: problem instanceof Error ? problem.message : String(problem) });
    }
  };
}

export { Engine };
