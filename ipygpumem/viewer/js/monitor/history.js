/** The readings that the kernel has sent, by device, and the cells that ran. */

import { countWhile, getOrCreate } from "../data/collections.js";

/** Parts of device memory, from the bottom of the chart. */
export const PARTS = /** @type {const} */ (["allocated", "cached", "outside", "others"]);
const FIELDS = [...PARTS, "used", "capacity", "own"];
const SECONDS = 3600;
const MAX_CELLS = 2000;
const TRIM_BATCH = 60;

/**
 * @typedef {Record<string, any[]>} Columns bytes at each reading, null if unknown; own: `outside` counts this process alone
 * @typedef {{number: number|null, begin: number, end: number, good: boolean}} Cell good: it raised no error
 */

export class History {
  constructor() {
    /** Seconds since the Unix epoch. @type {number[]} */
    this.time = [];
    /** @type {Map<string, Columns>} */
    this.devices = new Map();
    /** Resident memory of the process. @type {(number|null)[]} */
    this.rss = [];
    /** Memory of the host. @type {number|null} */
    this.total = null;
    /** Seconds between two readings. */
    this.every = 1;
    /** @type {Cell[]} */
    this.cells = [];
    /** @type {{number: number|null, begin: number}|null} */
    this.running = null;
    /** Product names of the devices, by name. @type {Record<string, string>} */
    this.labels = {};
  }

  /** Add the readings from before this page was opened. @param {any} past columns, as `ipygpumem.viewer.monitor` sends them */
  prepend(past) {
    const first = this.time[0] ?? Number.POSITIVE_INFINITY;
    const before = past.time.filter((/** @type {number} */ time) => time < first).length;
    const after = this.time.length;
    if (!after) this.#setRunning(past.running);
    /** @type {(earlier: any[]|undefined, later: any[]|undefined) => any[]} */
    const join = (earlier = unknown(before), later = unknown(after)) => [...earlier.slice(0, before), ...later];
    const { devices } = this;
    const names = new Set([...Object.keys(past.devices), ...devices.keys()]);
    const columns = (/** @type {string} */ name) =>
      Object.fromEntries(FIELDS.map((field) => [field, join(past.devices[name]?.[field], devices.get(name)?.[field])]));
    this.devices = new Map(Array.from(names, (name) => [name, columns(name)]));
    this.time = join(past.time, this.time);
    this.rss = join(past.rss, this.rss);
    this.total ??= past.total ?? null;
    this.every = past.every;
    this.labels = past.labels ?? {};
    this.#addCells(past.cells);
  }

  /** Add the newest reading. @param {any} reading */
  add(reading) {
    if (this.time.length && reading.time <= this.newest) return;
    const count = this.time.length;
    this.time.push(reading.time);
    this.rss.push(reading.rss);
    this.total = reading.total ?? this.total;
    for (const name of Object.keys(reading.devices))
      getOrCreate(this.devices, name, () => Object.fromEntries(FIELDS.map((field) => [field, unknown(count)])));
    for (const [name, columns] of this.devices)
      for (const field of FIELDS) columns[field].push(reading.devices[name]?.[field] ?? null);
    this.#addCells(reading.cells);
    this.#setRunning(reading.running);
    const expired = this.time.findIndex((time) => time >= reading.time - SECONDS);
    if (expired > TRIM_BATCH) this.#trim(expired);
  }

  /** @param {[number|null, number, number, boolean][]} cells */
  #addCells(cells) {
    for (const [number, begin, end, good] of cells) {
      if (this.cells.some((cell) => cell.number === number && cell.begin === begin)) continue;
      this.cells.push({ number, begin, end, good });
    }
    this.cells.sort((a, b) => a.begin - b.begin);
    if (this.cells.length > MAX_CELLS) this.cells.splice(0, this.cells.length - MAX_CELLS);
  }

  /** @param {[number|null, number]|null} cell */
  #setRunning(cell) {
    this.running = cell ? { number: cell[0], begin: cell[1] } : null;
  }

  /** @param {number} count of readings to remove */
  #trim(count) {
    this.time.splice(0, count);
    this.rss.splice(0, count);
    for (const columns of this.devices.values()) for (const field of FIELDS) columns[field].splice(0, count);
    this.cells = this.cells.filter((cell) => cell.end >= this.time[0]);
  }

  /** The time of the newest reading, 0 before the first. */
  get newest() {
    return this.time.at(-1) ?? 0;
  }

  /** The index of the last reading up to a time; -1 before the first. @param {number} time */
  at(time) {
    return countWhile(this.time.length, (i) => this.time[i] <= time) - 1;
  }
}

/** @param {number} count of readings */
function unknown(count) {
  return new Array(count).fill(null);
}
