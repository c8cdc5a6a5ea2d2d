/** The readings that the kernel has sent, by device, and the cells that ran. */

import { countWhile } from "../data/collections.js";

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
    const later = this.readings();
    const cells = this.cells;
    const count = past.time.filter((/** @type {number} */ time) => time < first).length;
    this.every = past.every;
    this.labels = past.labels ?? {};
    this.time = past.time.slice(0, count);
    this.rss = past.rss.slice(0, count);
    this.total = past.total ?? this.total;
    this.devices = new Map(
      Object.entries(past.devices).map(([name, series]) => [
        name,
        Object.fromEntries(FIELDS.map((field) => [field, series[field].slice(0, count)])),
      ]),
    );
    this.cells = [];
    this.#addCells(past.cells);
    this.#addCells(cells.map(({ number, begin, end, good }) => [number, begin, end, good]));
    if (!later.length) this.#setRunning(past.running);
    for (const reading of later) this.#append(reading);
  }

  /** Add the newest reading. @param {any} reading */
  add(reading) {
    if (this.time.length && reading.time <= this.newest) return;
    this.#append(reading);
    this.#addCells(reading.cells);
    this.#setRunning(reading.running);
    const expired = this.time.findIndex((time) => time >= reading.time - SECONDS);
    if (expired > TRIM_BATCH) this.#trim(expired);
  }

  /** @param {any} reading */
  #append(reading) {
    const count = this.time.length;
    this.time.push(reading.time);
    this.rss.push(reading.rss);
    this.total = reading.total ?? this.total;
    for (const name of Object.keys(reading.devices)) {
      if (this.devices.has(name)) continue;
      this.devices.set(name, Object.fromEntries(FIELDS.map((field) => [field, new Array(count).fill(null)])));
    }
    for (const [name, columns] of this.devices)
      for (const field of FIELDS) columns[field].push(reading.devices[name]?.[field] ?? null);
  }

  /** All readings, in the form in which they arrived. */
  readings() {
    return this.time.map((time, i) => ({
      time,
      rss: this.rss[i],
      total: this.total,
      devices: Object.fromEntries(
        [...this.devices].map(([name, columns]) => [
          name,
          Object.fromEntries(FIELDS.map((field) => [field, columns[field][i]])),
        ]),
      ),
    }));
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
