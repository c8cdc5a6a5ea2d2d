/** The state of a viewer as plain values, with listeners for changes. */

/**
 * @typedef {import("./engine/pane.js").Mark} Mark
 * @typedef {import("../ui/zoom.js").Range} Range
 * @typedef {ReturnType<typeof initialState>} Shown
 */

export function initialState() {
  return {
    device: 0, // of all files; -1: of each file the one with the highest peak
    axis: /** @type {"event"|"time"} */ ("event"),
    x: /** @type {Range|null} */ (null), // the visible part of the axis; null: everything
    y: /** @type {Range|null} */ (null), // the visible bytes; null: everything
    source: 0, // the file that the panels show
    event: /** @type {number|null} */ (null), // the cursor; null: the peak
    range: /** @type {Range|null} */ (null), // events
    row: /** @type {number|null} */ (null), // the selected allocation
    mode: "line", // color by
    hidden: /** @type {number[]} */ ([]), // classes
    mark: /** @type {Mark} */ ({ kind: "none" }),
    key: "line", // group by
    measure: /** @type {"bytes"|"time"} */ ("bytes"),
    root: "", // of the icicle
    tab: "live",
    search: "",
    tool: /** @type {"pan"|"ruler"|"box"|"range"} */ ("pan"),
    replayed: false, // whether the state of the allocator is that of the replay with other settings
    follow: false, // the cursor follows the pointer
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
