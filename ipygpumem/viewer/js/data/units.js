/** Formats numbers for display, in the same way as the Python package. */

export const KIB = 1024;
export const MIB = KIB * 1024;
export const GIB = MIB * 1024;

const THIN_SPACE = "\u2009";
const MAX_LENGTH = 2000; // characters of a text: browsers take seconds to lay out several megabytes
const STEPS = [1, 2, 5, 10, 20, 50, 100, 128, 256, 512, 1024];
/** @type {[number, string][]} */
const UNITS = [
  [GIB, "GiB"],
  [MIB, "MiB"],
  [KIB, "KiB"],
];

/** Bytes in MiB, or GiB from 1 GiB on; in KiB or bytes if they would be displayed as 0.0 MiB. @param {number} count @returns {string} */
export function size(count) {
  if (count && Math.abs(count) < MIB / 20) return fine(count);
  if (Math.abs(count) >= GIB - MIB / 20) return `${fixed(count / GIB, 1)} GiB`;
  return `${fixed(count / MIB, 1)} MiB`;
}

/** Bytes of single blocks: like `size`, but with small numbers in KiB and bytes. @param {number} count @returns {string} */
export function fine(count) {
  const absolute = Math.abs(count);
  if (absolute >= 0.95 * MIB) return absolute >= GIB ? `${fixed(count / GIB, 2)} GiB` : size(count);
  if (absolute >= KIB) return `${fixed(count / KIB, 1)} KiB`;
  return `${count} B`;
}

/** @param {number} count */
export function signed(count) {
  return `${count < 0 ? "−" : "+"}${fine(Math.abs(count))}`;
}

/** Round half to even, as Python does; toFixed would round up. @param {number} value @param {number} digits */
export function fixed(value, digits) {
  const power = 10 ** digits;
  // Only odd multiples of this power of two are exactly in the middle, and their products with ten are exact
  const middle = Math.abs(value * 2 ** (digits + 1)) % 2 === 1;
  const [head, tail] = (middle ? (2 * Math.round((value * power) / 2)) / power : value).toFixed(digits).split(".");
  return tail === undefined ? grouped(head) : `${grouped(head)}.${tail}`;
}

/** @param {string} digits */
function grouped(digits) {
  return digits.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** A count with thousands separators. @param {number} value */
export function count(value) {
  return grouped(String(Math.round(value)));
}

/** @param {number} number @param {string} singular @param {string} [many] */
export function plural(number, singular, many = `${singular}s`) {
  return `${count(number)} ${number === 1 ? singular : many}`;
}

/** A span of microseconds. @param {number} us */
export function duration(us) {
  const absolute = Math.abs(us);
  if (absolute < 1000) return `${trimmed(us)} µs`;
  if (absolute < 1e6) return `${trimmed(us / 1e3)} ms`;
  if (absolute < 60e6) return `${trimmed(us / 1e6)} s`;
  const minutes = Math.floor(us / 60e6);
  if (minutes < 60) return `${minutes} min ${String(Math.round((us % 60e6) / 1e6)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

/** @param {number} value */
function trimmed(value) {
  return Number(value.toPrecision(3)).toString();
}

/** @param {number} value */
export function hex(value) {
  return `0x${value.toString(16)}`;
}

/** The beginning of a text that is longer than `length` characters. @param {string} text @param {number} length */
export function truncate(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

/** The beginning of a text that is too long to be displayed. @param {string} text */
export function shorten(text) {
  return truncate(text, MAX_LENGTH);
}

/** Text in one line of limited length, without control characters and changes of direction. @param {string} text */
export function oneLine(text) {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these have to be replaced
  return shorten(text).replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]+/g, " ");
}

/** The step between ticks of a byte axis: a round number of B, KiB, MiB or GiB. @param {number} low @param {number} high @param {number} count of ticks, approximately */
export function byteStep(low, high, count) {
  const rough = Math.max((high - low) / Math.max(count, 1), 1);
  const power = 2 ** (10 * Math.floor(Math.log2(rough) / 10));
  return power * (STEPS.find((factor) => factor * power >= rough) ?? KIB);
}

/** @param {number} low @param {number} high @param {number} step */
export function byteTicks(low, high, step) {
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
  return ticks;
}

/** The exact label of a byte tick, in the largest unit in which the step has at most three decimals. @param {number} value @param {number} step @param {number} high */
export function byteTick(value, step, high) {
  if (value === 0) return "0";
  for (const [unit, name] of UNITS) {
    if (high < unit) continue;
    for (let digits = 0; digits <= 3; digits++) {
      if (((step * 10 ** digits) / unit) % 1 === 0) return `${fixed(value / unit, digits)}${THIN_SPACE}${name}`;
    }
  }
  return `${fixed(value, 0)}${THIN_SPACE}B`;
}

/** The label of a time tick: all ticks in one unit, with as many digits as the step needs. @param {number} us @param {number} step */
export function elapsed(us, step) {
  if (us === 0) return "0";
  const [unit, name] = step >= 1e5 ? [1e6, "s"] : step >= 100 ? [1e3, "ms"] : [1, "µs"];
  const digits = Math.min(Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-6)), 3);
  if (unit < 1e6 || Math.abs(us) < 600e6) return `${fixed(us / unit, digits)} ${name}`;
  const whole = Math.round((Math.abs(us) / unit) * 10 ** digits); // in units of the last digit, so that 59.99 s cannot become 60.0 s
  const minute = 60 * 10 ** digits;
  const minutes = Math.floor(whole / minute);
  const padded = (/** @type {number|string} */ value) => String(value).padStart(digits ? digits + 3 : 2, "0");
  const hours =
    minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  const seconds = step < 60e6 ? ` ${padded(((whole % minute) / 10 ** digits).toFixed(digits))} s` : "";
  return `${us < 0 ? "−" : ""}${hours}${seconds}`;
}

/** A time in a table column, where all have one unit. @param {number} us */
export function milliseconds(us) {
  return `${fixed(us / 1000, 3)} ms`;
}
