/**
 * Level of detail: all allocations of a stretch of events as one picture, without a polygon.
 *
 * A pixel column shows the instant of its maximum, exactly. From one such instant to the next the list of what lives is
 * carried on: allocations are in the order of their beginning, so what is born in between is one run of rows, and what died
 * falls out as the list is walked to draw it. Born and dead in between, seen at no instant: counted in a strip. Lower than
 * a pixel: summed up in place, as a thin band, in a paler tone of the class that has most of the pixel's bytes. Where very many live at once, only those a pixel high are carried in the
 * list, and a tree of sums over the rows holds the others.
 */

import { RowSums } from "./row-sums.js";

/** What the picture of pixels to rows says where no allocation is. */
export const NOTHING = -1;
export const THIN = -2;

/** Styles of the thin band: this and half the style of those that have most of its bytes. Of unknown ones: the last. */
export const THIN_STYLES = 128;
const THIN_UNKNOWN = 254;

/** A style that is not drawn at all. */
export const HIDDEN = 255;

/** Steps over lists of live rows that a frame has time for: some 20 ms. */
const MOST_STEPS = 2.5e6;

/**
 * @typedef {{x0: number, x1: number, y0: number, y1: number, width: number, height: number}} View y in bytes; pixels
 * @typedef {object} Picture
 * @property {Uint32Array} pixels RGBA, rows from above
 * @property {Int32Array} ids row of the allocation at each pixel, or `NOTHING`, `THIN`
 * @property {Int32Array} states for each column the state (event + 1) that it shows
 * @property {Int32Array} firsts first state inside each column
 * @property {Int32Array} lasts last state inside each column
 * @property {Float64Array} total requested bytes at that state
 * @property {Float64Array} reserved most reserved bytes inside the column
 * @property {Uint32Array} thinCount allocations lower than a pixel
 * @property {Float64Array} thinBytes
 * @property {Uint32Array} hiddenCount allocations that live inside the column and miss its instant
 * @property {Float64Array} hiddenBytes
 */

/** Fills pixels, upwards, over one column or several equal ones. */
class Brush {
  /**
   * @param {Uint32Array} pixels @param {Int32Array} ids @param {View} view
   * @param {Uint32Array} colors by style, then by style for the upper edge
   */
  constructor(pixels, ids, view, colors) {
    this.pixels = pixels;
    this.ids = ids;
    this.width = view.width;
    this.height = view.height;
    this.colors = colors;
  }

  /** @param {number} low @param {number} high pixels above the bottom @param {number} from @param {number} to columns @param {number} id @param {number} style */
  fill(low, high, from, to, id, style) {
    const { pixels, ids, width, height, colors } = this;
    const edge = high - low > 2 && high <= height ? high - 1 : -1;
    const bottom = Math.max(low, 0);
    const top = Math.min(high, height);
    const color = colors[style];
    for (let pixel = bottom; pixel < top; pixel++) {
      const shade = pixel === edge ? colors[256 + style] : color;
      const begin = (height - 1 - pixel) * width;
      if (to - from === 1) {
        pixels[begin + from] = shade;
        ids[begin + from] = id;
      } else {
        pixels.fill(shade, begin + from, begin + to);
        ids.fill(id, begin + from, begin + to);
      }
    }
  }
}

/**
 * Draw.
 * @param {import("../model/device.js").Device} device
 * @param {import("../model/axis.js").Axis} axis
 * @param {View} view
 * @param {Uint8Array} style style of each allocation; `HIDDEN` leaves it out
 * @param {Uint32Array} colors 512 colors: fill by style, upper edge by style; styles from 128 on are the thin band
 * @param {{pixels?: Uint32Array, ids?: Int32Array}} [kept] buffers to use again
 * @returns {Picture}
 */
export function sweep(device, axis, view, style, colors, kept = {}) {
  const { width, height } = view;
  const { first, last, from, to } = axis.columns(view.x0, view.x1, width);
  const area = width * height;
  const reuse = kept.pixels?.length === area && kept.ids?.length === area;
  const pixels = reuse ? /** @type {Uint32Array} */ (kept.pixels) : new Uint32Array(area);
  const ids = reuse ? /** @type {Int32Array} */ (kept.ids) : new Int32Array(area);
  pixels.fill(0);
  ids.fill(NOTHING);
  const states = new Int32Array(width);
  const reserved = new Float64Array(width).fill(Number.NaN);
  const total = new Float64Array(width).fill(Number.NaN);
  for (let column = from; column < to; column++) {
    states[column] = device.requested.highest(first[column], last[column]);
    total[column] = device.requested.bytes[states[column]];
    const curve = device.reserved;
    reserved[column] = curve ? curve.bytes[curve.highest(first[column], last[column])] : Number.NaN;
  }
  /** @type {Picture} */
  const picture = {
    pixels,
    ids,
    states,
    firsts: first,
    lasts: last,
    total,
    reserved,
    thinCount: new Uint32Array(width),
    thinBytes: new Float64Array(width),
    hiddenCount: new Uint32Array(width),
    hiddenBytes: new Float64Array(width),
  };
  if (to > from) new Sweep(device, view, style, picture, new Brush(pixels, ids, view, colors)).run(from, to);
  return picture;
}

class Sweep {
  /**
   * @param {import("../model/device.js").Device} device @param {View} view @param {Uint8Array} style
   * @param {Picture} picture @param {Brush} brush
   */
  constructor(device, view, style, picture, brush) {
    this.device = device;
    this.view = view;
    this.style = style;
    this.picture = picture;
    this.brush = brush;
    this.scale = view.height / (view.y1 - view.y0);
    const { length } = device.allocations;
    /** Rows that are drawn one by one, in the order of their beginning. */
    this.live = new Int32Array(Math.min(length, 1024));
    this.count = 0;
    /** @type {RowSums|undefined} */
    this.sums = undefined;
    this.death = 0;
  }

  /** @param {number} left first column inside the recording @param {number} right the one after the last */
  run(left, right) {
    const { device, picture } = this;
    const { start, end } = device.allocations;
    const { states, firsts, lasts } = picture;
    const begin = states[left] - 1;
    const initial = device.checkpoints.live(begin);
    let steps = 0;
    for (let column = left; column < right; column++) if (states[column] !== states[column - 1]) steps++;
    if (((initial.length + device.mostLive) / 2) * steps > MOST_STEPS) {
      this.sums = new RowSums(device.allocations.length);
      this.death = device.ended(begin);
    }
    for (const row of initial) this.bear(row);
    // what lived at the left edge, and what was born since, and is gone at the first instant
    if (firsts[left] < states[left]) {
      for (const row of device.checkpoints.live(firsts[left] - 1)) if (end[row] <= begin) this.hide(row, left);
    }
    let next = device.allocations.after(firsts[left] - 1);
    for (; next < start.length && start[next] <= begin; next++) if (end[next] <= begin) this.hide(next, left);
    for (let column = left; column < right; ) {
      const event = states[column] - 1;
      let stop = column + 1;
      while (stop < right && states[stop] === states[column]) stop++;
      const edge = firsts[column] - 1; // born up to here: in the column before
      for (; next < start.length && start[next] <= event; next++) {
        if (end[next] > event) this.bear(next);
        else this.hide(next, start[next] < edge ? Math.max(column - 1, left) : column);
      }
      this.draw(column, stop, event);
      column = stop;
    }
    const close = lasts[right - 1] - 1;
    for (; next < start.length && start[next] <= close; next++) this.hide(next, right - 1);
  }

  /** @param {number} row */
  bear(row) {
    if (this.style[row] === HIDDEN) return;
    const size = this.device.allocations.size[row];
    if (this.sums && size * this.scale < 1) {
      this.sums.add(row, size, 1);
      return;
    }
    if (this.count === this.live.length) {
      const longer = new Int32Array(2 * this.count + 16);
      longer.set(this.live);
      this.live = longer;
    }
    this.live[this.count++] = row;
  }

  /** @param {number} row @param {number} column */
  hide(row, column) {
    if (this.style[row] === HIDDEN) return;
    this.picture.hiddenCount[column]++;
    this.picture.hiddenBytes[column] += this.device.allocations.size[row];
  }

  /** @param {number} from @param {number} to columns that show the same instant @param {number} event */
  draw(from, to, event) {
    if (this.sums) this.drawSums(from, to, event, this.sums);
    else this.drawList(from, to, event);
  }

  /** @param {number} from @param {number} to @param {number} event */
  drawList(from, to, event) {
    const { live, style, scale, brush } = this;
    const { end, size } = this.device.allocations;
    const { y0 } = this.view;
    let kept = 0;
    let sum = 0;
    let thin = -1; // where the thin ones begin that have no pixel yet
    let leader = 0; // their style, by a vote in bytes
    let lead = 0;
    let thinCount = 0;
    let thinBytes = 0;
    for (let i = 0; i < this.count; i++) {
      const row = live[i];
      if (end[row] <= event) continue;
      live[kept++] = row;
      const bytes = size[row];
      if (bytes * scale < 1) {
        if (thin < 0) {
          thin = sum;
          lead = 0;
        }
        thinCount++;
        thinBytes += bytes;
        sum += bytes;
        const own = THIN_STYLES + (style[row] >> 1);
        if (own === leader) {
          lead += bytes;
        } else {
          lead -= bytes;
          if (lead < 0) {
            leader = own;
            lead = -lead;
          }
        }
        const from0 = Math.round((thin - y0) * scale);
        const to0 = Math.round((sum - y0) * scale);
        if (to0 > from0) {
          brush.fill(from0, to0, from, to, THIN, leader);
          thin = -1;
        }
        continue;
      }
      const low = Math.round((sum - y0) * scale);
      if (thin >= 0) {
        brush.fill(Math.round((thin - y0) * scale), low, from, to, THIN, leader);
        thin = -1;
      }
      sum += bytes;
      brush.fill(low, Math.round((sum - y0) * scale), from, to, row, style[row]);
    }
    if (thin >= 0) brush.fill(Math.round((thin - y0) * scale), Math.round((sum - y0) * scale), from, to, THIN, leader);
    this.count = kept;
    this.note(from, to, thinCount, thinBytes);
  }

  /** @param {number} from @param {number} to @param {number} event @param {RowSums} sums */
  drawSums(from, to, event, sums) {
    const { live, style, scale, brush, device } = this;
    const { start, end, size } = device.allocations;
    const { y0 } = this.view;
    const { byEnd } = device;
    for (; this.death < byEnd.length && end[byEnd[this.death]] <= event; this.death++) {
      const row = byEnd[this.death];
      if (start[row] < end[row] && size[row] * scale < 1) sums.remove(row, size[row]);
    }
    let kept = 0;
    let large = 0;
    let last = 0; // thin bytes below the last large one
    for (let i = 0; i < this.count; i++) {
      const row = live[i];
      if (end[row] <= event) continue;
      live[kept++] = row;
      const thin = sums.before(row);
      const low = Math.round((large + thin - y0) * scale);
      if (thin > last) brush.fill(Math.round((large + last - y0) * scale), low, from, to, THIN, THIN_UNKNOWN);
      last = thin;
      large += size[row];
      brush.fill(low, Math.round((large + thin - y0) * scale), from, to, row, style[row]);
    }
    const all = sums.total;
    if (all > last) {
      brush.fill(
        Math.round((large + last - y0) * scale),
        Math.round((large + all - y0) * scale),
        from,
        to,
        THIN,
        THIN_UNKNOWN,
      );
    }
    this.count = kept;
    this.note(from, to, sums.count, all);
  }

  /** @param {number} from @param {number} to @param {number} count @param {number} bytes */
  note(from, to, count, bytes) {
    this.picture.thinCount.fill(count, from, to);
    this.picture.thinBytes.fill(bytes, from, to);
  }
}
