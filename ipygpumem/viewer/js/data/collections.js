/**
 * The value of a key, created on first use.
 * @template K, V
 * @param {Map<K, V>} map @param {K} key @param {() => V} create
 * @returns {V}
 */
export function getOrCreate(map, key, create) {
  let value = map.get(key);
  if (value === undefined) {
    value = create();
    map.set(key, value);
  }
  return value;
}

/**
 * A Map whose keys are texts from files. V8 computes hashes of decimal numbers of up to ten digits without a seed, also in
 * texts, so that a file could contain thousands of names with the same hash. A sign before the text prevents this.
 * @template V @extends {Map<string, V>}
 */
export class TextMap extends Map {
  /** @param {string} text */
  get(text) {
    return super.get(textKey(text));
  }

  /** @param {string} text @param {V} value */
  set(text, value) {
    return super.set(textKey(text), value);
  }
}

/** Long texts are not copied. @param {string} text */
function textKey(text) {
  return text.length > 20 && !text.startsWith("=") ? text : `=${text}`;
}

/** Numbers texts in order of first use. */
export class Numbers {
  constructor() {
    /** @type {TextMap<number>} */
    this.map = new TextMap();
    /** @type {string[]} */
    this.texts = [];
  }

  /** @param {string} text */
  number(text) {
    return getOrCreate(this.map, text, () => this.texts.push(text) - 1);
  }
}

const KEY_OFFSET = Math.floor(2 ** 50 * (1 + Math.random()));

/**
 * The key of an address in a Map. V8 computes hashes of numbers without a seed, so that a file could contain thousands of
 * addresses with the same hash. The difference from a random integer has an unpredictable hash and is exact below 2^53.
 * @param {number} address
 */
export function addressKey(address) {
  return address - KEY_OFFSET;
}

/**
 * A function that remembers its last result.
 * @template A, R
 * @param {(argument: A) => R} compute @returns {(argument: A) => R} compares arguments by their JSON texts
 */
export function rememberLast(compute) {
  /** @type {{key: string, result: R}|undefined} */
  let last;
  return (argument) => {
    const key = JSON.stringify(argument);
    if (last?.key !== key) last = { key, result: compute(argument) };
    return last.result;
  };
}

/**
 * Binary search: how many of the first `length` indexes satisfy a condition that holds up to some index and fails after it.
 * @param {number} length @param {(index: number) => boolean} condition
 */
export function countWhile(length, condition) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (condition(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** @param {number} value @param {number} low @param {number} high */
export function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}
