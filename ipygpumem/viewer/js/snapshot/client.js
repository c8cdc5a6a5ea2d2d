/** Sends requests to the engine: in a worker if the host allows one, else on the page's own thread. */

import workerText from "worker-text";
import { fromBase64, inflate } from "../data/bytes.js";
import { ViewerError } from "../data/errors.js";

/** @typedef {{request: (name: string, request: object, transfer?: Transferable[]) => Promise<any>, close: () => void}} Client */

/** How long a worker may take to start. */
const WORKER_TIMEOUT_MS = 4000;

/** @returns {Promise<Client>} */
export async function connect() {
  const script = new TextDecoder().decode(await inflate(fromBase64(workerText)));
  const client = await withAddress(script, workerClient);
  return client ?? withAddress(`${script}export const { Engine } = ipygpumem;`, moduleClient);
}

/**
 * @template T
 * @param {string} script @param {(address: string) => Promise<T>} callback
 */
async function withAddress(script, callback) {
  /** @type {string} */
  let address;
  try {
    address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  } catch {
    address = `data:text/javascript,${encodeURIComponent(script)}`; // some hosts have no blob: addresses
  }
  try {
    return await callback(address);
  } finally {
    if (address.startsWith("blob:")) URL.revokeObjectURL(address);
  }
}

/** @param {string} address of the engine's script @returns {Promise<Client|undefined>} undefined if workers are not available */
function workerClient(address) {
  return new Promise((resolve) => {
    /** @type {Worker} */
    let worker;
    try {
      worker = new Worker(address);
    } catch {
      return resolve(undefined);
    }
    /** @type {Map<number, {resolve: (response: any) => void, reject: (error: Error) => void}>} */
    const pending = new Map();
    let lastId = 0;
    let started = false;
    // Some hosts create a worker that never runs
    const timer = setTimeout(() => {
      worker.terminate();
      resolve(undefined);
    }, WORKER_TIMEOUT_MS);
    worker.onmessage = ({ data: { id, response, error } }) => {
      if (!started) {
        started = true;
        clearTimeout(timer);
        resolve({ request, close: () => worker.terminate() });
        return;
      }
      const waiting = pending.get(id);
      pending.delete(id);
      if (error === undefined) waiting?.resolve(response);
      else waiting?.reject(new ViewerError(error));
    };
    worker.onerror = (event) => {
      event.preventDefault?.();
      if (!started) resolve(undefined); // forbidden by the host's policy
      for (const { reject } of pending.values())
        reject(new ViewerError("The viewer's worker has stopped. Open the viewer again."));
      pending.clear();
    };
    /** @type {Client["request"]} */
    const request = (name, request, transfer = []) =>
      new Promise((resolve, reject) => {
        lastId++;
        pending.set(lastId, { resolve, reject });
        worker.postMessage({ id: lastId, name, request }, transfer);
      });
    worker.postMessage({ id: 0, name: "hello", request: {} });
    return undefined;
  });
}

/** @param {string} address of the engine's script @returns {Promise<Client>} */
async function moduleClient(address) {
  const pause = () => /** @type {Promise<void>} */ (new Promise((resolve) => setTimeout(resolve)));
  let module;
  try {
    module = await import(/* @vite-ignore */ address);
  } catch {
    throw new ViewerError(
      "This page can run neither a worker nor a module: its Content-Security-Policy forbids blob: and data: addresses.",
    );
  }
  const engine = new module.Engine(pause);
  return {
    close: () => {},
    async request(name, request) {
      await pause();
      try {
        await engine.ready(name, request);
        return await engine[name](request);
      } catch (error) {
        throw new ViewerError(error instanceof Error ? error.message : String(error));
      }
    },
  };
}
