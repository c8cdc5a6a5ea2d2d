// Questions to the kernel by custom messages, which no notebook keeps.

const SLOW = 1500;

/**
 * @typedef {{send: (content: any) => void, on: (name: string, heard: (...words: any[]) => void) => void,
 *   off: (name: string, heard: (...words: any[]) => void) => void, get: (name: string) => any,
 *   set: (name: string, value: any) => void, save_changes: () => void}} Model
 */

/**
 * One view's questions. An answer goes to every page that shows the notebook: each looks for its own.
 * @param {Model} model
 * @param {AbortSignal} signal ends all waiting, without an error
 * @param {(waits: boolean) => void} slow told when an answer takes its time, and when it came
 */
export function desk(model, signal, slow) {
  const mine = Math.random().toString(36).slice(2);
  let count = 0;
  /** @type {Map<string, (content: any, buffers: DataView[]) => void>} */
  const waiting = new Map();
  /** @param {any} content @param {DataView[]} buffers */
  const heard = (content, buffers) => {
    waiting.get(content?.id)?.(content, buffers ?? []);
  };
  model.on("msg:custom", heard);
  signal.addEventListener("abort", () => {
    model.off("msg:custom", heard);
    waiting.clear();
  });

  /**
   * @param {Record<string, any>} question
   * @returns {Promise<{content: any, buffers: DataView[]}>}
   */
  function ask(question) {
    return new Promise((settle, fail) => {
      const id = `${mine}-${count++}`;
      const late = setTimeout(() => slow(true), SLOW);
      signal.addEventListener("abort", () => clearTimeout(late));
      waiting.set(id, (content, buffers) => {
        waiting.delete(id);
        clearTimeout(late);
        slow(false);
        if (content.error) fail(new Error(content.error));
        else settle({ content, buffers });
      });
      model.send({ id, ...question });
    });
  }

  /**
   * All bytes of one thing, in as many messages as it takes.
   * @param {string} thing
   */
  async function bytes(thing) {
    /** @type {Uint8Array<ArrayBuffer>} */
    let all = new Uint8Array(0);
    let have = 0;
    do {
      const { content, buffers } = await ask({ get: thing, from: have });
      const part = buffers[0];
      if (!have) all = new Uint8Array(content.size);
      if (!part?.byteLength && have < all.length) throw new Error(`the kernel sent nothing of ${thing}`);
      all.set(new Uint8Array(part.buffer, part.byteOffset, part.byteLength), have);
      have += part.byteLength;
    } while (have < all.length);
    return all.buffer;
  }

  return { ask, bytes };
}

/**
 * A line of text in the place of the viewer, for as long as there is none.
 * @param {HTMLElement} el
 */
export function notice(el) {
  const line = document.createElement("div");
  line.setAttribute("role", "status");
  line.style.cssText = "font: 13px/1.5 system-ui, sans-serif; opacity: 0.75; padding: 4px 0";
  return {
    /** @param {string} text */
    say(text) {
      line.textContent = text;
      if (text) el.append(line);
      else line.remove();
    },
  };
}

export const WAITING =
  "Waiting for the kernel, which is busy or gone. Until it answers, the picture stands for the viewer.";
