/** Asks the engine: in a worker where the host allows one, else in slices on this thread. */

import workerText from "worker-text";
import { bytesOf, inflate } from "../data/bytes.js";
import { ViewerError } from "../data/errors.js";

/** @typedef {{request: (name: string, request: object, transfer?: Transferable[]) => Promise<any>, close: () => void, threaded: boolean}} Client */

/** How long a worker may take to say that it is there, in milliseconds. */
const PATIENCE = 4000;

/** @returns {Promise<Client>} */
export async function connect() {
  const text = new TextDecoder().decode(await inflate(bytesOf(workerText)));
  return (await withText(text, inWorker)) ?? (await withText(`${text}export const { Engine } = ipygpumem;`, inSlices));
}

/**
 * @template T
 * @param {string} text of the engine @param {(address: string) => Promise<T>} use
 */
async function withText(text, use) {
  /** @type {string} */
  let address;
  try {
    address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  } catch {
    address = `data:text/javascript,${encodeURIComponent(text)}`; // a host without blob: addresses
  }
  try {
    return await use(address);
  } finally {
    if (address.startsWith("blob:")) URL.revokeObjectURL(address);
  }
}

/** @param {string} address of the engine's text @returns {Promise<Client|undefined>} undefined where there are no workers */
function inWorker(address) {
  return new Promise((settle) => {
    /** @type {Worker} */
    let worker;
    try {
      worker = new Worker(address);
    } catch {
      return settle(undefined);
    }
    /** @type {Map<number, {settle: (answer: any) => void, fail: (problem: Error) => void}>} */
    const waiting = new Map();
    let last = 0;
    let alive = false;
    // some hosts start a worker that never runs
    const late = setTimeout(() => {
      worker.terminate();
      settle(undefined);
    }, PATIENCE);
    worker.onmessage = ({ data }) => {
      if (!alive) {
        alive = true;
        clearTimeout(late);
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
    return undefined;
  });
}

/** @param {string} address of the engine's text @returns {Promise<Client>} */
async function inSlices(address) {
  const pause = () => /** @type {Promise<void>} */ (new Promise((settle) => setTimeout(settle)));
  let module;
  try {
    module = await import(/* @vite-ignore */ address);
  } catch {
    throw new ViewerError(
      "This page may run neither a worker nor a module of its own (its Content-Security-Policy forbids blob: and data: addresses).",
    );
  }
  const engine = new module.Engine(pause);
  return {
    threaded: false,
    close: () => {},
    async request(name, request) {
      await pause();
      try {
        await engine.ready(name, request);
        return await engine[name](request);
      } catch (problem) {
        throw new ViewerError(problem instanceof Error ? problem.message : String(problem));
      }
    },
  };
}
