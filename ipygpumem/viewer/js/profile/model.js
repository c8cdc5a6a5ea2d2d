/** Bytes by category over time: one device of a profile, as `ipygpumem.viewer.categories` encodes it. */

/** As `ipygpumem.profile.categories` numbers them. */
export const NAMES = [
  "parameter",
  "optimizer state",
  "input",
  "temporary",
  "activation",
  "gradient",
  "autograd detail",
  "unknown",
];
/** From below: what stays longest lies lowest. */
export const ORDER = [0, 1, 5, 2, 4, 6, 3, 7];

/** @typedef {"time"|"change"} AxisKind */
/**
 * @typedef {{name: string, base: number[], start: number, end: number, count: number, told: boolean}} DeviceFacts
 *   `start` and `end` in nanoseconds since the first event of the profile
 */

export class Device {
  /** @param {DeviceFacts} facts @param {(name: string) => import("../data/decode.js").Column|undefined} column */
  constructor(facts, column) {
    this.name = facts.name;
    this.count = facts.count;
    const take = (/** @type {string} */ name) => {
      const found = column(name);
      if (!found) throw new Error(`The data of this page are damaged: there is no column ${name}.`);
      return found.into(Float64Array);
    };
    /** Nanoseconds from the beginning of the profile to each change. */
    this.time = take("time");
    this.span = Math.max(facts.end - facts.start, this.time[this.count - 1] ?? 0, 1);
    /** @type {Float64Array|null} what the allocator itself counted, after each change; NaN where it did not tell */
    this.allocated = null;
    /** @type {Float64Array|null} */
    this.reserved = null;
    if (facts.told) {
      this.allocated = counted(take("allocated"));
      this.reserved = counted(take("reserved"));
    }
    this.levels = levels(facts.base, take("source"), take("target"), take("size"));
    this.shown = NAMES.map(() => true);
    this.total = new Float64Array(this.count + 1);
    /** The peak of what is shown. */
    this.peak = { row: 0, bytes: 0 };
    this.show(this.shown);
    this.highest = this.levels.map((values) => {
      const row = highest(values, 0, this.count);
      return { row, bytes: values[row] };
    });
    /** The peak of all categories, whatever is shown. */
    this.wholePeak = this.peak;
  }

  /** Which categories count. @param {boolean[]} shown */
  show(shown) {
    this.shown = shown;
    const { total, count } = this;
    total.fill(0);
    for (const [category, values] of this.levels.entries()) {
      if (shown[category]) for (let row = 0; row <= count; row++) total[row] += values[row];
    }
    const row = highest(total, 0, count);
    this.peak = { row, bytes: total[row] };
  }

  /** @param {AxisKind} axis @returns {[number, number]} */
  domain(axis) {
    return axis === "time" ? [0, this.span] : [0, this.count + 1];
  }

  /** Where a state (row) begins. @param {AxisKind} axis @param {number} row */
  place(axis, row) {
    if (axis === "change") return row;
    return row ? this.time[row - 1] : 0;
  }

  /** Nanoseconds from the beginning to a state. @param {number} row */
  when(row) {
    return this.place("time", row);
  }

  /** The state at a place. @param {AxisKind} axis @param {number} x */
  row(axis, x) {
    if (axis === "change") return Math.min(Math.max(Math.floor(x), 0), this.count);
    return begun(this.time, x, true);
  }

  /** First and last state of each pixel column. @param {AxisKind} axis @param {number} x0 @param {number} x1 @param {number} width */
  columns(axis, x0, x1, width) {
    const first = new Int32Array(width);
    const last = new Int32Array(width);
    const step = (x1 - x0) / width;
    for (let column = 0; column < width; column++) {
      const [left, right] = [x0 + column * step, x0 + (column + 1) * step];
      first[column] = this.row(axis, left);
      last[column] = Math.max(first[column], axis === "time" ? begun(this.time, right, false) : Math.ceil(right) - 1);
      if (last[column] > this.count) last[column] = this.count;
    }
    return { first, last };
  }

  /** The state with the most bytes of each column. @param {{first: Int32Array, last: Int32Array}} columns */
  rows({ first, last }) {
    return first.map((from, column) => highest(this.total, from, last[column]));
  }

  /** The most of a curve in each column; NaN where it is unknown. @param {Float64Array} curve @param {{first: Int32Array, last: Int32Array}} columns */
  most(curve, { first, last }) {
    return Float64Array.from(first, (from, column) => {
      let found = Number.NaN;
      for (let row = Math.max(from, 1); row <= last[column]; row++) {
        const value = curve[row - 1];
        if (!(value <= found)) found = Number.isNaN(value) ? found : value;
      }
      return found;
    });
  }

  /** The allocator's own count at a state. @param {"allocated"|"reserved"} which @param {number} row */
  counted(which, row) {
    const curve = this[which];
    if (!curve || !this.count) return Number.NaN;
    return curve[Math.max(row - 1, 0)];
  }

  /** The next state that differs in what is shown. @param {number} row @param {1|-1} by */
  next(row, by) {
    let found = row + by;
    const same = () => this.levels.every((values, one) => !this.shown[one] || values[found] === values[row]);
    while (found > 0 && found < this.count && same()) found += by;
    return Math.min(Math.max(found, 0), this.count);
  }
}

/** @param {Float64Array} values */
function counted(values) {
  return values.map((value) => (value < 0 ? Number.NaN : value));
}

/** @param {number[]} base @param {Float64Array} source @param {Float64Array} target @param {Float64Array} size */
function levels(base, source, target, size) {
  const found = base.map((bytes) => {
    const values = new Float64Array(size.length + 1);
    values[0] = bytes;
    return values;
  });
  for (let i = 0; i < size.length; i++) {
    for (const values of found) values[i + 1] = values[i];
    if (source[i] >= 0) found[source[i]][i + 1] -= size[i];
    if (target[i] >= 0) found[target[i]][i + 1] += size[i];
  }
  return found;
}

/** The place of the greatest value, the first of equals. @param {Float64Array} values @param {number} from @param {number} to */
function highest(values, from, to) {
  let found = from;
  for (let row = from + 1; row <= to; row++) if (values[row] > values[found]) found = row;
  return found;
}

/** How many times lie before x, or at it. @param {Float64Array} time @param {number} x @param {boolean} at */
function begun(time, x, at) {
  let low = 0;
  let high = time.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (time[middle] < x || (at && time[middle] === x)) low = middle + 1;
    else high = middle;
  }
  return low;
}
