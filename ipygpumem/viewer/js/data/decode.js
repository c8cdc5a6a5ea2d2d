/**
 * Decodes a header and columns of integers, as `ipygpumem.snapshot` encodes them.
 *
 * Columns become typed arrays. Numbers beyond 2^53 do not fit into doubles, so they are stored relative to a `base`.
 */

/**
 * @typedef {{name: string, coding: "plain"|"delta"|"dict", first?: number|string, values?: number[], width: number,
 *   count: number, bytes: number}} ColumnFacts
 * @typedef {{[name: string]: any, columns: ColumnFacts[]}} Header
 */

import { inflate } from "./bytes.js";
import { ViewerError } from "./errors.js";

const MAGIC = "ipgmsnap";
const LENGTH = 4;
const LARGEST_EXACT = 2 ** 53;

/**
 * The numbers that are stored as byte planes, the lowest bytes first.
 * @param {Uint8Array} planes
 * @param {number} width bytes per number
 * @param {number} count
 */
function numbers(planes, width, count) {
  if (width === 1) return new Int8Array(planes.buffer, planes.byteOffset, count);
  if (width === 2) {
    const values = new Int16Array(count);
    for (let i = 0; i < count; i++) values[i] = planes[i] | (planes[count + i] << 8);
    return values;
  }
  const low = new Int32Array(count);
  const [two, three] = [2 * count, 3 * count];
  for (let i = 0; i < count; i++) {
    low[i] = planes[i] | (planes[count + i] << 8) | (planes[two + i] << 16) | (planes[three + i] << 24);
  }
  if (width === 4) return low;
  const values = new Float64Array(count);
  for (let i = 0; i < count; i++) values[i] = (low[i] >>> 0) + high(planes, count, i) * 4294967296;
  return values;
}

/** @param {Uint8Array} planes @param {number} count @param {number} i */
function high(planes, count, i) {
  return (
    planes[4 * count + i] | (planes[5 * count + i] << 8) | (planes[6 * count + i] << 16) | (planes[7 * count + i] << 24)
  );
}

/** @param {Uint8Array} planes @param {number} count @param {number} i */
function bigint(planes, count, i) {
  let low = 0;
  for (let plane = 3; plane >= 0; plane--) low = low * 256 + planes[plane * count + i];
  return (BigInt(high(planes, count, i)) << 32n) + BigInt(low);
}

/** One decompressed column. */
export class Column {
  /** @param {ColumnFacts} facts @param {Uint8Array} planes */
  constructor(facts, planes) {
    this.facts = facts;
    this.planes = planes;
    if (planes.length !== facts.width * facts.count) {
      throw new ViewerError(`The data in this page is damaged: the column ${facts.name} has the wrong length.`);
    }
  }

  /**
   * Write the values into a typed array.
   * @template {Uint8Array | Int32Array | Float64Array} T
   * @param {new (count: number) => T} Type
   * @returns {T}
   */
  into(Type) {
    const { coding, count, width, first, values } = this.facts;
    const raw = numbers(this.planes, width, count);
    const result = new Type(count);
    if (coding === "delta") {
      let value = Number(first);
      for (let i = 0; i < count; i++) result[i] = value += raw[i];
    } else if (coding === "dict") {
      const table = /** @type {number[]} */ (values);
      for (let i = 0; i < count; i++) result[i] = table[raw[i]];
    } else {
      result.set(raw);
    }
    return result;
  }

  /**
   * Exact values as doubles relative to `base`, which is 0 if all are below 2^53.
   * @returns {{values: Float64Array, base: bigint}}
   */
  exact() {
    const { coding, count, width, first } = this.facts;
    if (coding === "delta") {
      const start = BigInt(first ?? 0);
      const raw = numbers(this.planes, width, count);
      const values = new Float64Array(count);
      let value = 0;
      let maximum = 0;
      for (let i = 0; i < count; i++) {
        value += raw[i];
        values[i] = value;
        if (value > maximum) maximum = value;
      }
      if (start + BigInt(maximum) >= BigInt(LARGEST_EXACT)) return { values, base: start };
      const add = Number(start);
      for (let i = 0; i < count; i++) values[i] += add;
      return { values, base: 0n };
    }
    const values = this.into(Float64Array);
    if (coding === "plain" && width === 8 && values.some((value) => value >= LARGEST_EXACT)) {
      const wide = Array.from({ length: count }, (_, i) => bigint(this.planes, count, i));
      const base = wide.reduce((low, value) => (value > 0n && value < low ? value : low), 1n << 63n);
      return { values: Float64Array.from(wide, (value) => Number(value - base)), base };
    }
    return { values, base: 0n };
  }
}

/** Columns that the first picture does not need: they are decompressed after it. */
const LATER = /^(trace\/-?\d+\/(address|stream|stack|context|metadata|pool)|replay\/\d+\/(address|size))$/;

/**
 * @param {ArrayBuffer} data
 * @param {() => Promise<void>} [pause] called in between, so that a page without workers stays responsive
 * @returns {Promise<{header: Header, column: (name: string) => Column|undefined, decompressLater: () => Promise<void>}>}
 *   column: each one can be read once; decompressLater: decompresses those that the first picture does not need
 */
export async function decode(data, pause) {
  const bytes = new Uint8Array(data);
  const begin = MAGIC.length + LENGTH;
  if (bytes.length < begin || String.fromCharCode(...bytes.subarray(0, MAGIC.length)) !== MAGIC) {
    throw new ViewerError("The data in this page is not in the format of ipygpumem. Create the page again.");
  }
  let offset = begin + new DataView(data).getUint32(MAGIC.length, true);
  const text = new TextDecoder().decode(await inflate(bytes.slice(begin, offset)));
  const header = /** @type {Header} */ (JSON.parse(text));
  /** @type {Map<string, Column>} */
  const columns = new Map();
  const parts = header.columns.map((facts) => {
    const part = { facts, compressed: bytes.slice(offset, offset + facts.bytes) };
    offset += facts.bytes;
    return part;
  });
  if (offset > bytes.length)
    throw new ViewerError("The data in this page is damaged: the end is missing. Create the page again.");
  const decompress = async (/** @type {typeof parts} */ some) => {
    // Short columns are not compressed, because starting a decompression takes a millisecond
    const stored = (/** @type {typeof parts[number]} */ { facts, compressed }) =>
      compressed.length === facts.width * facts.count;
    const planes = await Promise.all(some.map((part) => (stored(part) ? part.compressed : inflate(part.compressed))));
    for (const [i, { facts }] of some.entries()) columns.set(facts.name, new Column(facts, planes[i]));
    await pause?.();
  };
  await decompress(parts.filter(({ facts }) => !LATER.test(facts.name)));
  return {
    header,
    column: (name) => {
      const result = columns.get(name);
      columns.delete(name); // frees its memory
      return result;
    },
    decompressLater: () => decompress(parts.filter(({ facts }) => LATER.test(facts.name))),
  };
}
