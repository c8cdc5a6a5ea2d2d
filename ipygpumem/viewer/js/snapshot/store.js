/** The state of a viewer as plain values, with listeners for changes. */

/**
 * @typedef {import("./engine/pane.js").Mark} Mark
 * @typedef {object} Shown
 * @property {number} device of all files; -1: of each file the one with the highest peak
 * @property {"event"|"time"} axis
 * @property {[number, number]|null} x the visible part of the axis; null: everything
 * @property {[number, number]|null} y the visible bytes; null: everything
 * @property {number} source the file that the panels show
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
 * @property {boolean} replayed whether the state of the allocator is that of the replay with other settings
 * @property {boolean} follow the cursor follows the pointer
 */

/** @returns {Shown} */
export function initialState() {
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
    replayed: false,
    follow: false,
  };
}

export class Store {
  constructor() {
    this.now = initialState();
    /** @type {((keys: Set<string>) => void)[]} */
    this.listeners = [];
  }

  /** @param {Partial<Shown>} patch */
  set(patch) {
    const keys = new Set();
    for (const [key, value] of Object.entries(patch)) {
      const current = /** @type {any} */ (this.now)[key];
      if (current !== value && JSON.stringify(current) !== JSON.stringify(value)) keys.add(key);
    }
    if (!keys.size) return;
    this.now = { ...this.now, ...patch };
    for (const listener of this.listeners) listener(keys);
  }

  /** @param {(keys: Set<string>) => void} listener called with the keys that changed */
  listen(listener) {
    this.listeners.push(listener);
  }
}
