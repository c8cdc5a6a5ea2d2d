/**
 * The data behind one viewer. It answers requests with plain data, and runs in a worker or, where there are none, on the
 * page's own thread. It uses no DOM.
 */

import { countWhile, getOrCreate } from "../../data/collections.js";
import { decode } from "../../data/decode.js";
import { ViewerError } from "../../data/errors.js";
import { Snapshot } from "../model/snapshot.js";
import { withStackTexts } from "./callers.js";
import { describe, describeEvent, frameTexts, stackOf } from "./describe.js";
import { compare } from "./diff.js";
import { expand } from "./expand.js";
import { findings } from "./findings.js";
import { groups } from "./groups.js";
import { icicle } from "./icicle.js";
import { overviewOf } from "./overview.js";
import { Pane } from "./pane.js";
import { HIDDEN, rasterize, THIN } from "./rasterize.js";

/**
 * @typedef {import("./pane.js").Look} Look
 * @typedef {{source: number, device: number, devices?: number[]}} Where devices: the one shown of each source
 */

/** Requests that need only the columns of the first drawing. */
const FIRST = ["hello", "open", "classes", "frame", "curves", "places", "times"];

export class Engine {
  /** @param {() => Promise<void>} [pause] lets the page respond, if the engine runs in the page's thread */
  constructor(pause) {
    this.pause = pause;
    /** @type {Snapshot[]} */
    this.snapshots = [];
    /** @type {Map<string, Pane>} */
    this.panes = new Map();
    /** Columns that are not decompressed yet. @type {(() => Promise<void>)[]} */
    this.remaining = [];
    /** @type {Promise<void[]>|undefined} */
    this.decompressing = undefined;
  }

  /** @param {Where} where @returns {Pane} */
  pane({ source, device, devices = [] }) {
    return getOrCreate(this.panes, `${source} ${device} ${devices}`, () => {
      const snapshot = this.snapshots[source];
      const shown = snapshot?.devices[device];
      if (!shown) throw new ViewerError(`There is no device ${device} in this snapshot.`);
      const beside = this.snapshots
        .map((file, number) => ({ snapshot: file, device: file.devices[devices[number]] }))
        .filter((side) => side.snapshot !== snapshot && side.device);
      return new Pane(snapshot, shown, beside);
    });
  }

  /** Confirm that the worker runs. */
  hello() {
    return true;
  }

  /** @param {{bytes: ArrayBuffer, name: string}} request */
  async open({ bytes, name }) {
    const { header, column, decompressLater } = await decode(bytes, this.pause);
    const snapshot = new Snapshot(expand(header), column, name || header.name);
    if (snapshot.devices.length) {
      this.snapshots.push(snapshot);
      this.remaining.push(decompressLater);
      await this.pause?.();
    }
    return overviewOf(snapshot);
  }

  /** Wait for the columns that a request needs. @param {string} name @param {any} request */
  async ready(name, request) {
    if (FIRST.includes(name) && (request.mode ?? request.look?.mode ?? "line") === "line") return;
    while (this.remaining.length) {
      this.decompressing ??= Promise.all(this.remaining.map((decompress) => decompress()));
      await this.decompressing;
      this.remaining = [];
      this.decompressing = undefined;
    }
  }

  /** @param {Where & {mode: string}} request */
  classes(request) {
    const { mode, ordered, classes } = this.pane(request).classify(request.mode);
    return { mode, ordered, classes };
  }

  /**
   * The picture of a view.
   * @param {Where & {axis: "event"|"time", view: import("./rasterize.js").View, look: Look, colors: Uint32Array,
   *   events: number[], buffers?: {pixels?: Uint32Array, ids?: Int32Array}}} request
   *   events: those whose places on the axis are returned as well; buffers: may be reused
   */
  frame(request) {
    const pane = this.pane(request);
    const axis = pane.device.axis(request.axis);
    const { view, look, colors, buffers } = request;
    return { ...rasterize(pane.device, axis, view, pane.styles(look), colors, buffers), places: this.places(request) };
  }

  /** The maximum of requested and reserved bytes in each column. @param {Where & {axis: "event"|"time", x0: number, x1: number, width: number}} request */
  curves(request) {
    const { device } = this.pane(request);
    const { first, last, from, to } = device.axis(request.axis).columns(request.x0, request.x1, request.width);
    const maxima = (/** @type {import("../model/curve.js").Curve} */ curve, /** @type {Float64Array} */ values) => {
      for (let column = from; column < to; column++)
        values[column] = curve.bytes[curve.highest(first[column], last[column])];
      return values;
    };
    const unknown = new Float64Array(request.width).fill(Number.NaN);
    return {
      requested: maxima(device.requested, new Float64Array(request.width)),
      reserved: device.reserved ? maxima(device.reserved, unknown) : unknown,
    };
  }

  /** Where the states after some events begin and end on the axis. @param {Where & {axis: "event"|"time", events: number[]}} request */
  places(request) {
    const axis = this.pane(request).device.axis(request.axis);
    return request.events.map((event) => [axis.place(event), axis.until(event)]);
  }

  /** Microseconds since the Unix epoch. @param {Where & {events: number[]}} request */
  times(request) {
    const { device } = this.pane(request);
    return request.events.map((event) => device.time(event));
  }

  /** The event at a position of the axis. @param {Where & {axis: "event"|"time", x: number}} request */
  eventAt(request) {
    return this.pane(request).device.axis(request.axis).state(request.x) - 1;
  }

  /** @param {Where & {row: number}} request */
  allocation(request) {
    const { snapshot, device } = this.pane(request);
    if (!(request.row >= 0 && request.row < device.allocations.length)) return null;
    return describe(snapshot, device, request.row);
  }

  /**
   * The allocations less than one pixel high that are drawn together around a height of a column.
   * @param {Where & {event: number, low: number, high: number, scale: number, look: Look}} request
   */
  thin(request) {
    return { id: THIN, ...this.pane(request).thinGroup(request) };
  }

  /** The next allocation up or down the stack at an event; -1 if nothing is shown. @param {Where & {event: number, row: number, step: 1|-1, look: Look}} request */
  adjacent(request) {
    const pane = this.pane(request);
    const styles = pane.styles(request.look);
    const live = pane.device.checkpoints.live(request.event).filter((row) => styles[row] !== HIDDEN);
    const index = live.indexOf(request.row);
    if (!live.length) return -1;
    if (index < 0) return request.step > 0 ? live[0] : live[live.length - 1];
    return live[Math.min(Math.max(index + request.step, 0), live.length - 1)];
  }

  /** The state after an event. @param {Where & {event: number}} request */
  moment(request) {
    const pane = this.pane(request);
    const { snapshot, device } = pane;
    const event = Math.min(Math.max(request.event, -1), device.trace.length - 1);
    return {
      event,
      requested: device.requested.bytes[event + 1],
      reserved: device.reserved ? device.reserved.bytes[event + 1] : null,
      replayed: device.replay ? device.replay.reserved.bytes[event + 1] : Number.NaN,
      time: device.time(event),
      row: pane.rowOf(event),
      about: event >= 0 ? describeEvent(snapshot, device, event) : null,
      stack: event >= 0 ? stackOf(snapshot, device.trace.stack[event], device.trace.time[event]) : [],
    };
  }

  /** The live set at an event or of a range, by group. @param {Where & {event: number, range: [number, number]|null, key: string, limit: number}} request */
  live(request) {
    const pane = this.pane(request);
    const { snapshot, device } = pane;
    const { range, key, limit } = request;
    const rows = pane.rows(request);
    const [first, last] = range ?? [-1, device.trace.length];
    const all = groups(snapshot, device, rows, key, first, last, limit);
    let bytes = 0;
    for (const row of rows) bytes += device.allocations.size[row];
    const framesOf = frameTexts(snapshot);
    const sent = all.slice(0, limit).map((group) => ({
      ...group,
      frames: group.stack === undefined ? undefined : framesOf(group.stack),
    }));
    return {
      groups: withStackTexts(sent, limit),
      more: Math.max(all.length - limit, 0),
      bytes,
      count: rows.length,
      timed: device.trace.timed,
    };
  }

  /** @param {Where & {event: number, range: [number, number]|null, key: string, measure: "bytes"|"time", root: string, threshold: number}} request */
  icicle(request) {
    const pane = this.pane(request);
    const [first, last] = request.range ?? [-1, pane.device.trace.length];
    return icicle(pane.snapshot, pane.device, pane.rows(request), { ...request, first, last });
  }

  /** @param {Where} request */
  findings(request) {
    const { snapshot, device } = this.pane(request);
    return findings(snapshot, device);
  }

  /** Prepare the data for which the first request about segments would otherwise have to wait. @param {Where} request */
  prepareSegments(request) {
    this.pane(request).history();
    return true;
  }

  /** The segments and blocks of the allocator after an event. @param {Where & {event: number, mode: string, replayed?: boolean}} request */
  state(request) {
    const pane = this.pane(request);
    const { of } = pane.classify(request.mode);
    const { trace, replay } = pane.device;
    const event = Math.min(Math.max(request.event, -1), trace.length - 1);
    const replayed = request.replayed ? replay : undefined;
    const state = replayed ? replayed.at(event, pane.snapshot) : pane.history().at(event);
    const base = replayed ? 0n : trace.base;
    return {
      ...state,
      segments: state.segments.map(({ segment, blocks, ...facts }) => ({
        ...facts,
        segment: {
          ...segment,
          text: `0x${(BigInt(segment.address) + base).toString(16)}`,
          poolLabel: pane.snapshot.poolLabel(segment.pool),
        },
        blocks: blocks.map((block) => ({ ...block, class: of[block.row] })),
      })),
    };
  }

  /** @param {Where & {stack: number}} request */
  stack(request) {
    return stackOf(this.pane(request).snapshot, request.stack);
  }

  /** @param {Where & {text: string}} request */
  search(request) {
    const pane = this.pane(request);
    const { count, allocations, bytes, how, rows, events } = pane.search(request.text);
    const row = rows.indexOf(1);
    const first = row >= 0 ? Math.max(pane.device.allocations.start[row], 0) : events.indexOf(1);
    return { text: request.text, events: count, allocations, bytes, how, first, row };
  }

  /** The next event that matches a search; -1 if there is none. @param {Where & {text: string, event: number, step: 1|-1}} request */
  next(request) {
    const { events } = this.pane(request).search(request.text);
    const { length } = events;
    for (let i = 1; i <= length; i++) {
      const event = (((request.event + request.step * i) % length) + length) % length;
      if (events[event]) return event;
    }
    return -1;
  }

  /** Some rows of the filtered list of events. @param {Where & {text: string, actions: number[]|null, from: number, count: number}} request */
  events(request) {
    const pane = this.pane(request);
    const all = pane.filter({ text: request.text, actions: request.actions });
    const rows = Array.from(all.subarray(request.from, request.from + request.count), (event) =>
      describeEvent(pane.snapshot, pane.device, event),
    );
    return { total: all.length, from: request.from, rows };
  }

  /** The index of an event in the filtered list. @param {Where & {text: string, actions: number[]|null, event: number}} request */
  indexOf(request) {
    const all = this.pane(request).filter({ text: request.text, actions: request.actions });
    const index = countWhile(all.length, (i) => all[i] < request.event);
    return { index, exact: all[index] === request.event };
  }

  /** The groups that changed between two events. @param {{before: Where & {event: number}, after: Where & {event: number}, key: string, limit: number}} request */
  diff({ before, after, key, limit }) {
    return compare(this.pane(before), before.event, this.pane(after), after.event, key, limit);
  }
}

/** Buffers of a response that are transferred instead of copied. @param {any} response @returns {ArrayBuffer[]} */
export function transferables(response) {
  if (!response || typeof response !== "object" || !("pixels" in response || "requested" in response)) return [];
  const views = Object.values(response).filter((value) => ArrayBuffer.isView(value));
  return [...new Set(views.map((value) => /** @type {ArrayBuffer} */ (value.buffer)))];
}
