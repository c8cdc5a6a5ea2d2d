/**
 * The encoded snapshot, as `ipygpumem.snapshot.export.encode` writes it: header and columns.
 *
 * Columns of whole numbers become typed arrays. Numbers beyond 2^53, which no double holds, keep their differences: each
 * wide column has a `base` that was taken off.
 */

/**
 * @typedef {{name: string, coding: "plain"|"delta"|"dict", first?: number|string, values?: number[], width: number,
 *   count: number, bytes: number}} Described
 * @typedef {{[name: string]: any, columns: Described[]}} Header
 */

import { inflate } from "./bytes.js";
import { ViewerError } from "./errors.js";

const MAGIC = "ipgmsnap";
const LENGTH = 4;
const LARGEST_EXACT = 2 ** 53;

/**
 * The numbers of byte planes: low bytes first.
 * @param {Uint8Array} planes
 * @param {number} width bytes per number
 * @param {number} count
 */
function numbers(planes, width, count) {
  if (width === 1) return new Int8Array(planes.buffer, planes.byteOffset, count);
  if (width === 2) {
    const found = new Int16Array(count);
    for (let i = 0; i < count; i++) found[i] = planes[i] | (planes[count + i] << 8);
    return found;
  }
  const low = new Int32Array(count);
  const [two, three] = [2 * count, 3 * count];
  for (let i = 0; i < count; i++) {
    low[i] = planes[i] | (planes[count + i] << 8) | (planes[two + i] << 16) | (planes[three + i] << 24);
  }
  if (width === 4) return low;
  const found = new Float64Array(count);
  for (let i = 0; i < count; i++) found[i] = (low[i] >>> 0) + high(planes, count, i) * 4294967296;
  return found;
}

/** @param {Uint8Array} planes @param {number} count @param {number} i */
function high(planes, count, i) {
  return (
    planes[4 * count + i] | (planes[5 * count + i] << 8) | (planes[6 * count + i] << 16) | (planes[7 * count + i] << 24)
  );
}

/** @param {Uint8Array} planes @param {number} count @param {number} i */
function whole(planes, count, i) {
  let low = 0;
  for (let plane = 3; plane >= 0; plane--) low = low * 256 + planes[plane * count + i];
  return (BigInt(high(planes, count, i)) << 32n) + BigInt(low);
}

/** One unpacked column. */
export class Column {
  /** @param {Described} facts @param {Uint8Array} planes */
  constructor(facts, planes) {
    this.facts = facts;
    this.planes = planes;
    if (planes.length !== facts.width * facts.count) {
      throw new ViewerError(
        `The data of this snapshot are damaged: the column ${facts.name} is not as long as it says.`,
      );
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
    const found = new Type(count);
    if (coding === "delta") {
      let value = Number(first);
      for (let i = 0; i < count; i++) found[i] = value += raw[i];
    } else if (coding === "dict") {
      const table = /** @type {number[]} */ (values);
      // indices are signed as they were packed: one byte holds 0 to 127, two hold up to 32,767, and so on
      for (let i = 0; i < count; i++) found[i] = table[raw[i]];
    } else {
      found.set(raw);
    }
    return found;
  }

  /**
   * Values as doubles, exact whatever their size: less `base`, which is 0 where all are below 2^53.
   * @returns {{values: Float64Array, base: bigint}}
   */
  exact() {
    const { coding, count, width, first } = this.facts;
    if (coding === "delta") {
      const start = BigInt(first ?? 0);
      const raw = numbers(this.planes, width, count);
      const values = new Float64Array(count);
      let value = 0;
      let most = 0;
      for (let i = 0; i < count; i++) {
        value += raw[i];
        values[i] = value;
        if (value > most) most = value;
      }
      if (start + BigInt(most) >= BigInt(LARGEST_EXACT)) return { values, base: start };
      const add = Number(start);
      for (let i = 0; i < count; i++) values[i] += add;
      return { values, base: 0n };
    }
    const values = this.into(Float64Array);
    if (coding === "plain" && width === 8 && values.some((value) => value >= LARGEST_EXACT)) {
      const wide = Array.from({ length: count }, (_, i) => whole(this.planes, count, i));
      const base = wide.reduce((least, one) => (one > 0n && one < least ? one : least), 1n << 63n);
      return { values: Float64Array.from(wide, (one) => Number(one - base)), base };
    }
    return { values, base: 0n };
  }
}

/** Columns that no first picture needs: they are unpacked once it is drawn. */
const LATER = /^trace\/\d+\/(address|stream|stack|context|metadata|pool)$/;

/**
 * @param {ArrayBuffer} data
 * @param {() => Promise<void>} [pause] called on the way, so that a page without workers stays alive
 * @returns {Promise<{header: Header, column: (name: string) => Column|undefined, rest: () => Promise<void>}>}
 *   column: each can be had once; rest: unpacks those that are not needed at first
 */
export async function decode(data, pause) {
  const bytes = new Uint8Array(data);
  const begin = MAGIC.length + LENGTH;
  if (bytes.length < begin || String.fromCharCode(...bytes.subarray(0, MAGIC.length)) !== MAGIC) {
    throw new ViewerError("This is no encoded snapshot.");
  }
  let at = begin + new DataView(data).getUint32(MAGIC.length, true);
  const text = new TextDecoder().decode(await inflate(bytes.slice(begin, at)));
  const header = /** @type {Header} */ (JSON.parse(text));
  /** @type {Map<string, Column>} */
  const columns = new Map();
  const parts = header.columns.map((facts) => {
    const part = { facts, packed: bytes.slice(at, at + facts.bytes) };
    at += facts.bytes;
    return part;
  });
  if (at > bytes.length) throw new ViewerError("The data of this snapshot are damaged: the end is missing.");
  const unpack = async (/** @type {typeof parts} */ some) => {
    const planes = await Promise.all(some.map(({ packed }) => inflate(packed)));
    for (const [i, { facts }] of some.entries()) columns.set(facts.name, new Column(facts, planes[i]));
    await pause?.();
  };
  await unpack(parts.filter(({ facts }) => !LATER.test(facts.name)));
  return {
    header,
    column: (name) => {
      const found = columns.get(name);
      columns.delete(name); // its planes go
      return found;
    },
    rest: () => unpack(parts.filter(({ facts }) => LATER.test(facts.name))),
  };
}
