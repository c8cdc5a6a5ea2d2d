/** What one viewer shows: plain values, and who wants to know when they change. */

/**
 * @typedef {import("./engine/engine.js").Mark} Mark
 * @typedef {object} Shown
 * @property {number} device the same of all files; -1: of each file the one with its highest peak
 * @property {"event"|"time"} axis
 * @property {[number, number]|null} x the visible part of the axis; null: all
 * @property {[number, number]|null} y the visible bytes; null: all
 * @property {number} source which of the snapshots the panels speak of
 * @property {number|null} event the cursor; null: the peak
 * @property {[number, number]|null} range events
 * @property {number|null} row the selected allocation
 * @property {string} mode color by
 * @property {number[]} hidden classes
 * @property {Mark} mark
 * @property {string} key group by
 * @property {"bytes"|"time"} measure
 * @property {string} root of the icicle
 * @property {string} tab
 * @property {string} search
 * @property {"pan"|"ruler"|"box"|"range"} tool
 * @property {boolean} follow the cursor follows the pointer
 */

/** @returns {Shown} */
export function atFirst() {
  return {
    device: 0,
    axis: "event",
    x: null,
    y: null,
    source: 0,
    event: null,
    range: null,
    row: null,
    mode: "line",
    hidden: [],
    mark: { kind: "none" },
    key: "line",
    measure: "bytes",
    root: "",
    tab: "live",
    search: "",
    tool: "pan",
    follow: false,
  };
}

export class Store {
  /** @param {Partial<Shown>} begin */
  constructor(begin) {
    /** @type {Shown} */
    this.now = { ...atFirst(), ...begin };
    /** @type {((keys: Set<string>) => void)[]} */
    this.listeners = [];
  }

  /** @param {Partial<Shown>} patch */
  set(patch) {
    const keys = new Set();
    for (const [key, value] of Object.entries(patch)) {
      const known = /** @type {any} */ (this.now)[key];
      if (known !== value && JSON.stringify(known) !== JSON.stringify(value)) keys.add(key);
    }
    if (!keys.size) return;
    this.now = { ...this.now, ...patch };
    for (const listener of this.listeners) listener(keys);
  }

  /** @param {(keys: Set<string>) => void} listener */
  listen(listener) {
    this.listeners.push(listener);
  }
}
