/** What the kernel has told so far: levels by device, and the cells that ran. */

export const PARTS = /** @type {const} */ (["allocated", "cached", "outside", "others"]);
const FIGURES = [...PARTS, "used", "capacity"];
const KEPT = 3600;
const MOST_CELLS = 2000;

/**
 * @typedef {Record<string, (number|null)[]>} Columns
 * @typedef {{name: string, columns: Columns, own: boolean[]}} Series
 * @typedef {{number: number|null, begin: number, end: number, good: boolean}} Cell
 */

export class Course {
  constructor() {
    /** Seconds since 1970. @type {number[]} */
    this.time = [];
    /** @type {Map<string, Series>} */
    this.devices = new Map();
    /** @type {(number|null)[]} */
    this.rss = [];
    /** @type {number|null} */
    this.total = null;
    this.every = 1;
    /** @type {Cell[]} */
    this.cells = [];
    /** @type {{number: number|null, begin: number}|null} */
    this.running = null;
    /** @type {Record<string, string>} */
    this.labels = {};
  }

  /** What was followed before this page looked; what came since stays behind it. @param {any} past */
  fill(past) {
    const before = this.time.length ? this.time[0] : Number.POSITIVE_INFINITY;
    const later = this.points();
    this.every = past.every;
    this.labels = past.labels ?? {};
    const keep = past.time.filter((/** @type {number} */ time) => time < before).length;
    this.time = past.time.slice(0, keep);
    this.rss = past.rss.slice(0, keep);
    this.total = past.total ?? this.total;
    this.devices = new Map();
    for (const [name, told] of Object.entries(past.devices)) {
      const columns = Object.fromEntries(FIGURES.map((figure) => [figure, told[figure].slice(0, keep)]));
      this.devices.set(name, { name, columns, own: told.own.slice(0, keep) });
    }
    const known = this.cells;
    this.cells = [];
    this.#learn(past.cells);
    for (const cell of known) this.#learn([[cell.number, cell.begin, cell.end, cell.good]]);
    if (!later.length) this.#run(past.running);
    for (const point of later) this.#append(point);
  }

  /** One instant more. @param {any} point */
  add(point) {
    if (this.time.length && point.time <= this.time[this.time.length - 1]) return;
    this.#append(point);
    this.#learn(point.cells);
    this.#run(point.running);
    const old = this.time.findIndex((time) => time >= point.time - KEPT);
    if (old > 60) this.#forget(old);
  }

  /** @param {any} point */
  #append(point) {
    const count = this.time.length;
    this.time.push(point.time);
    this.rss.push(point.rss);
    this.total = point.total ?? this.total;
    for (const name of Object.keys(point.devices)) {
      if (this.devices.has(name)) continue;
      const columns = Object.fromEntries(FIGURES.map((figure) => [figure, new Array(count).fill(null)]));
      this.devices.set(name, { name, columns, own: new Array(count).fill(true) });
    }
    for (const [name, { columns, own }] of this.devices) {
      const told = point.devices[name];
      for (const figure of FIGURES) columns[figure].push(told?.[figure] ?? null);
      own.push(told?.own ?? true);
    }
  }

  /** Every instant as it came. */
  points() {
    return this.time.map((time, i) => ({
      time,
      rss: this.rss[i],
      total: this.total,
      devices: Object.fromEntries(
        [...this.devices].map(([name, { columns, own }]) => [
          name,
          { own: own[i], ...Object.fromEntries(FIGURES.map((figure) => [figure, columns[figure][i]])) },
        ]),
      ),
    }));
  }

  /** @param {[number|null, number, number, boolean][]} cells */
  #learn(cells) {
    for (const [number, begin, end, good] of cells) {
      if (this.cells.some((one) => one.number === number && one.begin === begin)) continue;
      this.cells.push({ number, begin, end, good });
    }
    this.cells.sort((one, other) => one.begin - other.begin);
    if (this.cells.length > MOST_CELLS) this.cells.splice(0, this.cells.length - MOST_CELLS);
  }

  /** @param {[number|null, number]|null} told */
  #run(told) {
    this.running = told ? { number: told[0], begin: told[1] } : null;
  }

  /** @param {number} count */
  #forget(count) {
    this.time.splice(0, count);
    this.rss.splice(0, count);
    for (const { columns, own } of this.devices.values()) {
      for (const figure of FIGURES) columns[figure].splice(0, count);
      own.splice(0, count);
    }
    this.cells = this.cells.filter((cell) => cell.end >= this.time[0]);
  }

  /** The newest time; 0 while there is none. */
  get newest() {
    return this.time.length ? this.time[this.time.length - 1] : 0;
  }

  /** The place of the instant at a time, the last not after it; -1 before the first. @param {number} time */
  at(time) {
    let low = 0;
    let high = this.time.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.time[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
}
