// Requests to the kernel by custom messages, which are not saved in the notebook.

const SLOW_MS = 1500;

/**
 * @typedef {{send: (content: any) => void, on: (name: string, listener: (...values: any[]) => void) => void,
 *   off: (name: string, listener: (...values: any[]) => void) => void, get: (name: string) => any,
 *   set: (name: string, value: any) => void, save_changes: () => void}} Model
 */

/**
 * Send requests of one view and return their responses. A response reaches every page that shows the notebook, so each view
 * picks out its own by their ids.
 * @param {Model} model
 * @param {AbortSignal} signal ends all waiting, without an error
 * @param {(waiting: boolean) => void} onSlow called when a response is late, and when it has arrived
 */
export function connect(model, signal, onSlow) {
  const view = Math.random().toString(36).slice(2);
  let count = 0;
  /** @type {Map<string, (content: any, buffers: DataView[]) => void>} */
  const pending = new Map();
  /** @param {any} content @param {DataView[]} buffers */
  const onMessage = (content, buffers) => pending.get(content?.id)?.(content, buffers ?? []);
  model.on("msg:custom", onMessage);
  signal.addEventListener("abort", () => {
    model.off("msg:custom", onMessage);
    pending.clear();
  });

  /**
   * @param {Record<string, any>} message
   * @returns {Promise<{content: any, buffers: DataView[]}>}
   */
  function request(message) {
    return new Promise((resolve, reject) => {
      const id = `${view}-${count++}`;
      const timer = setTimeout(() => onSlow(true), SLOW_MS);
      signal.addEventListener("abort", () => clearTimeout(timer));
      pending.set(id, (content, buffers) => {
        pending.delete(id);
        clearTimeout(timer);
        onSlow(false);
        if (content.error) reject(new Error(content.error));
        else resolve({ content, buffers });
      });
      model.send({ id, ...message });
    });
  }

  /** Download data from the kernel, in as many messages as needed. @param {string} name */
  async function bytes(name) {
    /** @type {Uint8Array<ArrayBuffer>} */
    let data = new Uint8Array(0);
    let length = 0;
    do {
      const { content, buffers } = await request({ get: name, from: length });
      const part = buffers[0];
      if (!length) data = new Uint8Array(content.size);
      if (!part?.byteLength && length < data.length) throw new Error(`the kernel sent no data for ${name}`);
      data.set(new Uint8Array(part.buffer, part.byteOffset, part.byteLength), length);
      length += part.byteLength;
    } while (length < data.length);
    return data.buffer;
  }

  return { request, bytes };
}

const WAITING = "Waiting for the kernel, which is busy or not running. Until it responds, the static image is shown.";

/**
 * A line of text in place of the viewer.
 * @param {HTMLElement} el
 */
export function statusLine(el) {
  const line = document.createElement("div");
  line.setAttribute("role", "status");
  line.style.cssText = "font: 13px/1.5 system-ui, sans-serif; opacity: 0.75; padding: 4px 0";
  /** @param {string} text */
  const show = (text) => {
    line.textContent = text;
    if (text) el.append(line);
    else line.remove();
  };
  return {
    /** @param {boolean} waiting */
    showWaiting: (waiting) => show(waiting ? WAITING : ""),
    /** @param {Error} error */
    showError: (error) => show(`ipygpumem: the interactive viewer cannot be shown: ${error.message}`),
  };
}
