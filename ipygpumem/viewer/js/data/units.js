/** Numbers as people read them. The same words as `ipygpumem.units`. */

export const KIB = 1024;
export const MIB = KIB * 1024;
export const GIB = MIB * 1024;

const THIN_SPACE = "\u2009";
const STEPS = [1, 2, 5, 10, 20, 50, 100, 128, 256, 512, 1024];
/** @type {[number, string][]} */
const UNITS = [
  [GIB, "GiB"],
  [MIB, "MiB"],
  [KIB, "KiB"],
];

/** MiB, from one GiB on GiB: as everywhere in this package; what would read 0.0 MiB and is not, in KiB and bytes. @param {number} count @returns {string} */
export function size(count) {
  if (count && Math.abs(count) < MIB / 20) return fine(count);
  if (Math.abs(count) >= GIB - MIB / 20) return `${fixed(count / GIB, 1)} GiB`;
  return `${fixed(count / MIB, 1)} MiB`;
}

/** As `size`, but small numbers in KiB and bytes: where single blocks are meant. @param {number} count @returns {string} */
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

/** As Python writes it: a value just between two goes to the even one, where toFixed goes up. @param {number} value @param {number} digits */
export function fixed(value, digits) {
  const power = 10 ** digits;
  // only an odd number of such a power of two lies just between, and its product with ten is exact
  const between = Math.abs(value * 2 ** (digits + 1)) % 2 === 1;
  const [head, tail] = (between ? (2 * Math.round((value * power) / 2)) / power : value).toFixed(digits).split(".");
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

/** The step of a byte axis: 1, 2, 5 in the unit, but of 2^n bytes. @param {number} low @param {number} high @param {number} wanted */
export function byteStep(low, high, wanted) {
  const rough = Math.max((high - low) / Math.max(wanted, 1), 1);
  const power = 2 ** (10 * Math.floor(Math.log2(rough) / 10));
  return power * (STEPS.find((factor) => factor * power >= rough) ?? KIB);
}

/** @param {number} low @param {number} high @param {number} step */
export function byteTicks(low, high, step) {
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) found.push(tick);
  return found;
}

/** A tick of a byte axis, exactly: in the largest unit in which its steps have three digits at most behind the point. @param {number} value @param {number} step @param {number} most */
export function byteTick(value, step, most) {
  if (value === 0) return "0";
  for (const [unit, name] of UNITS) {
    if (most < unit) continue;
    for (let digits = 0; digits <= 3; digits++) {
      if (((step * 10 ** digits) / unit) % 1 === 0) return `${fixed(value / unit, digits)}${THIN_SPACE}${name}`;
    }
  }
  return `${fixed(value, 0)}${THIN_SPACE}B`;
}

/** A time on an axis: all of one unit, as many digits as the step needs. @param {number} us @param {number} step */
export function elapsed(us, step) {
  if (us === 0) return "0";
  const [unit, name] = step >= 1e5 ? [1e6, "s"] : step >= 100 ? [1e3, "ms"] : [1, "µs"];
  const digits = Math.min(Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-6)), 3);
  if (unit < 1e6 || Math.abs(us) < 600e6) return `${fixed(us / unit, digits)} ${name}`;
  const whole = Math.round((Math.abs(us) / unit) * 10 ** digits); // in the last digit's unit, where 59.99 s cannot become 60.0
  const minute = 60 * 10 ** digits;
  const minutes = Math.floor(whole / minute);
  const two = (/** @type {number|string} */ value) => String(value).padStart(digits ? digits + 3 : 2, "0");
  const hours =
    minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  const seconds = step < 60e6 ? ` ${two(((whole % minute) / 10 ** digits).toFixed(digits))} s` : "";
  return `${us < 0 ? "−" : ""}${hours}${seconds}`;
}

/** A time in a column of times: all of one unit. @param {number} us */
export function milliseconds(us) {
  return `${fixed(us / 1000, 3)} ms`;
}
