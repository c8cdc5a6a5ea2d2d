/** What a search text asks for. */

/**
 * @typedef {{kind: "text", text: string, how: string}
 *  | {kind: "size", least: number, most: number, how: string}
 *  | {kind: "action", actions: number[], how: string}
 *  | {kind: "block", address: bigint, nth: number|null, how: string}} Word
 */

const UNITS = { b: 1, k: 1024, m: 1024 ** 2, g: 1024 ** 3, t: 1024 ** 4 };
const SIZE = /^(>=|<=|>|<|=)?\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b|[kmgt])$/i;
const BARE = /^(>=|<=|>|<|=)\s*(\d+(?:\.\d+)?)$/;
const BLOCK = /^b([0-9a-f]{4,16})_(\d+)$|^b([0-9a-f]{9,16})$/i;
const ADDRESS = /^(?:0x([0-9a-f]+)|(7[0-9a-f]{9,15}))$/i;

/**
 * A text in its words: `">10 MiB"`, `0x7f…`, `b7f…_0`, the name of an action, anything else as text. Quotes hold words together,
 * and text that stands side by side is one text.
 * @param {string} text @param {string[]} actions
 * @returns {Word[]}
 */
export function parts(text, actions) {
  const joined = text
    .trim()
    .replace(/([<>=]=?)\s+/g, "$1")
    .replace(/(\d)\s+([kmgt]i?b\b|b\b)/gi, "$1$2");
  /** @type {Word[]} */
  const found = [];
  /** @type {string[]} */
  const plain = [];
  for (const match of joined.matchAll(/"([^"]*)"|(\S+)/g)) {
    if (match[1] !== undefined) {
      if (match[1]) found.push(asText(match[1]));
      continue;
    }
    const word = special(match[2], actions);
    if (word) found.push(word);
    else plain.push(match[2]);
  }
  if (plain.length) found.push(asText(plain.join(" ")));
  return found;
}

/** @param {string} text @returns {Word} */
function asText(text) {
  return { kind: "text", text: text.toLowerCase(), how: `the text “${text}”` };
}

/** @param {string} word @param {string[]} actions @returns {Word|undefined} */
function special(word, actions) {
  const block = BLOCK.exec(word);
  if (block) {
    const nth = block[2] ? Number(block[2]) : null;
    const how = nth === null ? `the blocks at ${word.slice(1)}` : `the block ${word}`;
    return { kind: "block", address: BigInt(`0x${block[1] ?? block[3]}`), nth, how };
  }
  const address = ADDRESS.exec(word);
  if (address)
    return { kind: "block", address: BigInt(`0x${address[1] ?? address[2]}`), nth: null, how: `the address ${word}` };
  const size = SIZE.exec(word) ?? BARE.exec(word);
  if (size) {
    const [, sign, number, unit = "b"] = size;
    const bytes = Number(number) * UNITS[/** @type {keyof typeof UNITS} */ (unit[0].toLowerCase())];
    return { kind: "size", ...bounds(sign, bytes, number, unit), how: `size ${sign ?? "about"} ${number} ${unit}` };
  }
  const action = actions.indexOf(word.toLowerCase());
  if (action >= 0) return { kind: "action", actions: [action], how: `the action ${word}` };
  if (word.toLowerCase() === "free") return { kind: "action", actions: [1, 2], how: "frees" };
  if (word.toLowerCase() === "segment") return { kind: "action", actions: [3, 4, 5, 6], how: "segments" };
  return undefined;
}

/** @param {string|undefined} sign @param {number} bytes @param {string} number @param {string} unit */
function bounds(sign, bytes, number, unit) {
  const factor = UNITS[/** @type {keyof typeof UNITS} */ (unit[0].toLowerCase())];
  if (sign === ">") return { least: bytes + 1e-6, most: Number.POSITIVE_INFINITY };
  if (sign === ">=") return { least: bytes, most: Number.POSITIVE_INFINITY };
  if (sign === "<") return { least: 0, most: bytes - 1e-6 };
  if (sign === "<=") return { least: 0, most: bytes };
  if (sign === "=" || factor === 1) return { least: bytes, most: bytes };
  // "10.5 MiB" means all that is written so
  const half = (factor * 10 ** -(number.split(".")[1]?.length ?? 1)) / 2;
  return { least: bytes - half, most: bytes + half };
}
