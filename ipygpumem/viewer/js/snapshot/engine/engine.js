/**
 * The model behind one viewer: answers requests with plain data. It runs in a worker, or in slices on the page's own thread,
 * and knows nothing of a document.
 */

import { remember } from "../../data/collections.js";
import { decode } from "../../data/decode.js";
import { classify } from "./classes.js";
import { describe, describeEvent, stackOf } from "./describe.js";
import { diff } from "./diff.js";
import { findings } from "./findings.js";
import { icicle } from "./icicle.js";
import { between, groups } from "./groups.js";
import { overviewOf } from "./overview.js";
import { search } from "./search.js";
import { ViewerError } from "../../data/errors.js";
import { Snapshot } from "../model/snapshot.js";
import { SegmentHistory } from "../model/segment-history.js";
import { HIDDEN, sweep, THIN } from "./rasterize.js";
import { trails } from "./callers.js";

/**
 * @typedef {{source: number, device: number, devices?: number[]}} Where devices: those shown of all sources
 * @typedef {{kind: "none"} | {kind: "group", key: string, code: number} | {kind: "search", text: string} | {kind: "row", row: number}} Mark
 * @typedef {object} Look what decides the style of each allocation
 * @property {string} mode color by
 * @property {number[]} hidden classes that the legend hides
 * @property {Mark} mark what stands out; all else is dimmed
 */

/** What is known of one device of one source, and kept because it is asked for again and again. */
class Pane {
  /**
   * @param {Snapshot} snapshot @param {import("../model/device.js").Device} device
   * @param {import("./classes.js").Side[]} beside whose colors to share
   */
  constructor(snapshot, device, beside) {
    this.snapshot = snapshot;
    this.device = device;
    this.beside = beside;
    /** @type {Map<string, import("./classes.js").Classes>} */
    this.classes = new Map();
    /** @type {{text: string, found: ReturnType<typeof search>}|undefined} */
    this.searched = undefined;
    /** @type {SegmentHistory|undefined} */
    this.segments = undefined;
    this.look = "";
    this.style = new Uint8Array(0);
    /** @type {{filter: string, events: Int32Array}|undefined} */
    this.filtered = undefined;
  }

  /** @param {string} mode @returns {import("./classes.js").Classes} */
  classify(mode) {
    return remember(this.classes, mode, () => classify(this.snapshot, this.device, mode, this.beside));
  }

  /** @param {string} text */
  search(text) {
    if (this.searched?.text !== text) this.searched = { text, found: search(this.snapshot, this.device, text) };
    return this.searched.found;
  }

  /** @param {Look} look */
  styles(look) {
    const name = JSON.stringify(look);
    if (name !== this.look) {
      this.look = name;
      const { of } = this.classify(look.mode);
      const { length } = this.device.allocations;
      const marked = this.marked(look.mark);
      const style = new Uint8Array(length);
      for (let row = 0; row < length; row++) {
        style[row] = look.hidden.includes(of[row])
          ? HIDDEN
          : 4 * of[row] + (row & 1) + (marked && !marked[row] ? 2 : 0);
      }
      this.style = style;
    }
    return this.style;
  }

  /** @param {Mark} mark @returns {Uint8Array|undefined} */
  marked(mark) {
    const { length } = this.device.allocations;
    if (mark.kind === "search") return this.search(mark.text).rows;
    if (mark.kind === "row") {
      const found = new Uint8Array(length);
      found[mark.row] = 1;
      return found;
    }
    if (mark.kind === "group") {
      const { codes } = this.snapshot.key(this.device, mark.key);
      return Uint8Array.from(codes, (code) => (code === mark.code ? 1 : 0));
    }
    return undefined;
  }

  history() {
    this.segments ??= new SegmentHistory(this.snapshot, this.device);
    return this.segments;
  }

  /** Rows of a moment or a stretch. @param {{event: number, range: [number, number]|null}} where */
  rows({ event, range }) {
    return range ? between(this.device, range[0], range[1]) : this.device.checkpoints.live(event);
  }

  /** Events that pass a filter. @param {{text: string, actions: number[]|null}} filter */
  filter({ text, actions }) {
    const name = JSON.stringify([text, actions]);
    if (this.filtered?.filter !== name) {
      const { trace } = this.device;
      const hits = text ? this.search(text).events : undefined;
      const wanted = actions ? Uint8Array.from({ length: 16 }, (_, one) => (actions.includes(one) ? 1 : 0)) : undefined;
      const found = new Int32Array(trace.length);
      let count = 0;
      for (let event = 0; event < trace.length; event++) {
        if ((!hits || hits[event]) && (!wanted || wanted[trace.action[event]])) found[count++] = event;
      }
      this.filtered = { filter: name, events: found.slice(0, count) };
    }
    return this.filtered.events;
  }
}

/** What needs no column but those of the first picture. */
const FIRST = ["hello", "open", "classes", "frame", "curves", "places", "times"];

export class Engine {
  /** @param {() => Promise<void>} [pause] lets the page breathe, where the engine has no thread of its own */
  constructor(pause) {
    this.pause = pause;
    /** @type {Snapshot[]} */
    this.snapshots = [];
    /** @type {Map<string, Pane>} */
    this.panes = new Map();
    /** Columns that are still packed. @type {(() => Promise<void>)[]} */
    this.rest = [];
    /** @type {Promise<void[]>|undefined} */
    this.unpacking = undefined;
  }

  /** @param {Where} where @returns {Pane} */
  pane({ source, device, devices = [] }) {
    const name = `${source} ${device} ${devices}`;
    return remember(this.panes, name, () => {
      const snapshot = this.snapshots[source];
      const one = snapshot?.devices[device];
      if (!one) throw new ViewerError(`There is no device ${device}.`);
      const beside = this.snapshots
        .map((other, number) => ({ snapshot: other, device: other.devices[devices[number]] }))
        .filter((side) => side.snapshot !== snapshot && side.device);
      return new Pane(snapshot, one, beside);
    });
  }

  /** Says that it is there. */
  hello() {
    return true;
  }

  /** @param {{bytes: ArrayBuffer, name: string}} request */
  async open({ bytes, name }) {
    const { header, column, rest } = await decode(bytes, this.pause);
    const snapshot = new Snapshot(header, column, name || header.name);
    if (!snapshot.devices.length) return overviewOf(snapshot); // there is nothing to ask it
    this.snapshots.push(snapshot);
    this.rest.push(rest);
    await this.pause?.();
    return overviewOf(snapshot);
  }

  /** Have all columns, before anything but the first picture is asked for. @param {string} name @param {any} request */
  async ready(name, request) {
    if (FIRST.includes(name) && (request.mode ?? request.look?.mode ?? "line") === "line") return;
    while (this.rest.length) {
      this.unpacking ??= Promise.all(this.rest.map((rest) => rest()));
      await this.unpacking;
      this.rest = [];
      this.unpacking = undefined;
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
   *   events: number[], kept?: {pixels?: Uint32Array, ids?: Int32Array}}} request
   *   events: some whose places on the axis are wanted along with it
   */
  frame(request) {
    const pane = this.pane(request);
    const style = pane.styles(request.look);
    const axis = pane.device.axis(request.axis);
    const picture = sweep(pane.device, axis, request.view, style, request.colors, request.kept);
    return { ...picture, places: this.places(request) };
  }

  /** The most requested and reserved bytes per column. @param {Where & {axis: "event"|"time", x0: number, x1: number, width: number}} request */
  curves(request) {
    const { device } = this.pane(request);
    const { first, last, from, to } = device.axis(request.axis).columns(request.x0, request.x1, request.width);
    const requested = new Float64Array(request.width);
    const reserved = new Float64Array(request.width).fill(Number.NaN);
    for (let column = from; column < to; column++) {
      requested[column] = device.requested.bytes[device.requested.highest(first[column], last[column])];
      if (device.reserved)
        reserved[column] = device.reserved.bytes[device.reserved.highest(first[column], last[column])];
    }
    return { requested, reserved };
  }

  /** @param {Where & {axis: "event"|"time", events: number[]}} request */
  places(request) {
    const axis = this.pane(request).device.axis(request.axis);
    return request.events.map((event) => [axis.place(event), axis.until(event)]);
  }

  /** Microseconds since 1970. @param {Where & {events: number[]}} request */
  times(request) {
    return request.events.map((event) => this.pane(request).device.time(event));
  }

  /** The event at a place of an axis. @param {Where & {axis: "event"|"time", x: number}} request */
  eventAt(request) {
    return this.pane(request).device.axis(request.axis).state(request.x) - 1;
  }

  /** @param {Where & {row: number}} request */
  allocation(request) {
    const { snapshot, device } = this.pane(request);
    if (!(request.row >= 0 && request.row < device.allocations.length)) return null;
    return describe(snapshot, device, request.row);
  }

  /** The thin ones around a height of a column. @param {Where & {event: number, low: number, high: number, scale: number, look: Look}} request */
  thin(request) {
    const pane = this.pane(request);
    const style = pane.styles(request.look);
    const { size } = pane.device.allocations;
    let sum = 0;
    let run = { count: 0, bytes: 0, from: 0 };
    for (const row of pane.device.checkpoints.live(request.event)) {
      if (style[row] === HIDDEN) continue;
      if (size[row] * request.scale < 1) {
        if (!run.count) run.from = sum;
        run.count++;
        run.bytes += size[row];
      } else {
        if (run.count && sum >= request.low) break;
        run = { count: 0, bytes: 0, from: 0 };
      }
      sum += size[row];
      if (!run.count && sum > request.high) break;
    }
    return { id: THIN, count: run.count, bytes: run.bytes };
  }

  /** The next allocation of the stack at an event, up or down. @param {Where & {event: number, row: number, step: 1|-1, look: Look}} request */
  neighbour(request) {
    const pane = this.pane(request);
    const style = pane.styles(request.look);
    const live = pane.device.checkpoints.live(request.event).filter((row) => style[row] !== HIDDEN);
    const at = live.indexOf(request.row);
    if (!live.length) return -1;
    if (at < 0) return request.step > 0 ? live[0] : live[live.length - 1];
    return live[Math.min(Math.max(at + request.step, 0), live.length - 1)];
  }

  /** The allocation that an event is about; -1 for none. @param {Where & {event: number}} request */
  rowOf(request) {
    const { device } = this.pane(request);
    const { allocations, trace } = device;
    const event = request.event;
    if (event < 0 || event >= trace.length || trace.action[event] > 2) return -1;
    if (trace.action[event] === 0)
      return allocations.start[allocations.after(event - 1)] === event ? allocations.after(event - 1) : -1;
    for (const row of device.checkpoints.live(event - 1))
      if (allocations.asked[row] === event || allocations.end[row] === event) return row;
    return -1;
  }

  /** @param {Where & {event: number}} request */
  moment(request) {
    const { snapshot, device } = this.pane(request);
    const event = Math.min(Math.max(request.event, -1), device.trace.length - 1);
    return {
      event,
      requested: device.requested.bytes[event + 1],
      reserved: device.reserved ? device.reserved.bytes[event + 1] : null,
      time: device.time(event),
      row: this.rowOf({ ...request, event }),
      about: event >= 0 ? describeEvent(snapshot, device, event) : null,
      stack: event >= 0 ? stackOf(snapshot, device.trace.stack[event], device.trace.time[event]) : [],
    };
  }

  /** @param {Where & {event: number, range: [number, number]|null, key: string, most: number}} request */
  live(request) {
    const pane = this.pane(request);
    const rows = pane.rows(request);
    const [first, last] = request.range ?? [request.event, request.event];
    const all = groups(
      pane.snapshot,
      pane.device,
      rows,
      request.key,
      request.range ? first : -1,
      request.range ? last : pane.device.trace.length,
      request.most,
    );
    let bytes = 0;
    for (const row of rows) bytes += pane.device.allocations.size[row];
    const { snapshot } = pane;
    const sent = all.slice(0, request.most).map((group) => {
      if (group.stack === undefined) return group;
      const frames = stackOf(snapshot, group.stack).map(({ place, name }) => `${place} ${name}`);
      return { ...group, frames, text: frames.join(" ← ") };
    });
    const told = trails(sent);
    return {
      groups: sent.map((group, i) => ({ ...group, frames: undefined, trail: told[i] })),
      more: Math.max(all.length - request.most, 0),
      bytes,
      count: rows.length,
      timed: pane.device.trace.timed,
    };
  }

  /** @param {Where & {event: number, range: [number, number]|null, key: string, measure: "bytes"|"time", root: string, least: number}} request */
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

  /** Make ready what the first question about segments would wait for. @param {Where} request */
  warm(request) {
    this.pane(request).history();
    return true;
  }

  /** @param {Where & {event: number, mode: string}} request */
  state(request) {
    const pane = this.pane(request);
    const { of } = pane.classify(request.mode);
    const state = pane.history().at(Math.min(Math.max(request.event, -1), pane.device.trace.length - 1));
    const base = pane.device.trace.base;
    const text = (/** @type {number} */ address) => `0x${(BigInt(address) + base).toString(16)}`;
    return {
      ...state,
      segments: state.segments.map(({ segment, blocks, ...rest }) => ({
        ...rest,
        segment: { ...segment, text: text(segment.address), poolLabel: pane.snapshot.poolLabel(segment.pool) },
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
    const { count, allocations, bytes, how, rows } = pane.search(request.text);
    const { start } = pane.device.allocations;
    const hit = rows.indexOf(1);
    return {
      text: request.text,
      events: count,
      allocations,
      bytes,
      how,
      first: hit >= 0 ? Math.max(start[hit], 0) : pane.search(request.text).events.indexOf(1),
      row: hit,
    };
  }

  /** The next event that a search found. @param {Where & {text: string, event: number, step: 1|-1}} request */
  next(request) {
    const { events } = this.pane(request).search(request.text);
    const { length } = events;
    for (let i = 1; i <= length; i++) {
      const event = (((request.event + request.step * i) % length) + length) % length;
      if (events[event]) return event;
    }
    return -1;
  }

  /** Some rows of the list of events. @param {Where & {text: string, actions: number[]|null, from: number, count: number}} request */
  events(request) {
    const pane = this.pane(request);
    const all = pane.filter(request);
    const rows = Array.from(all.subarray(request.from, request.from + request.count), (event) =>
      describeEvent(pane.snapshot, pane.device, event),
    );
    return { total: all.length, from: request.from, rows };
  }

  /** Where an event stands in the filtered list. @param {Where & {text: string, actions: number[]|null, event: number}} request */
  indexOf(request) {
    const all = this.pane(request).filter(request);
    let low = 0;
    let high = all.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (all[middle] < request.event) low = middle + 1;
      else high = middle;
    }
    return { index: low, exact: all[low] === request.event };
  }

  /** @param {{before: Where & {event: number}, after: Where & {event: number}, key: string, most: number}} request */
  diff({ before, after, key, most }) {
    const [one, other] = [before, after].map((where) => {
      const pane = this.pane(where);
      return {
        pane,
        all: groups(
          pane.snapshot,
          pane.device,
          pane.device.checkpoints.live(where.event),
          key,
          where.event,
          where.event,
        ),
      };
    });
    const changes = diff(one.all, other.all, (group, second) =>
      group.stack === undefined
        ? undefined
        : (second ? other : one).pane.snapshot.stacks.numbers(group.stack).map((number) => {
            const { file, line, name } = (second ? other : one).pane.snapshot.stacks.frames[number];
            return `${file}:${line} ${name}`;
          }),
    );
    const sum = (/** @type {import("./groups.js").Group[]} */ all) =>
      all.reduce((total, group) => total + group.bytes, 0);
    const sent = changes.slice(0, most);
    const told = trails(sent);
    return {
      before: sum(one.all),
      after: sum(other.all),
      changes: sent.map(({ frames, ...change }, i) => ({ ...change, trail: told[i], text: frames?.join(" ← ") })),
      more: Math.max(changes.length - most, 0),
    };
  }
}

/** Buffers of an answer that may be handed over instead of copied. @param {any} answer @returns {ArrayBuffer[]} */
export function handedOver(answer) {
  if (!answer || typeof answer !== "object" || !("pixels" in answer || "requested" in answer)) return [];
  return [
    ...new Set(
      Object.values(answer)
        .filter((value) => ArrayBuffer.isView(value))
        .map((value) => /** @type {ArrayBuffer} */ (value.buffer)),
    ),
  ];
}
