/** What all views of one viewer share. */

import { remember } from "../data/collections.js";
import { colors, swatch } from "./palette.js";

/**
 * @typedef {import("./engine/overview.js").Overview} Overview
 * @typedef {import("./engine/overview.js").DeviceFacts} DeviceFacts
 * @typedef {{mode: string, ordered: boolean, classes: import("./engine/classes.js").Class[]}} Legend
 */

export class Context {
  /**
   * @param {import("./client.js").Client} client @param {import("./store.js").Store} store
   * @param {HTMLElement} root the element that holds all of the viewer
   */
  constructor(client, store, root) {
    this.client = client;
    this.store = store;
    this.root = root;
    /** @type {Overview[]} */
    this.files = [];
    /** @type {import("./palette.js").Theme} */
    this.theme = "light";
    /** @type {Map<string, Promise<Legend>>} */
    this.legends = new Map();
    /** Whether the view has an address. */
    this.linkable = false;
    this.stop = new AbortController();
    /** Words for a screen reader. @type {(text: string) => void} */
    this.say = () => {};
  }

  /** The same files, as if something else was shown. @param {import("./store.js").Shown} now @returns {Context} */
  at(now) {
    return Object.create(this, { store: { value: { now } } });
  }

  get now() {
    return this.store.now;
  }

  /** Whether there are so many files that what is told of each of them would be too much. */
  get crowd() {
    return this.files.length > 2;
  }

  /**
   * The device shown of a source, and those of all: the same number in all, but for files that have nothing there. Of a
   * node's ranks each has used a card of its own.
   * @param {number} [source]
   */
  where(source = this.now.source) {
    const alone = this.files.length === 1;
    const devices = this.files.map((file) => {
      const one = file.devices[this.now.device];
      return one && (alone || one.events || one.peak.bytes || one.segments) ? this.now.device : busiest(file);
    });
    return { source, device: devices[source] ?? 0, devices };
  }

  /** The device to begin with: the busiest of all files, or of each its own. */
  get home() {
    const [first, ...others] = this.files.map(busiest);
    return others.every((one) => one === first) ? first : -1;
  }

  /** @param {number} [source] @returns {DeviceFacts} */
  facts(source = this.now.source) {
    return this.files[source].devices[this.where(source).device];
  }

  /** The cursor's event. @param {number} [source] */
  event(source = this.now.source) {
    const facts = this.facts(source);
    const { event } = this.now;
    return event === null || source !== this.now.source ? facts.peak.event : Math.min(event, facts.events - 1);
  }

  /** @param {string} name @param {object} [request] @param {number} [source] @param {Transferable[]} [transfer] */
  ask(name, request = {}, source = this.now.source, transfer = []) {
    return this.client.request(name, { ...this.where(source), ...request }, transfer);
  }

  /** @param {number} [source] @returns {Promise<Legend>} */
  async legend(source = this.now.source) {
    const { mode } = this.now;
    const key = `${source} ${this.where().devices} ${mode}`;
    return remember(this.legends, key, () => this.ask("classes", { mode }, source));
  }

  /** The color of each class. @param {Legend} legend */
  swatches(legend) {
    const { classes, ordered } = legend;
    return classes.map((one) => swatch(this.theme, ordered, one.place, classes.length));
  }

  /** @param {Legend} legend */
  colors(legend) {
    return colors(this.theme, this.swatches(legend));
  }

  /** @param {number} [source] @returns {import("./engine/engine.js").Look} */
  look(source = this.now.source) {
    const { mode, hidden, mark } = this.now;
    // numbers of lines and allocations mean nothing in the other file
    const told = source === this.now.source || mark.kind === "search";
    return { mode, hidden, mark: told ? mark : { kind: "none" } };
  }

  /** The whole axis, of all sources. @returns {[number, number]} */
  domain() {
    const all = this.files.map((_, source) => this.facts(source).domains[this.axis()]);
    return [Math.min(...all.map(([low]) => low)), Math.max(...all.map(([, high]) => high))];
  }

  /** By time only where the files have times. @returns {"event"|"time"} */
  axis() {
    return this.now.axis === "time" && this.files.every((_, source) => this.facts(source).timed) ? "time" : "event";
  }

  /** All bytes, of all sources: one scale. @returns {[number, number]} */
  range() {
    let most = 0;
    for (const source of this.files.keys()) {
      const facts = this.facts(source);
      const here = Math.max(facts.peak.bytes, facts.reserved ?? 0);
      most = Math.max(most, here);
      for (const level of facts.levels) {
        // a card full of other people's memory must not flatten the picture: it is named at the edge instead
        if (level.top < 4 * here) most = Math.max(most, level.top);
      }
    }
    return [0, most > 0 ? most * 1.08 : 1];
  }
}

/** The device with the highest peak. @param {Overview} file */
function busiest(file) {
  const peaks = file.devices.map((one) => one.peak.bytes || (one.reserved ?? 0));
  return Math.max(peaks.indexOf(Math.max(...peaks)), 0);
}
