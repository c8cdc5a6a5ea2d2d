/** The data and the state that all views of one viewer share. */

import { getOrCreate } from "../data/collections.js";
import { colors, swatch } from "./palette.js";

/**
 * @typedef {import("./engine/overview.js").Overview} Overview
 * @typedef {import("./engine/overview.js").DeviceFacts} DeviceFacts
 * @typedef {{mode: string, ordered: boolean, classes: import("./engine/classes.js").Class[]}} Legend
 */

export class Context {
  /**
   * @param {import("./client.js").Client} client @param {import("./store.js").Store} store
   * @param {HTMLElement} root the element of the whole viewer
   */
  constructor(client, store, root) {
    this.client = client;
    this.store = store;
    this.root = root;
    /** @type {Overview[]} */
    this.files = [];
    /** @type {import("../ui/theme.js").Theme} */
    this.theme = "light";
    /** @type {Map<string, Promise<Legend>>} */
    this.legends = new Map();
    /** Whether the view has a URL. */
    this.linkable = false;
    this.stop = new AbortController();
    /** Announce a text to screen readers. @type {(text: string) => void} */
    this.announce = () => {};
  }

  /** The same files with another view. @param {import("./store.js").Shown} now @returns {Context} */
  with(now) {
    return Object.create(this, { store: { value: { now } } });
  }

  get now() {
    return this.store.now;
  }

  /** Whether there are too many files to show the facts of each. */
  get crowded() {
    return this.files.length > 2;
  }

  /**
   * The devices shown: the same number in all files, except for files that have no data there. Each rank on a node, for
   * example, may have used another device.
   * @param {number} [source]
   */
  where(source = this.now.source) {
    const alone = this.files.length === 1;
    const devices = this.files.map((file) => {
      const device = file.devices[this.now.device];
      const used = device && (alone || device.events || device.peak.bytes || device.segments);
      return used ? this.now.device : busiestDevice(file);
    });
    return { source, device: devices[source] ?? 0, devices };
  }

  /** The device to begin with: the one with the highest peak in all files, or -1 if the files differ. */
  get home() {
    const [first, ...others] = this.files.map(busiestDevice);
    return others.every((device) => device === first) ? first : -1;
  }

  /** @param {number} [source] @returns {DeviceFacts} */
  facts(source = this.now.source) {
    return this.files[source].devices[this.where(source).device];
  }

  /** The event of the cursor. @param {number} [source] */
  event(source = this.now.source) {
    const facts = this.facts(source);
    const { event } = this.now;
    return event === null || source !== this.now.source ? facts.peak.event : Math.min(event, facts.events - 1);
  }

  /** @param {string} name @param {object} [request] @param {number} [source] @param {Transferable[]} [transfer] */
  request(name, request = {}, source = this.now.source, transfer = []) {
    return this.client.request(name, { ...this.where(source), ...request }, transfer);
  }

  /** @param {number} [source] @returns {Promise<Legend>} */
  async legend(source = this.now.source) {
    const { mode } = this.now;
    const key = `${source} ${this.where().devices} ${mode}`;
    return getOrCreate(this.legends, key, () => this.request("classes", { mode }, source));
  }

  /** The color of each class. @param {Legend} legend */
  swatches({ classes, ordered }) {
    return classes.map(({ place }) => swatch(this.theme, ordered, place, classes.length));
  }

  /** The color of each style. @param {Legend} legend */
  colors(legend) {
    return colors(this.theme, this.swatches(legend));
  }

  /** @param {number} [source] @returns {import("./engine/pane.js").Look} */
  look(source = this.now.source) {
    const { mode, hidden, mark } = this.now;
    // Codes of groups and rows have no meaning in another file
    const applies = source === this.now.source || mark.kind === "search";
    return { mode, hidden, mark: applies ? mark : { kind: "none" } };
  }

  /** The whole axis, for all files. @returns {[number, number]} */
  domain() {
    const domains = this.files.map((_, source) => this.facts(source).domains[this.axis()]);
    return [Math.min(...domains.map(([low]) => low)), Math.max(...domains.map(([, high]) => high))];
  }

  /** The time axis is available if all files have times. @returns {"event"|"time"} */
  axis() {
    return this.now.axis === "time" && this.files.every((_, source) => this.facts(source).timed) ? "time" : "event";
  }

  /** All bytes, on one scale for all files. @returns {[number, number]} */
  range() {
    let maximum = 0;
    for (const source of this.files.keys()) {
      const { peak, reserved, replay, levels } = this.facts(source);
      const own = Math.max(peak.bytes, reserved ?? 0);
      // Device memory that other processes fill must not flatten the picture: it is labeled at the upper edge instead
      const tops = [...levels.map(({ top }) => top), replay?.peak ?? 0].filter((top) => top < 4 * own);
      maximum = Math.max(maximum, own, ...tops);
    }
    return [0, maximum > 0 ? maximum * 1.08 : 1];
  }
}

/** The device with the highest peak; pinned host memory only if no device used memory. @param {Overview} file */
function busiestDevice(file) {
  const peaks = file.devices.map(({ index, peak, reserved }) => (index < 0 ? 0.5 : peak.bytes || (reserved ?? 0)));
  return Math.max(peaks.indexOf(Math.max(...peaks)), 0);
}
