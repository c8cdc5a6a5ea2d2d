/** The state of a profile's page: device, axis, visible part, cursor and categories. */

import { size } from "../data/units.js";
import { clampRange, scaleRange, shiftRange } from "../ui/zoom.js";
import { formatTime } from "./chart.js";
import { ORDER } from "./model.js";

/** The smallest view: nanoseconds, changes. */
export const MINIMUM = { time: 200, change: 4 };

export class ProfileState {
  /**
   * @param {import("./model.js").DeviceTimeline[]} devices
   * @param {(legend?: boolean) => void} onChange legend: what the legend shows has changed too
   * @param {(text: string) => void} announce for screen readers
   */
  constructor(devices, onChange, announce) {
    this.devices = devices;
    this.onChange = onChange;
    this.announce = announce;
    this.device = devices[0];
    /** @type {import("./model.js").AxisKind} */
    this.axis = "time";
    /** The visible part of the axis. @type {[number, number]} */
    this.view = this.domain();
    /** The state that the cursor is at. @type {number|null} */
    this.cursor = null;
    /** The state below the pointer. @type {number|null} */
    this.pointed = null;
    /** Where the pointer is in the window. @type {{clientX: number, clientY: number}|null} */
    this.pointer = null;
    this.counters = { allocated: true, reserved: true };
  }

  // The visible part

  domain() {
    return this.device.domain(this.axis);
  }

  get allVisible() {
    const [low, high] = this.domain();
    return this.view[0] <= low && this.view[1] >= high;
  }

  /** @param {[number, number]} view */
  setView(view) {
    this.view = clampRange(view, this.domain(), 1e-6);
    this.onChange();
  }

  showAll() {
    this.setView(this.domain());
  }

  /** @param {number} share of the view */
  pan(share) {
    this.setView(shiftRange(this.view, share));
  }

  /** Zoom around the cursor if it is visible, else around the center. @param {number} factor */
  zoomBy(factor) {
    const [from, to] = this.view;
    const cursor = this.cursor === null ? Number.NaN : this.device.position(this.axis, this.cursor);
    const center = cursor >= from && cursor <= to ? cursor : (from + to) / 2;
    const minimum = Math.min(MINIMUM[this.axis], this.domain()[1]);
    this.setView(scaleRange(this.view, Math.max(factor, minimum / (to - from)), center));
  }

  /** Nanoseconds in view. */
  visibleTime() {
    const { device, axis } = this;
    const [from, to] = this.view.map((x) => (axis === "time" ? x : device.timeOf(device.row(axis, x))));
    return Math.max(to - from, 1);
  }

  /** @param {import("./model.js").AxisKind} axis */
  setAxis(axis) {
    const { device, allVisible } = this;
    const [first, last] = this.view.map((x) => device.row(this.axis, x));
    this.axis = axis;
    const end = Math.min(last + 1, device.count);
    this.setView(allVisible ? this.domain() : [device.position(axis, first), device.position(axis, end)]);
    this.onChange(true);
  }

  // The cursor and what is shown

  /** @param {number} row */
  goTo(row) {
    this.cursor = row;
    this.pointed = null;
    this.pointer = null;
    const position = this.device.position(this.axis, row);
    const [from, to] = this.view;
    const half = (to - from) / 2;
    if (position < from || position > to) this.setView([position - half, position + half]);
    this.onChange();
    this.announce(`${this.timeText(row)}: ${size(this.device.total[row])}`);
  }

  /** @param {1|-1} by */
  step(by) {
    this.goTo(this.cursor === null ? this.device.peak.row : this.device.next(this.cursor, by));
  }

  /** @param {number} number */
  setDevice(number) {
    const { shown } = this.device;
    this.device = this.devices[number];
    this.device.show(shown);
    this.cursor = null;
    this.pointed = null;
    this.view = this.domain();
    this.onChange(true);
  }

  /** Show or hide a category. @param {number} position in the legend @param {boolean} [only] show only this one, or all again */
  toggle(position, only = false) {
    const target = ORDER[position];
    const { shown } = this.device;
    const alone = shown.every((on, category) => on === (category === target));
    this.device.show(
      shown.map((on, category) => {
        if (only) return alone || category === target;
        return category === target ? !on : on;
      }),
    );
    this.onChange(true);
  }

  /** @param {import("./model.js").Counter} name */
  toggleCounter(name) {
    this.counters[name] = !this.counters[name];
    this.onChange(true);
  }

  /** @param {number} row */
  timeText(row) {
    return formatTime(this.device.timeOf(row), this.device.span, this.visibleTime());
  }

  /** What the chart shows; pinned: the cursor was set by a click or key, and is not just below the pointer. */
  chartState() {
    const { device, axis, view, counters } = this;
    return { device, axis, view, counters, cursor: this.pointed ?? this.cursor, pinned: this.pointed === null };
  }
}
