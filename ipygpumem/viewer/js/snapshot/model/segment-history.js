/** The allocator's segments and blocks at any event, as `ipygpumem.snapshot` computes them. */

import { addressKey, countWhile, getOrCreate } from "../../data/collections.js";
import { ACTION, BEFORE } from "./trace.js";
import { fine, plural, size } from "../../data/units.js";

const QUANTUM = 512;
const SMALL_SEGMENT = 2 * 1024 * 1024;

/**
 * @typedef {object} Segment
 * @property {number} address relative to the base of the trace
 * @property {number} size
 * @property {number} stream
 * @property {number} stack -1: unknown
 * @property {number} pool -1: unknown
 * @property {number} small 1: in the pool for small blocks; -1: unknown
 * @property {boolean} expandable
 * @property {number} event the event that allocated it; -1: older than the recording
 *
 * @typedef {Segment & {start: number, end: number}} FixedSegment
 *
 * @typedef {object} Block
 * @property {number} row
 * @property {number} address
 * @property {number} requested
 * @property {number} rounded
 * @property {boolean} exact the rounded size comes from the file or from a replay
 * @property {boolean} pending
 *
 * @typedef {{segment: Segment, blocks: Block[], free: number, largest: number}} Filled
 * @typedef {ReturnType<typeof stateOf>} State
 */

/** The fields that segments and events have in common. @param {any} columns @param {number} i */
function fieldsOf({ address, size, stream, stack, pool }, i) {
  return { address: address[i], size: size[i], stream: stream[i], stack: stack[i], pool: pool[i] };
}

export class SegmentHistory {
  /** @param {import("./snapshot.js").Snapshot} snapshot @param {import("./device.js").Device} device */
  constructor(snapshot, device) {
    this.snapshot = snapshot;
    this.device = device;
    const { trace } = device;
    const { segments } = snapshot;
    /** @type {Segment[]} */
    this.ranges = [];
    /** @type {FixedSegment[]} */
    this.fixed = [];
    /** By `addressKey`. @type {Map<number, FixedSegment>} */
    const last = new Map();
    for (let i = 0; i < segments.length; i++) {
      if (segments.device[i] !== device.index) continue;
      const expandable = segments.expandable[i] !== 0;
      const segment = { ...fieldsOf(segments, i), small: segments.small[i], expandable, event: BEFORE };
      if (segment.expandable) this.ranges.push(segment);
      else last.set(addressKey(segment.address), { ...segment, start: BEFORE, end: trace.length });
    }
    /** By `addressKey`. @type {Map<number, number>} */
    const opened = new Map();
    const add = (/** @type {number} */ source, /** @type {number} */ start, /** @type {number} */ end) => {
      const small = trace.size[source] === SMALL_SEGMENT ? 1 : 0;
      this.fixed.push({ ...fieldsOf(trace, source), small, expandable: false, event: start, start, end });
    };
    for (const event of trace.events(ACTION.SEGMENT_ALLOC, ACTION.SEGMENT_FREE)) {
      const key = addressKey(trace.address[event]);
      if (trace.action[event] === ACTION.SEGMENT_ALLOC) {
        opened.set(key, event);
      } else {
        const start = opened.get(key) ?? BEFORE;
        opened.delete(key);
        add(start === BEFORE ? event : start, start, event);
      }
    }
    for (const [key, event] of opened) {
      const final = last.get(key);
      last.delete(key);
      add(event, event, trace.length);
      // The file contains more fields for segments that exist at the end than for the event
      if (final) Object.assign(this.fixed[this.fixed.length - 1], { pool: final.pool, small: final.small });
    }
    for (const segment of last.values()) this.fixed.push(segment); // they may be more than a call can have arguments
    this.mappings = trace.events(ACTION.MAP, ACTION.UNMAP);
  }

  /** Mapped ranges of expandable segments: the final ones, with all later mappings undone. @param {number} event @returns {Segment[]} */
  mapped(event) {
    const { trace } = this.device;
    const later = this.mappings.filter((mapping) => mapping > event);
    if (!later.length) return this.ranges;
    /** By stream, as text: the hash of a number can be predicted. @type {Map<string, {stream: number, edges: [number, number][]}>} */
    const points = new Map();
    /** @type {(stream: number, address: number, size: number, weight: number) => void} */
    const add = (stream, address, size, weight) => {
      const { edges } = getOrCreate(points, `stream ${stream}`, () => ({ stream, edges: [] }));
      edges.push([address, weight], [address + size, -weight]);
    };
    for (const range of this.ranges) add(range.stream, range.address, range.size, 1);
    for (const i of later)
      add(trace.stream[i], trace.address[i], trace.size[i], trace.action[i] === ACTION.MAP ? -1 : 1);
    /** @type {Segment[]} */
    const mapped = [];
    for (const { stream, edges } of points.values()) {
      for (const [address, size] of coveredRanges(edges)) mapped.push(this.range(stream, address, size));
    }
    return mapped.sort((a, b) => a.address - b.address);
  }

  /** @param {number} stream @param {number} address @param {number} size @returns {Segment} */
  range(stream, address, size) {
    // The final range at this address has the same stack and pool
    const before = this.ranges[countWhile(this.ranges.length, (i) => this.ranges[i].address <= address) - 1];
    const final = before && address < before.address + before.size ? before : { stack: -1, pool: -1, small: -1 };
    const { stack, pool, small } = final;
    return { address, size, stream, stack, pool, small, expandable: true, event: BEFORE };
  }

  /** The state right after an event. @param {number} event @returns {State} */
  at(event) {
    const { device, snapshot } = this;
    const { allocations, trace } = device;
    const segments = [...this.fixed.filter(({ start, end }) => start <= event && event < end), ...this.mapped(event)];
    segments.sort((a, b) => a.address - b.address);
    const atEnd = event === trace.length - 1;
    const complete = atEnd && !device.facts.only_in_segments && !device.facts.only_in_events;
    const { remainder, uncertain } = allocations;
    const blocks = Array.from(device.checkpoints.live(event), (row) => {
      const block = allocations.block[row];
      const inFile = complete && block >= 0;
      const requested = allocations.size[row];
      const multiple = Math.max(Math.ceil(requested / QUANTUM), 1) * QUANTUM;
      const rounded = inFile ? snapshot.blocks.size[block] : multiple + (remainder?.[row] ?? 0);
      return {
        row,
        address: allocations.address[row],
        requested,
        rounded,
        exact: inFile || (remainder !== undefined && !uncertain?.[row]),
        pending: allocations.freeRequested[row] <= event,
      };
    });
    blocks.sort((a, b) => a.address - b.address);
    const known = remainder !== undefined && blocks.every(({ exact }) => exact);
    return stateOf(event, segments, blocks, !complete && !known, snapshot);
  }
}

/**
 * The ranges with a positive sum of weights.
 * @param {[number, number][]} edges address and weight; sorted in place
 * @returns {[number, number][]} address and size
 */
export function coveredRanges(edges) {
  edges.sort(([a], [b]) => a - b);
  /** @type {[number, number][]} */
  const ranges = [];
  let depth = 0;
  let start = 0;
  for (let i = 0; i < edges.length; ) {
    const address = edges[i][0];
    const before = depth;
    for (; i < edges.length && edges[i][0] === address; i++) depth += edges[i][1];
    if (before <= 0 && depth > 0) start = address;
    if (before > 0 && depth <= 0) ranges.push([start, address - start]);
  }
  return ranges;
}

/**
 * @param {number} event @param {Segment[]} segments @param {Block[]} blocks both ordered by address
 * @param {boolean} derived @param {import("./snapshot.js").Snapshot} snapshot
 */
export function stateOf(event, segments, blocks, derived, snapshot) {
  const isPrivate = (/** @type {Segment} */ { pool }) =>
    pool >= 0 && snapshot.pools[pool].some((number) => number !== 0);
  const state = {
    event,
    segments: segments.map((segment) => /** @type {Filled} */ ({ segment, blocks: [], free: 0, largest: 0 })),
    outside: /** @type {Block[]} */ ([]), // blocks whose segment is not in the file
    reserved: 0,
    requested: 0,
    rounding: 0,
    free: 0,
    largest: 0,
    pieces: 0, // number of free blocks
    empty: 0, // free bytes in segments without blocks in use
    partly: 0, // free bytes in partly used segments
    private: 0, // free bytes in segments of private pools
    derived, // the sizes of free blocks are computed from requested sizes and are upper bounds
    sentences: /** @type {string[]} */ ([]), // about fragmentation
  };
  let index = 0;
  for (const block of blocks) {
    while (index < segments.length && segments[index].address + segments[index].size <= block.address) index++;
    if (index < segments.length && segments[index].address <= block.address) state.segments[index].blocks.push(block);
    else state.outside.push(block);
    state.requested += block.requested;
    state.rounding += Math.max(block.rounded - block.requested, 0);
  }
  for (const filled of state.segments) {
    const { segment } = filled;
    let end = segment.address; // of the blocks so far
    const addGap = (/** @type {number} */ next) => {
      if (next <= end) return;
      filled.free += next - end;
      filled.largest = Math.max(filled.largest, next - end);
      state.pieces++;
    };
    for (const block of filled.blocks) {
      addGap(block.address);
      end = Math.max(end, block.address + block.rounded);
    }
    addGap(segment.address + segment.size);
    state.reserved += segment.size;
    state.free += filled.free;
    state.largest = Math.max(state.largest, filled.largest);
    if (isPrivate(segment)) state.private += filled.free;
    else if (filled.blocks.length) state.partly += filled.free;
    else state.empty += filled.free;
  }
  state.sentences = fragmentation(state);
  return state;
}

/** Fragmentation in sentences. @param {State} state */
function fragmentation(state) {
  const { segments, derived, free, reserved, pieces, largest, empty, partly, rounding } = state;
  if (!segments.length) return ["The file has no segments at this event."];
  const upTo = derived ? "up to " : "";
  const sentences = free
    ? [
        `${upTo}${size(free)} of ${size(reserved)} reserved is free, in ${plural(pieces, "block")}; the largest is ${size(largest)}.`,
      ]
    : ["No memory in the segments is free."];
  if (empty) sentences.push(`${size(empty)} is in unused segments, which torch.cuda.empty_cache() releases.`);
  if (partly) sentences.push(`${upTo}${size(partly)} is in partly used segments, which only PyTorch can reuse.`);
  if (state.private)
    sentences.push(`${upTo}${size(state.private)} is in private pools, reserved for CUDA graphs or a MemPool.`);
  if (rounding) sentences.push(`Rounding takes up ${derived ? "at least " : ""}${fine(rounding)}.`);
  return sentences.map((text) => text[0].toUpperCase() + text.slice(1));
}
