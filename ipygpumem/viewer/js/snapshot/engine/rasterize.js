/**
 * Draws all allocations of a range of events as pixels.
 *
 * Each pixel column shows exactly the state with the most bytes inside it. The list of live allocations is updated from
 * column to column: rows are ordered by the event that allocated them, so new ones are a contiguous range of rows, and
 * freed ones are dropped while the list is drawn. Allocations that begin and end between two of these states are counted
 * per column ("hidden"). Those lower than a pixel are merged into bands ("thin"), in a paler tone of the class that has
 * most of their bytes. If very many are alive at once, only those at least a pixel high are in the list, and prefix sums
 * over the rows hold the others.
 */

import { RowSums } from "./row-sums.js";

/** Values of `Picture.ids` for pixels that show no single allocation. */
export const NOTHING = -1;
export const THIN = -2;

/** Styles of thin bands: this plus half the style of the class with most of the bytes; the last one if that is unknown. */
export const THIN_STYLES = 128;
const THIN_UNKNOWN = 254;

/** The style of allocations that are not drawn. */
export const HIDDEN = 255;

/** Steps over lists of live rows that fit into a frame, about 20 ms. */
const MAX_STEPS = 2.5e6;

/**
 * @typedef {{x0: number, x1: number, y0: number, y1: number, width: number, height: number}} View y in bytes; pixels
 * @typedef {ReturnType<typeof rasterize>} Picture
 */

/**
 * Draw the picture of a view.
 * @param {import("../model/device.js").Device} device
 * @param {import("../model/axis.js").Axis} axis
 * @param {View} view
 * @param {Uint8Array} style of each allocation
 * @param {Uint32Array} colors 512 colors: fill by style, upper edge by style; styles from 128 on are the thin band
 * @param {{pixels?: Uint32Array, ids?: Int32Array}} [buffers] to reuse, if their size fits
 */
export function rasterize(device, axis, view, style, colors, buffers = {}) {
  const { width, height } = view;
  const { first, last, from, to } = axis.columns(view.x0, view.x1, width);
  const area = width * height;
  const pixels = buffers.pixels?.length === area ? buffers.pixels : new Uint32Array(area);
  const ids = buffers.ids?.length === area ? buffers.ids : new Int32Array(area);
  pixels.fill(0);
  ids.fill(NOTHING);
  const states = new Int32Array(width);
  const reserved = new Float64Array(width).fill(Number.NaN);
  const replayed = new Float64Array(width).fill(Number.NaN);
  const total = new Float64Array(width).fill(Number.NaN);
  for (let column = from; column < to; column++) {
    states[column] = device.requested.highest(first[column], last[column]);
    total[column] = device.requested.bytes[states[column]];
    const highest = (/** @type {import("../model/curve.js").Curve|undefined} */ curve) =>
      curve ? curve.bytes[curve.highest(first[column], last[column])] : Number.NaN;
    reserved[column] = highest(device.reserved);
    replayed[column] = highest(device.replay?.reserved);
  }
  const picture = {
    pixels, // RGBA, from the top
    ids, // row of the allocation at each pixel, or `NOTHING`, `THIN`
    states, // the state (event + 1) that each column shows
    firsts: first, // first state inside each column
    lasts: last, // last state inside each column
    total, // requested bytes at that state
    reserved, // the maximum of reserved bytes inside the column
    replayed, // the same with other settings
    thinCount: new Uint32Array(width), // allocations less than one pixel high
    thinBytes: new Float64Array(width),
    hiddenCount: new Uint32Array(width), // allocations that are alive inside the column but not at its state
    hiddenBytes: new Float64Array(width),
  };
  if (to > from) new Rasterizer(device, view, style, picture, colors).run(from, to);
  return picture;
}

class Rasterizer {
  /**
   * @param {import("../model/device.js").Device} device @param {View} view @param {Uint8Array} style
   * @param {Picture} picture @param {Uint32Array} colors by style, then by style for the upper edge
   */
  constructor(device, view, style, picture, colors) {
    this.device = device;
    this.view = view;
    this.style = style;
    this.picture = picture;
    this.colors = colors;
    this.scale = view.height / (view.y1 - view.y0);
    const { length } = device.allocations;
    /** Rows that are drawn one by one, ordered by their start. */
    this.live = new Int32Array(Math.min(length, 1024));
    this.count = 0;
    /** @type {RowSums|undefined} */
    this.sums = undefined;
    /** The next row in order of the end that `sums` has to drop. */
    this.nextEnd = 0;
  }

  /** @param {number} left first column inside the recording @param {number} right the column after the last */
  run(left, right) {
    const { device, picture } = this;
    const { start, end } = device.allocations;
    const { states, firsts, lasts } = picture;
    const firstEvent = states[left] - 1;
    const initial = device.checkpoints.live(firstEvent);
    let steps = 0;
    for (let column = left; column < right; column++) if (states[column] !== states[column - 1]) steps++;
    if (((initial.length + device.checkpoints.maxLive) / 2) * steps > MAX_STEPS) {
      this.sums = new RowSums(device.allocations.length);
      this.nextEnd = device.ended(firstEvent);
    }
    for (const row of initial) this.add(row);
    // Allocations that were alive at the left edge or began after it, and ended before the first state that is shown
    if (firsts[left] < states[left]) {
      for (const row of device.checkpoints.live(firsts[left] - 1)) if (end[row] <= firstEvent) this.hide(row, left);
    }
    let next = device.allocations.after(firsts[left] - 1);
    for (; next < start.length && start[next] <= firstEvent; next++) if (end[next] <= firstEvent) this.hide(next, left);
    for (let column = left; column < right; ) {
      const event = states[column] - 1;
      let stop = column + 1;
      while (stop < right && states[stop] === states[column]) stop++;
      const edge = firsts[column] - 1; // what began earlier belongs to the column before
      for (; next < start.length && start[next] <= event; next++) {
        if (end[next] > event) this.add(next);
        else this.hide(next, start[next] < edge ? Math.max(column - 1, left) : column);
      }
      if (this.sums) this.drawSums(column, stop, event, this.sums);
      else this.drawList(column, stop, event);
      column = stop;
    }
    const lastEvent = lasts[right - 1] - 1;
    for (; next < start.length && start[next] <= lastEvent; next++) this.hide(next, right - 1);
  }

  /** @param {number} row */
  add(row) {
    if (this.style[row] === HIDDEN) return;
    const size = this.device.allocations.size[row];
    if (this.sums && size * this.scale < 1) {
      this.sums.add(row, size, 1);
      return;
    }
    if (this.count === this.live.length) {
      const larger = new Int32Array(2 * this.count + 16);
      larger.set(this.live);
      this.live = larger;
    }
    this.live[this.count++] = row;
  }

  /** @param {number} row @param {number} column */
  hide(row, column) {
    if (this.style[row] === HIDDEN) return;
    this.picture.hiddenCount[column]++;
    this.picture.hiddenBytes[column] += this.device.allocations.size[row];
  }

  /** Fill pixels of one column, or of several columns that show the same state. @param {number} low @param {number} high pixels above the bottom @param {number} from @param {number} to columns @param {number} id @param {number} style */
  fill(low, high, from, to, id, style) {
    const { colors } = this;
    const { pixels, ids } = this.picture;
    const { width, height } = this.view;
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

  /** @param {number} from @param {number} to @param {number} event */
  drawList(from, to, event) {
    const { live, style, scale } = this;
    const { end, size } = this.device.allocations;
    const { y0 } = this.view;
    let count = 0;
    let sum = 0;
    let thin = -1; // where the band of allocations less than one pixel high begins; -1 if there is none
    let leader = 0; // its style, by a majority vote weighted by bytes
    let lead = 0;
    let thinCount = 0;
    let thinBytes = 0;
    for (let i = 0; i < this.count; i++) {
      const row = live[i];
      if (end[row] <= event) continue;
      live[count++] = row;
      const bytes = size[row];
      if (bytes * scale < 1) {
        if (thin < 0) {
          thin = sum;
          lead = 0;
        }
        thinCount++;
        thinBytes += bytes;
        sum += bytes;
        const thinStyle = THIN_STYLES + (style[row] >> 1);
        if (thinStyle === leader) {
          lead += bytes;
        } else {
          lead -= bytes;
          if (lead < 0) {
            leader = thinStyle;
            lead = -lead;
          }
        }
        const low = Math.round((thin - y0) * scale);
        const high = Math.round((sum - y0) * scale);
        if (high > low) {
          this.fill(low, high, from, to, THIN, leader);
          thin = -1;
        }
        continue;
      }
      const low = Math.round((sum - y0) * scale);
      if (thin >= 0) {
        this.fill(Math.round((thin - y0) * scale), low, from, to, THIN, leader);
        thin = -1;
      }
      sum += bytes;
      this.fill(low, Math.round((sum - y0) * scale), from, to, row, style[row]);
    }
    if (thin >= 0) this.fill(Math.round((thin - y0) * scale), Math.round((sum - y0) * scale), from, to, THIN, leader);
    this.count = count;
    this.setThin(from, to, thinCount, thinBytes);
  }

  /** @param {number} from @param {number} to @param {number} event @param {RowSums} sums */
  drawSums(from, to, event, sums) {
    const { live, style, scale, device } = this;
    const { start, end, size } = device.allocations;
    const { y0 } = this.view;
    const { byEnd } = device;
    for (; this.nextEnd < byEnd.length && end[byEnd[this.nextEnd]] <= event; this.nextEnd++) {
      const row = byEnd[this.nextEnd];
      if (start[row] < end[row] && size[row] * scale < 1) sums.remove(row, size[row]);
    }
    let count = 0;
    let large = 0;
    let last = 0; // thin bytes below the previous large allocation
    for (let i = 0; i < this.count; i++) {
      const row = live[i];
      if (end[row] <= event) continue;
      live[count++] = row;
      const thin = sums.before(row);
      const low = Math.round((large + thin - y0) * scale);
      if (thin > last) this.fill(Math.round((large + last - y0) * scale), low, from, to, THIN, THIN_UNKNOWN);
      last = thin;
      large += size[row];
      this.fill(low, Math.round((large + thin - y0) * scale), from, to, row, style[row]);
    }
    const all = sums.total;
    const [low, high] = [last, all].map((thin) => Math.round((large + thin - y0) * scale));
    if (all > last) this.fill(low, high, from, to, THIN, THIN_UNKNOWN);
    this.count = count;
    this.setThin(from, to, sums.count, all);
  }

  /** @param {number} from @param {number} to @param {number} count @param {number} bytes */
  setThin(from, to, count, bytes) {
    this.picture.thinCount.fill(count, from, to);
    this.picture.thinBytes.fill(bytes, from, to);
  }
}
