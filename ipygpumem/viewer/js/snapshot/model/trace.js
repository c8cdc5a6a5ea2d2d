/** The columns of one device: its events and its allocations, in the order of their beginning. */

/**
 * @typedef {import("../../data/decode.js").Column} Column
 * @typedef {(name: string) => Column|undefined} Columns
 */

export const ACTION = /** @type {const} */ ({
  ALLOC: 0,
  FREE_REQUESTED: 1,
  FREE_COMPLETED: 2,
  SEGMENT_ALLOC: 3,
  SEGMENT_FREE: 4,
  MAP: 5,
  UNMAP: 6,
  OOM: 7,
  SNAPSHOT: 8,
  ANNOTATE: 9,
  OTHER: 10,
});

/** The start of what is older than the first event. */
export const BEFORE = -1;

/** @typedef {{values: Float64Array, base: bigint}} Exact */

/**
 * @template {Uint8Array | Int32Array | Float64Array} T
 * @param {Columns} columns @param {string} name @param {new (count: number) => T} Type
 * @returns {T}
 */
export function read(columns, name, Type) {
  return columns(name)?.into(Type) ?? new Type(0);
}

/**
 * Events: one entry per event in each column. Columns that no first picture needs are made when they are asked for.
 */
export class Trace {
  /** @param {Columns} columns @param {number} device */
  constructor(columns, device) {
    this.columns = columns;
    this.prefix = `trace/${device}`;
    /** @type {Record<string, any>} */
    this.made = {};
    /** What is taken off each address of a snapshot, where they do not fit into doubles. */
    this.base = 0n;
    this.action = read(columns, `${this.prefix}/action`, Uint8Array);
    this.size = read(columns, `${this.prefix}/size`, Float64Array);
    /** Microseconds since 1970; -1 in a file without times. */
    this.time = read(columns, `${this.prefix}/time`, Float64Array);
    this.length = this.action.length;
    this.timed = this.length > 0 && this.time[0] >= 0;
    /** Where times count from: the first event, or earlier, where a file is beside another one. */
    this.origin = this.timed ? this.time[0] : 0;
  }

  /** Addresses, less `base`. @returns {Float64Array} */
  get address() {
    this.made.address ??= addresses(this.columns, this.prefix, this.base).values;
    return this.made.address;
  }

  get stream() {
    this.made.stream ??= read(this.columns, `${this.prefix}/stream`, Float64Array);
    return /** @type {Float64Array} */ (this.made.stream);
  }

  get stack() {
    return this.numbers("stack");
  }

  get context() {
    return this.numbers("context");
  }

  get metadata() {
    return this.numbers("metadata");
  }

  get pool() {
    return this.numbers("pool");
  }

  /** @param {string} name @returns {Int32Array} */
  numbers(name) {
    this.made[name] ??= read(this.columns, `${this.prefix}/${name}`, Int32Array);
    return this.made[name];
  }

  /** The events with one of these actions. @param {...number} actions */
  events(...actions) {
    const found = [];
    for (let event = 0; event < this.length; event++) if (actions.includes(this.action[event])) found.push(event);
    return Int32Array.from(found);
  }

  /** The last event up to a time; -1 for none. @param {number} time */
  at(time) {
    let low = 0;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.time[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
}

/**
 * A column of addresses, less a base; without one as they come.
 * @param {Columns} columns @param {string} table @param {bigint} [base]
 * @returns {Exact}
 */
export function addresses(columns, table, base) {
  const found = columns(`${table}/address`)?.exact() ?? { values: new Float64Array(0), base: base ?? 0n };
  return base === undefined ? found : { values: shifted(found, base), base };
}

/** @param {Exact} exact @param {bigint} base */
export function shifted(exact, base) {
  const by = Number(exact.base - base);
  return by ? exact.values.map((value) => value + by) : exact.values;
}

/** Allocations by their beginning: those older than the first event first. */
export class Allocations {
  /** @param {Columns} columns @param {number} device */
  constructor(columns, device) {
    const name = `allocations/${device}`;
    const { values, base } = addresses(columns, name);
    /** Addresses, less `base`. */
    this.address = values;
    this.base = base;
    this.size = read(columns, `${name}/size`, Float64Array);
    this.start = read(columns, `${name}/start`, Int32Array);
    this.stack = read(columns, `${name}/stack`, Int32Array);
    this.block = read(columns, `${name}/block`, Int32Array);
    /** The event that asked for the free. */
    this.asked = read(columns, `${name}/asked_after`, Int32Array);
    /** The event from which on it is gone; the number of events if it lives at the end. */
    this.end = read(columns, `${name}/freed_after`, Int32Array);
    this.length = this.start.length;
    for (let row = 0; row < this.length; row++) {
      this.asked[row] += this.start[row];
      this.end[row] += this.asked[row];
    }
    /** @type {Int32Array|undefined} */
    this.counts = undefined;
  }

  /** How many allocations the file shows at the same address before each. */
  get nth() {
    return this.count();
  }

  count() {
    if (!this.counts) {
      /** @type {Map<number, number>} */
      const seen = new Map();
      this.counts = new Int32Array(this.length);
      for (let row = 0; row < this.length; row++) {
        const address = this.address[row];
        const before = seen.get(address) ?? 0;
        this.counts[row] = before;
        seen.set(address, before + 1);
      }
    }
    return this.counts;
  }

  /** The name that PyTorch's documentation gives it: `b7f064c000000_0`. @param {number} row */
  name(row) {
    return `b${this.addressText(row)}_${this.counts ? this.counts[row] : this.before(row)}`;
  }

  /** How many rows before one have its address: for a single name a walk is quicker than counting all. @param {number} row */
  before(row) {
    const { address } = this;
    let count = 0;
    for (let other = 0; other < row; other++) if (address[other] === address[row]) count++;
    return count;
  }

  /** Hexadecimal, without 0x. @param {number} row */
  addressText(row) {
    return (BigInt(this.address[row]) + this.base).toString(16);
  }

  /** The first row that begins after an event. @param {number} event */
  after(event) {
    let low = 0;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.start[middle] <= event) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
