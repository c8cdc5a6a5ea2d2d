/** Asks the engine: in a worker where the host allows one, else in slices on this thread. */

import workerText from "worker-text";
import { ViewerError } from "./decode.js";
import { Engine } from "./engine.js";

/** @typedef {{request: (name: string, request: object, transfer?: Transferable[]) => Promise<any>, close: () => void, threaded: boolean}} Client */

/** @returns {Promise<Client>} */
export async function connect() {
  return (await inWorker()) ?? inSlices();
}

/** @returns {Promise<Client|undefined>} */
function inWorker() {
  return new Promise((settle) => {
    if (typeof Worker === "undefined") return settle(undefined);
    let address = "";
    try {
      address = URL.createObjectURL(new Blob([workerText], { type: "text/javascript" }));
      const worker = new Worker(address);
      /** @type {Map<number, {settle: (answer: any) => void, fail: (problem: Error) => void}>} */
      const waiting = new Map();
      let last = 0;
      let alive = false;
      worker.onmessage = ({ data }) => {
        if (!alive) {
          alive = true;
          URL.revokeObjectURL(address);
          settle({ request, close: () => worker.terminate(), threaded: true });
          return;
        }
        const one = waiting.get(data.id);
        waiting.delete(data.id);
        if (data.problem === undefined) one?.settle(data.answer);
        else one?.fail(new ViewerError(data.problem));
      };
      worker.onerror = (event) => {
        event.preventDefault?.();
        if (!alive) settle(undefined); // the host's policy forbids it
        for (const one of waiting.values()) one.fail(new ViewerError("The viewer's worker has stopped."));
        waiting.clear();
      };
      const request = (
        /** @type {string} */ name,
        /** @type {object} */ request,
        /** @type {Transferable[]} */ transfer = [],
      ) =>
        new Promise((settle, fail) => {
          last++;
          waiting.set(last, { settle, fail });
          worker.postMessage({ id: last, name, request }, transfer);
        });
      worker.postMessage({ id: 0, name: "hello", request: {} });
    } catch {
      URL.revokeObjectURL(address);
      settle(undefined);
    }
    return undefined;
  });
}

/** @returns {Client} */
function inSlices() {
  const pause = () => /** @type {Promise<void>} */ (new Promise((settle) => setTimeout(settle)));
  const engine = new Engine(pause);
  return {
    threaded: false,
    close: () => {},
    request: async (name, request) => {
      await pause();
      return /** @type {any} */ (engine)[name](request);
    },
  };
}
