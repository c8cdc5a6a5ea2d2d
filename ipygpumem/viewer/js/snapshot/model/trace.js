/** The columns of one device: its events, and its allocations ordered by start. */

import { addressKey, countWhile } from "../../data/collections.js";

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

/** The start of allocations that are older than the first event. */
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
 * Events: one entry per event in each column. Columns that the first drawing does not need are read on first use.
 */
export class Trace {
  /** @param {Columns} columns @param {number} device */
  constructor(columns, device) {
    this.columns = columns;
    this.prefix = `trace/${device}`;
    /** @type {Record<string, any>} */
    this.cache = {};
    /** Addresses are stored relative to this base, because large ones do not fit into doubles. */
    this.base = 0n;
    this.action = read(columns, `${this.prefix}/action`, Uint8Array);
    this.size = read(columns, `${this.prefix}/size`, Float64Array);
    /** Microseconds since the Unix epoch; -1 in a file without times. */
    this.time = read(columns, `${this.prefix}/time`, Float64Array);
    this.length = this.action.length;
    this.timed = this.length > 0 && this.time[0] >= 0;
    /** The origin of times: the first event, or an earlier time that several files share. */
    this.origin = this.timed ? this.time[0] : 0;
  }

  /** Addresses relative to `base`. @returns {Float64Array} */
  get address() {
    this.cache.address ??= addresses(this.columns, this.prefix, this.base).values;
    return this.cache.address;
  }

  get stream() {
    this.cache.stream ??= read(this.columns, `${this.prefix}/stream`, Float64Array);
    return /** @type {Float64Array} */ (this.cache.stream);
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
    this.cache[name] ??= read(this.columns, `${this.prefix}/${name}`, Int32Array);
    return this.cache[name];
  }

  /** The events with one of these actions. @param {...number} actions */
  events(...actions) {
    const events = [];
    for (let event = 0; event < this.length; event++) if (actions.includes(this.action[event])) events.push(event);
    return Int32Array.from(events);
  }

  /** The last event up to a time; -1 if there is none. @param {number} time */
  at(time) {
    return countWhile(this.length, (event) => this.time[event] <= time) - 1;
  }
}

/**
 * A column of addresses relative to a base, by default to the base of the column.
 * @param {Columns} columns @param {string} table @param {bigint} [base]
 * @returns {Exact}
 */
export function addresses(columns, table, base) {
  const exact = columns(`${table}/address`)?.exact() ?? { values: new Float64Array(0), base: base ?? 0n };
  return base === undefined ? exact : { values: shifted(exact, base), base };
}

/** @param {Exact} exact @param {bigint} base */
export function shifted(exact, base) {
  const by = Number(exact.base - base);
  return by ? exact.values.map((value) => value + by) : exact.values;
}

/** Allocations ordered by start: those older than the first event come first. */
export class Allocations {
  /** @param {Columns} columns @param {number} device */
  constructor(columns, device) {
    const name = `allocations/${device}`;
    const { values, base } = addresses(columns, name);
    /** Addresses relative to `base`. */
    this.address = values;
    this.base = base;
    this.size = read(columns, `${name}/size`, Float64Array);
    this.start = read(columns, `${name}/start`, Int32Array);
    this.stack = read(columns, `${name}/stack`, Int32Array);
    this.block = read(columns, `${name}/block`, Int32Array);
    /** The event that requested the free. */
    this.freeRequested = read(columns, `${name}/free_requested_after`, Int32Array);
    /** The event that completed the free; the number of events if it is alive at the end. */
    this.end = read(columns, `${name}/freed_after`, Int32Array);
    this.length = this.start.length;
    for (let row = 0; row < this.length; row++) {
      this.freeRequested[row] += this.start[row];
      this.end[row] += this.freeRequested[row];
    }
    /** @type {Int32Array|undefined} */
    this.counts = undefined;
    this.columns = columns;
    this.prefix = name;
    /** @type {Float64Array|undefined} */
    this.remainders = undefined;
    /** 1 for blocks that may be larger than in a replay; undefined if there are none. @type {Uint8Array|undefined} */
    this.uncertain = columns(`${name}/uncertain`)?.into(Uint8Array);
  }

  /** The size of each block minus the requested size rounded up to 512 bytes, from a replay; undefined if unknown. */
  get remainder() {
    this.remainders ??= this.columns(`${this.prefix}/remainder`)?.into(Float64Array);
    return this.remainders;
  }

  /** The number of earlier allocations at the same address, for each row. */
  countAddresses() {
    if (!this.counts) {
      /** By `addressKey`. @type {Map<number, number>} */
      const totals = new Map();
      this.counts = new Int32Array(this.length);
      for (let row = 0; row < this.length; row++) {
        const key = addressKey(this.address[row]);
        const before = totals.get(key) ?? 0;
        this.counts[row] = before;
        totals.set(key, before + 1);
      }
    }
    return this.counts;
  }

  /** The name as in PyTorch's memory visualizer, `b7f064c000000_0`. @param {number} row */
  name(row) {
    return `b${this.addressText(row)}_${this.counts ? this.counts[row] : this.before(row)}`;
  }

  /** The same number for a single row, without counting all addresses. @param {number} row */
  before(row) {
    const { address } = this;
    let count = 0;
    for (let previous = 0; previous < row; previous++) if (address[previous] === address[row]) count++;
    return count;
  }

  /** Hexadecimal, without 0x. @param {number} row */
  addressText(row) {
    return (BigInt(this.address[row]) + this.base).toString(16);
  }

  /** The first row that begins after an event. @param {number} event */
  after(event) {
    return countWhile(this.length, (row) => this.start[row] <= event);
  }
}
