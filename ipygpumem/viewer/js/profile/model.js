/** Bytes by category over time on one device, from the columns that `ipygpumem.features.profile.page` encodes. */

import { clamp, countWhile } from "../data/collections.js";
import { ViewerError } from "../data/errors.js";

/** Category names; the index is the number that `ipygpumem.features.profile.categories` uses. */
export const CATEGORIES = [
  "parameter",
  "optimizer state",
  "input",
  "temporary",
  "activation",
  "gradient",
  "autograd detail",
  "unknown",
];
/** Categories from the bottom of the chart to its top, the longest-lived at the bottom. */
export const ORDER = [0, 1, 5, 2, 4, 6, 3, 7];
/** Counters of PyTorch's allocator. */
export const COUNTERS = /** @type {const} */ (["allocated", "reserved"]);

/** @typedef {"time"|"change"} AxisKind */
/** @typedef {"allocated"|"reserved"} Counter */
/** @typedef {{first: Int32Array, last: Int32Array}} Columns the first and last state inside each pixel column */
/**
 * @typedef {{name: string, base: number[], start: number, end: number, count: number, has_counters: boolean}} DeviceFacts
 *   `start` and `end` in nanoseconds since the first event of the profile; has_counters: whether it contains the allocator's own counters
 */

/** States of one device. State 0 precedes the first change, state n follows change n. */
export class DeviceTimeline {
  /** @param {DeviceFacts} facts @param {(name: string) => import("../data/decode.js").Column|undefined} column */
  constructor(facts, column) {
    this.name = facts.name;
    this.count = facts.count;
    const read = (/** @type {string} */ name) => {
      const values = column(name)?.into(Float64Array);
      if (!values)
        throw new ViewerError(
          `The data in this page is damaged: the column ${name} is missing. Create the page again.`,
        );
      return values;
    };
    /** Nanoseconds from the start of the profile to each change. */
    this.time = read("time");
    this.span = Math.max(facts.end - facts.start, this.time[this.count - 1] ?? 0, 1);
    /** Bytes after each change; NaN where the profile does not contain the counter. @type {Record<Counter, Float64Array|null>} */
    this.counters = { allocated: null, reserved: null };
    if (facts.has_counters)
      for (const name of COUNTERS) this.counters[name] = read(name).map((value) => (value < 0 ? NaN : value));
    this.levels = accumulate(facts.base, read("source"), read("target"), read("size"));
    this.shown = CATEGORIES.map(() => true);
    this.total = new Float64Array(this.count + 1);
    /** The peak of the categories that are shown. */
    this.peak = { row: 0, bytes: 0 };
    this.show(this.shown);
    this.highest = this.levels.map((values) => {
      const row = indexOfMaximum(values, 0, this.count);
      return { row, bytes: values[row] };
    });
    /** The peak of all categories, even if some are hidden. */
    this.overallPeak = this.peak;
  }

  /** Select the categories that are shown and included in totals. @param {boolean[]} shown */
  show(shown) {
    this.shown = shown;
    const { total, count } = this;
    total.fill(0);
    for (const [category, values] of this.levels.entries()) {
      if (shown[category]) for (let row = 0; row <= count; row++) total[row] += values[row];
    }
    const row = indexOfMaximum(total, 0, count);
    this.peak = { row, bytes: total[row] };
  }

  get allShown() {
    return this.shown.every(Boolean);
  }

  /** @param {AxisKind} axis @returns {[number, number]} */
  domain(axis) {
    return axis === "time" ? [0, this.span] : [0, this.count + 1];
  }

  /** Where a state begins. @param {AxisKind} axis @param {number} row */
  position(axis, row) {
    if (axis === "change") return row;
    return row ? this.time[row - 1] : 0;
  }

  /** Nanoseconds from the start to a state. @param {number} row */
  timeOf(row) {
    return this.position("time", row);
  }

  /** The state at a position. @param {AxisKind} axis @param {number} x */
  row(axis, x) {
    return axis === "change" ? clamp(Math.floor(x), 0, this.count) : countWhile(this.count, (i) => this.time[i] <= x);
  }

  /** @param {AxisKind} axis @param {[number, number]} view @param {number} width pixels @returns {Columns} */
  columns(axis, [from, to], width) {
    const first = new Int32Array(width);
    const last = new Int32Array(width);
    const step = (to - from) / width;
    for (let column = 0; column < width; column++) {
      const right = from + (column + 1) * step;
      first[column] = this.row(axis, from + column * step);
      const end = axis === "time" ? countWhile(this.count, (i) => this.time[i] < right) : Math.ceil(right) - 1;
      last[column] = Math.min(Math.max(first[column], end), this.count);
    }
    return { first, last };
  }

  /** The state with the most bytes of each column. @param {Columns} columns */
  rows({ first, last }) {
    return first.map((from, column) => indexOfMaximum(this.total, from, last[column]));
  }

  /** The maximum of a counter in each column; NaN where it is unknown. @param {Float64Array} counter @param {Columns} columns */
  maxima(counter, { first, last }) {
    return Float64Array.from(first, (from, column) => {
      let maximum = Number.NaN;
      for (let row = Math.max(from, 1); row <= last[column]; row++) {
        const value = counter[row - 1];
        if (!Number.isNaN(value) && !(value <= maximum)) maximum = value;
      }
      return maximum;
    });
  }

  /** The allocator's counter at a state; NaN if unknown. @param {Counter} name @param {number} row */
  counter(name, row) {
    const values = this.counters[name];
    return values && this.count ? values[Math.max(row - 1, 0)] : Number.NaN;
  }

  /** The next state in which a category that is shown differs. @param {number} row @param {1|-1} step */
  next(row, step) {
    let next = row + step;
    const same = () => this.levels.every((values, category) => !this.shown[category] || values[next] === values[row]);
    while (next > 0 && next < this.count && same()) next += step;
    return clamp(next, 0, this.count);
  }

  /** The category at a height of a state; -1 above all of them. @param {number} row @param {number} bytes */
  categoryAt(row, bytes) {
    let sum = 0;
    for (const category of ORDER) {
      if (!this.shown[category]) continue;
      sum += Math.max(this.levels[category][row], 0);
      if (bytes < sum) return category;
    }
    return -1;
  }
}

/** Bytes of each category after each change. @param {number[]} base @param {Float64Array} source @param {Float64Array} target @param {Float64Array} size */
function accumulate(base, source, target, size) {
  const levels = base.map((bytes) => new Float64Array(size.length + 1).fill(bytes));
  for (let i = 0; i < size.length; i++) {
    for (const values of levels) values[i + 1] = values[i];
    if (source[i] >= 0) levels[source[i]][i + 1] -= size[i];
    if (target[i] >= 0) levels[target[i]][i + 1] += size[i];
  }
  return levels;
}

/** The index of the first maximum. @param {Float64Array} values @param {number} from @param {number} to included */
function indexOfMaximum(values, from, to) {
  let best = from;
  for (let row = from + 1; row <= to; row++) if (values[row] > values[best]) best = row;
  return best;
}
