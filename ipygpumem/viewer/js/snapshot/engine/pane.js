/** One device of one snapshot, with results that several requests share. */

import { getOrCreate, rememberLast } from "../../data/collections.js";
import { SegmentHistory } from "../model/segment-history.js";
import { classify } from "./classes.js";
import { aliveBetween } from "./groups.js";
import { HIDDEN } from "./rasterize.js";
import { search } from "./search.js";

/**
 * @typedef {{kind: "none"} | {kind: "group", key: string, code: number} | {kind: "search", text: string}} Mark
 * @typedef {{text: string, actions: number[]|null}} Filter of the list of events
 * @typedef {object} Look what decides the style of each allocation
 * @property {string} mode color by
 * @property {number[]} hidden classes that the legend hides
 * @property {Mark} mark what is highlighted; everything else is dimmed
 */

export class Pane {
  /**
   * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device
   * @param {import("./classes.js").Side[]} beside other files, which use the same colors
   */
  constructor(snapshot, device, beside) {
    this.snapshot = snapshot;
    this.device = device;
    this.beside = beside;
    /** @type {Map<string, import("./classes.js").Classes>} */
    this.classes = new Map();
    this.search = rememberLast((/** @type {string} */ text) => search(snapshot, device, text));
    /** The style of each allocation; `palette.js` describes styles. */
    this.styles = rememberLast((/** @type {Look} */ look) => this.computeStyles(look));
    /** Events that pass a filter. */
    this.filter = rememberLast((/** @type {Filter} */ filter) => this.filterEvents(filter));
    /** @type {SegmentHistory|undefined} */
    this.segments = undefined;
  }

  /** @param {string} mode @returns {import("./classes.js").Classes} */
  classify(mode) {
    return getOrCreate(this.classes, mode, () => classify(this.snapshot, this.device, mode, this.beside));
  }

  /** @param {Look} look */
  computeStyles({ mode, hidden, mark }) {
    const marked = this.marked(mark);
    return this.classify(mode).of.map((number, row) =>
      hidden.includes(number) ? HIDDEN : 4 * number + (row & 1) + (marked && !marked[row] ? 2 : 0),
    );
  }

  /** 1 for each row that is highlighted; undefined if there is no mark. @param {Mark} mark @returns {Uint8Array|undefined} */
  marked(mark) {
    if (mark.kind === "search") return this.search(mark.text).rows;
    if (mark.kind === "group") {
      const { codes } = this.snapshot.key(this.device, mark.key);
      return Uint8Array.from(codes, (code) => (code === mark.code ? 1 : 0));
    }
    return undefined;
  }

  history() {
    this.segments ??= new SegmentHistory(this.snapshot, this.device);
    return this.segments;
  }

  /** Rows alive at an event or within a range. @param {{event: number, range: [number, number]|null}} where */
  rows({ event, range }) {
    return range ? aliveBetween(this.device, range[0], range[1]) : this.device.checkpoints.live(event);
  }

  /** @param {Filter} filter */
  filterEvents({ text, actions }) {
    const { action } = this.device.trace;
    const hits = text ? this.search(text).events : undefined;
    const events = new Int32Array(action.length);
    let count = 0;
    for (let event = 0; event < action.length; event++) {
      if ((!hits || hits[event]) && (!actions || actions.includes(action[event]))) events[count++] = event;
    }
    return events.slice(0, count);
  }

  /**
   * The allocations less than one pixel high that are drawn together around a height of a column.
   * @param {{event: number, low: number, high: number, scale: number, look: Look}} place
   */
  thinGroup({ event, low, high, scale, look }) {
    const styles = this.styles(look);
    const { size } = this.device.allocations;
    let sum = 0;
    let group = { count: 0, bytes: 0 };
    for (const row of this.device.checkpoints.live(event)) {
      if (styles[row] === HIDDEN) continue;
      if (size[row] * scale < 1) {
        group.count++;
        group.bytes += size[row];
      } else {
        if (group.count && sum >= low) break;
        group = { count: 0, bytes: 0 };
      }
      sum += size[row];
      if (!group.count && sum > high) break;
    }
    return group;
  }

  /** The allocation that an event is about; -1 if there is none. @param {number} event */
  rowOf(event) {
    const { allocations, trace, checkpoints } = this.device;
    if (event < 0 || event >= trace.length || trace.action[event] > 2) return -1;
    if (trace.action[event] === 0) {
      const row = allocations.after(event - 1);
      return allocations.start[row] === event ? row : -1;
    }
    for (const row of checkpoints.live(event - 1))
      if (allocations.freeRequested[row] === event || allocations.end[row] === event) return row;
    return -1;
  }
}
