/** Parses a search text into terms. */

/**
 * @typedef {{kind: "text", text: string, how: string}
 *  | {kind: "size", minimum: number, maximum: number, how: string}
 *  | {kind: "action", actions: number[], how: string}
 *  | {kind: "block", address: bigint, nth: number|null, how: string}} Term how: a description for the user
 */

const UNITS = { b: 1, k: 1024, m: 1024 ** 2, g: 1024 ** 3, t: 1024 ** 4 };
const SIZE = /^(>=|<=|>|<|=)?\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b|[kmgt])$/i;
const BARE = /^(>=|<=|>|<|=)\s*(\d+(?:\.\d+)?)$/;
const BLOCK = /^b([0-9a-f]{4,16})_(\d+)$|^b([0-9a-f]{9,16})$/i;
const ADDRESS = /^(?:0x([0-9a-f]+)|(7[0-9a-f]{9,15}))$/i;

/**
 * Split a text into terms: a size (`>10 MiB`), an address (`0x7f…`), a block (`b7f…_0`), an action, or text. Adjacent words
 * form one text; quotes make text of anything.
 * @param {string} text @param {string[]} actions
 * @returns {Term[]}
 */
export function parseSearch(text, actions) {
  const joined = text
    .trim()
    .replace(/([<>=]=?)\s+/g, "$1")
    .replace(/(\d)\s+([kmgt]i?b\b|b\b)/gi, "$1$2");
  /** @type {Term[]} */
  const terms = [];
  /** @type {string[]} */
  const words = [];
  for (const match of joined.matchAll(/"([^"]*)"|(\S+)/g)) {
    if (match[1] !== undefined) {
      if (match[1]) terms.push(textTerm(match[1]));
      continue;
    }
    const term = specialTerm(match[2], actions);
    if (term) terms.push(term);
    else words.push(match[2]);
  }
  if (words.length) terms.push(textTerm(words.join(" ")));
  return terms;
}

/** @param {string} text @returns {Term} */
function textTerm(text) {
  return { kind: "text", text: text.toLowerCase(), how: `the text “${text}”` };
}

/** @param {string} word @param {string[]} actions @returns {Term|undefined} */
function specialTerm(word, actions) {
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
  if (word.toLowerCase() === "free") return { kind: "action", actions: [1, 2], how: "free actions" };
  if (word.toLowerCase() === "segment") return { kind: "action", actions: [3, 4, 5, 6], how: "segment actions" };
  return undefined;
}

/** @param {string|undefined} sign @param {number} bytes @param {string} number @param {string} unit */
function bounds(sign, bytes, number, unit) {
  const factor = UNITS[/** @type {keyof typeof UNITS} */ (unit[0].toLowerCase())];
  if (sign === ">") return { minimum: bytes + 1e-6, maximum: Number.POSITIVE_INFINITY };
  if (sign === ">=") return { minimum: bytes, maximum: Number.POSITIVE_INFINITY };
  if (sign === "<") return { minimum: 0, maximum: bytes - 1e-6 };
  if (sign === "<=") return { minimum: 0, maximum: bytes };
  if (sign === "=" || factor === 1) return { minimum: bytes, maximum: bytes };
  // "10.5 MiB" matches every size that is displayed as 10.5 MiB
  const half = (factor * 10 ** -(number.split(".")[1]?.length ?? 1)) / 2;
  return { minimum: bytes - half, maximum: bytes + half };
}
