/** Numbers as people read them. The same words as `ipygpumem.units`. */

export const KIB = 1024;
export const MIB = KIB * 1024;
export const GIB = MIB * 1024;

const THIN_SPACE = "\u2009";

/** MiB, from one GiB on GiB: as everywhere in this package. @param {number} count */
export function size(count) {
  if (Math.abs(count) >= GIB - MIB / 20) return `${fixed(count / GIB, 1)} GiB`;
  return `${fixed(count / MIB, 1)} MiB`;
}

/** As `size`, but small numbers in KiB and bytes: where single blocks are meant. @param {number} count */
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

/** @param {number} value @param {number} digits */
function fixed(value, digits) {
  const [head, tail] = value.toFixed(digits).split(".");
  return tail === undefined ? grouped(head) : `${grouped(head)}.${tail}`;
}

/** @param {string} digits */
function grouped(digits) {
  return digits.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** A count with its thousands apart. @param {number} value */
export function count(value) {
  return grouped(String(Math.round(value)));
}

/** @param {number} number @param {string} one @param {string} [many] */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
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

/** Text for one line: control characters and turned writing cannot leave it. @param {string} text */
export function oneLine(text) {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what must not get through
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]+/g, " ");
}

/** A byte axis: steps of 1, 2, 5 in the unit, but of 2^n bytes. @param {number} low @param {number} high @param {number} wanted */
export function byteTicks(low, high, wanted) {
  const rough = Math.max((high - low) / Math.max(wanted, 1), 1);
  const power = 2 ** (10 * Math.floor(Math.log2(rough) / 10));
  let step = power;
  for (const factor of [1, 2, 5, 10, 20, 50, 100, 128, 256, 512, 1024]) {
    step = factor * power;
    if (step >= rough) break;
  }
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) found.push(tick);
  return found;
}

/** A tick of a byte axis: the unit by the largest, the digits by the step. @param {number} value @param {number} step @param {number} most */
export function byteTick(value, step, most) {
  if (value === 0) return "0";
  const [unit, name] = most >= GIB ? [GIB, "GiB"] : most >= MIB ? [MIB, "MiB"] : most >= KIB ? [KIB, "KiB"] : [1, "B"];
  let digits = 0;
  while (digits < 6 && Math.abs((step / unit) * 10 ** digits - Math.round((step / unit) * 10 ** digits)) > 1e-3)
    digits++;
  return `${fixed(value / unit, Math.min(digits, unit === 1 ? 0 : 6))}${THIN_SPACE}${name}`;
}

/** A time in a column of times: all of one unit. @param {number} us */
export function milliseconds(us) {
  return `${fixed(us / 1000, 3)} ms`;
}
