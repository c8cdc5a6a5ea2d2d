/** The allocator's segments and blocks at any event. As `ipygpumem.snapshot.model.segment_history` and `fragmentation`. */

import { remember } from "../../data/collections.js";
import { ACTION, BEFORE } from "./trace.js";
import { fine, plural, size as bytes } from "../../data/units.js";

const QUANTUM = 512;
const SMALL_SEGMENT = 2 * 1024 * 1024;

/**
 * @typedef {object} Segment
 * @property {number} address less the trace's base
 * @property {number} size
 * @property {number} stream
 * @property {number} stack -1: unknown
 * @property {number} pool -1: unknown
 * @property {number} small 1: of the small pool; -1: unknown
 * @property {boolean} expandable
 * @property {number} event the event that made it; -1: older
 *
 * @typedef {Segment & {start: number, end: number}} Stay
 *
 * @typedef {object} Block
 * @property {number} row
 * @property {number} address
 * @property {number} requested
 * @property {number} rounded
 * @property {boolean} told whether the rounded size is the file's own
 * @property {boolean} pending
 *
 * @typedef {{segment: Segment, blocks: Block[], free: number, largest: number}} Filled
 * @typedef {object} State
 * @property {number} event
 * @property {Filled[]} segments
 * @property {Block[]} outside blocks whose segment the file does not show
 * @property {number} reserved
 * @property {number} requested
 * @property {number} rounding
 * @property {number} free
 * @property {number} largest
 * @property {number} pieces
 * @property {number} empty free bytes in segments without a block
 * @property {number} partly free bytes in segments partly in use
 * @property {number} private free bytes in segments of private pools
 * @property {boolean} derived free pieces are reckoned from the requests: upper bounds
 * @property {string[]} words
 */

export class SegmentHistory {
  /** @param {import("./snapshot.js").Snapshot} snapshot @param {import("./device.js").Device} device */
  constructor(snapshot, device) {
    this.snapshot = snapshot;
    this.device = device;
    const { trace } = device;
    const { segments } = snapshot;
    /** @type {Segment[]} */
    this.ranges = [];
    /** @type {Stay[]} */
    this.fixed = [];
    /** @type {Map<number, Stay>} */
    const last = new Map();
    for (let i = 0; i < segments.length; i++) {
      if (segments.device[i] !== device.index) continue;
      const segment = {
        address: segments.address[i],
        size: segments.size[i],
        stream: segments.stream[i],
        stack: segments.stack[i],
        pool: segments.pool[i],
        small: segments.small[i],
        expandable: segments.expandable[i] !== 0,
        event: BEFORE,
      };
      if (segment.expandable) this.ranges.push(segment);
      else last.set(segment.address, { ...segment, start: BEFORE, end: trace.length });
    }
    /** @type {Map<number, number>} */
    const opened = new Map();
    const stay = (/** @type {number} */ told, /** @type {number} */ start, /** @type {number} */ end) => {
      const size = trace.size[told];
      this.fixed.push({
        address: trace.address[told],
        size,
        stream: trace.stream[told],
        stack: trace.stack[told],
        pool: trace.pool[told],
        small: size === SMALL_SEGMENT ? 1 : 0,
        expandable: false,
        event: start,
        start,
        end,
      });
    };
    for (const event of trace.events(ACTION.SEGMENT_ALLOC, ACTION.SEGMENT_FREE)) {
      const address = trace.address[event];
      if (trace.action[event] === ACTION.SEGMENT_ALLOC) {
        opened.set(address, event);
      } else {
        const begun = opened.get(address) ?? BEFORE;
        opened.delete(address);
        stay(begun === BEFORE ? event : begun, begun, event);
      }
    }
    for (const [address, event] of opened) {
      const known = last.get(address);
      last.delete(address);
      stay(event, event, trace.length);
      // what the end tells of it is more than its event does
      if (known) Object.assign(this.fixed[this.fixed.length - 1], { pool: known.pool, small: known.small });
    }
    this.fixed.push(...last.values());
    this.moves = trace.events(ACTION.MAP, ACTION.UNMAP);
  }

  /** Mapped ranges of expandable segments: those at the end, with all later maps and unmaps taken back. @param {number} event @returns {Segment[]} */
  mapped(event) {
    const { trace } = this.device;
    const later = this.moves.filter((one) => one > event);
    if (!later.length) return this.ranges;
    /** @type {Map<number, [number, number][]>} */
    const points = new Map();
    const add = (
      /** @type {number} */ stream,
      /** @type {number} */ address,
      /** @type {number} */ size,
      /** @type {number} */ weight,
    ) => {
      const all = remember(points, stream, () => []);
      all.push([address, weight], [address + size, -weight]);
    };
    for (const one of this.ranges) add(one.stream, one.address, one.size, 1);
    for (const one of later)
      add(trace.stream[one], trace.address[one], trace.size[one], trace.action[one] === ACTION.MAP ? -1 : 1);
    /** @type {Segment[]} */
    const found = [];
    for (const [stream, all] of points) {
      all.sort(([a], [b]) => a - b);
      let cover = 0;
      let open = 0;
      for (let i = 0; i < all.length; ) {
        const place = all[i][0];
        const before = cover;
        for (; i < all.length && all[i][0] === place; i++) cover += all[i][1];
        if (before <= 0 && cover > 0) open = place;
        if (before > 0 && cover <= 0) found.push(this.range(stream, open, place - open));
      }
    }
    return found.sort((a, b) => a.address - b.address);
  }

  /** @param {number} stream @param {number} address @param {number} size @returns {Segment} */
  range(stream, address, size) {
    // what a range at the end tells holds for the range that it grew from
    const grown = this.ranges.find((one) => one.address <= address && address < one.address + one.size);
    return {
      address,
      size,
      stream,
      stack: grown?.stack ?? -1,
      pool: grown?.pool ?? -1,
      small: grown?.small ?? -1,
      expandable: true,
      event: BEFORE,
    };
  }

  /** The state right after an event. @param {number} event @returns {State} */
  at(event) {
    const { device, snapshot } = this;
    const { allocations, trace } = device;
    const segments = [...this.fixed.filter((one) => one.start <= event && event < one.end), ...this.mapped(event)];
    segments.sort((a, b) => a.address - b.address);
    const atEnd = event === trace.length - 1;
    const exact = atEnd && !device.facts.only_in_segments && !device.facts.only_in_events;
    /** @type {Block[]} */
    const blocks = [];
    for (const row of device.checkpoints.live(event)) {
      const place = allocations.block[row];
      const told = exact && place >= 0;
      const requested = allocations.size[row];
      const rounded = told ? snapshot.blocks.size[place] : Math.max(Math.ceil(requested / QUANTUM), 1) * QUANTUM;
      blocks.push({
        row,
        address: allocations.address[row],
        requested,
        rounded,
        told,
        pending: allocations.asked[row] <= event,
      });
    }
    blocks.sort((a, b) => a.address - b.address);
    const own = (/** @type {Segment} */ { pool }) => pool >= 0 && snapshot.pools[pool].some((number) => number !== 0);
    return summed(event, segments, blocks, !exact, own);
  }
}

/**
 * @param {number} event @param {Segment[]} segments @param {Block[]} blocks @param {boolean} derived
 * @param {(segment: Segment) => boolean} own of a private pool
 * @returns {State}
 */
function summed(event, segments, blocks, derived, own) {
  /** @type {State} */
  const state = {
    event,
    segments: segments.map((segment) => ({ segment, blocks: [], free: 0, largest: 0 })),
    outside: [],
    reserved: 0,
    requested: 0,
    rounding: 0,
    free: 0,
    largest: 0,
    pieces: 0,
    empty: 0,
    partly: 0,
    private: 0,
    derived,
    words: [],
  };
  let place = 0;
  for (const block of blocks) {
    while (place < segments.length && segments[place].address + segments[place].size <= block.address) place++;
    if (place < segments.length && segments[place].address <= block.address) state.segments[place].blocks.push(block);
    else state.outside.push(block);
    state.requested += block.requested;
    state.rounding += Math.max(block.rounded - block.requested, 0);
  }
  for (const filled of state.segments) {
    const { segment } = filled;
    let at = segment.address;
    const gap = (/** @type {number} */ until) => {
      if (until > at) {
        filled.free += until - at;
        filled.largest = Math.max(filled.largest, until - at);
        state.pieces++;
      }
    };
    for (const block of filled.blocks) {
      gap(block.address);
      at = Math.max(at, block.address + block.rounded);
    }
    gap(segment.address + segment.size);
    state.reserved += segment.size;
    state.free += filled.free;
    state.largest = Math.max(state.largest, filled.largest);
    if (own(segment)) state.private += filled.free;
    else if (filled.blocks.length) state.partly += filled.free;
    else state.empty += filled.free;
  }
  state.words = words(state);
  return state;
}

/** Fragmentation, in sentences. @param {State} state */
function words(state) {
  if (!state.segments.length) return ["The file shows no segments at this event."];
  const found = [];
  const upTo = state.derived ? "up to " : "";
  if (!state.free) {
    found.push("No byte of the segments is free.");
  } else {
    found.push(
      `${upTo}${bytes(state.free)} of ${bytes(state.reserved)} reserved are free, in ${plural(state.pieces, "piece")}; the largest is ${bytes(state.largest)}.`,
    );
  }
  if (state.empty)
    found.push(`${bytes(state.empty)} lie in segments without a block: torch.cuda.empty_cache() would give them back.`);
  if (state.partly)
    found.push(`${upTo}${bytes(state.partly)} lie in segments partly in use, where only PyTorch can use them.`);
  if (state.private) {
    found.push(
      `${upTo}${bytes(state.private)} lie in private pools: only the CUDA graphs that they belong to can use them.`,
    );
  }
  if (state.rounding) found.push(`Rounding takes ${state.derived ? "at least " : ""}${fine(state.rounding)}.`);
  return found.map((text) => text[0].toUpperCase() + text.slice(1));
}
