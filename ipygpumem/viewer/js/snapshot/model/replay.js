/** A recording replayed with other allocator settings, as `ipygpumem.snapshot.export.encoded_replay` encodes it. */

import { addressKey, getOrCreate } from "../../data/collections.js";
import { Curve } from "./curve.js";
import { coveredRanges, stateOf } from "./segment-history.js";
import { ACTION, BEFORE, read } from "./trace.js";
import { size as formatSize } from "../../data/units.js";

/**
 * @typedef {import("./segment-history.js").Segment} Segment
 * @typedef {object} ReplayFacts
 * @property {string} settings
 * @property {string} reason why the replay is not exact; empty if it is
 * @property {number} end the number of replayed events
 * @property {[number, number][]} served events of out-of-memory errors whose requests are served, with their sizes
 * @property {[number, number, number][]} pools index of the private pool, stream, and 1 for the pool for small blocks
 */

export class Replay {
  /** @param {import("./trace.js").Columns} columns @param {import("./device.js").Device} device @param {ReplayFacts} facts */
  constructor(columns, device, facts) {
    this.facts = facts;
    this.device = device;
    this.columns = columns;
    this.prefix = `replay/${device.index}`;
    this.event = read(columns, `${this.prefix}/event`, Int32Array);
    this.action = read(columns, `${this.prefix}/action`, Uint8Array);
    this.address = read(columns, `${this.prefix}/segment`, Float64Array);
    this.size = read(columns, `${this.prefix}/bytes`, Float64Array);
    this.pool = read(columns, `${this.prefix}/pool`, Int32Array);
    const { length } = device.trace;
    const bytes = new Float64Array(length + 1);
    for (const [i, event] of this.event.entries()) {
      const added = this.action[i] === ACTION.SEGMENT_ALLOC || this.action[i] === ACTION.MAP;
      bytes[event + 1] += added ? this.size[i] : -this.size[i];
    }
    for (let state = 1; state <= length; state++) bytes[state] += bytes[state - 1];
    this.reserved = new Curve(bytes.fill(Number.NaN, facts.end + 1));
    /** @type {{address: Float64Array, size: Float64Array}|undefined} */
    this.cache = undefined;
  }

  /** The address and the size of the block of each allocation; size 0: not replayed. */
  get blocks() {
    this.cache ??= {
      address: read(this.columns, `${this.prefix}/address`, Float64Array),
      size: read(this.columns, `${this.prefix}/size`, Float64Array),
    };
    return this.cache;
  }

  /** @param {number} change that allocated or mapped it @returns {Segment} */
  segment(change) {
    const event = this.event[change];
    const expandable = this.action[change] === ACTION.MAP;
    const [pool, stream, small] = this.facts.pools[this.pool[change]] ?? [-1, 0, 0];
    const stack = event > BEFORE && !expandable ? this.device.trace.stack[event] : -1;
    return { address: this.address[change], size: this.size[change], stream, stack, pool, small, expandable, event };
  }

  /** The segments after an event, ordered by address. @param {number} event @returns {Segment[]} */
  segments(event) {
    /** Segments that are not expandable, by `addressKey`. @type {Map<number, number>} */
    const fixed = new Map();
    /** The edges of mapped ranges by pool. @type {Map<number, {change: number, edges: [number, number][]}>} */
    const mapped = new Map();
    for (let i = 0; i < this.event.length && this.event[i] <= event; i++) {
      const { [i]: address } = this.address;
      if (this.action[i] === ACTION.SEGMENT_ALLOC) fixed.set(addressKey(address), i);
      else if (this.action[i] === ACTION.SEGMENT_FREE) fixed.delete(addressKey(address));
      else {
        const weight = this.action[i] === ACTION.MAP ? 1 : -1;
        const { edges } = getOrCreate(mapped, this.pool[i], () => ({ change: i, edges: [] }));
        edges.push([address, weight], [address + this.size[i], -weight]);
      }
    }
    const ranges = [...mapped.values()].flatMap(({ change, edges }) =>
      coveredRanges(edges).map(([address, size]) => ({ ...this.segment(change), address, size, event: BEFORE })),
    );
    return [...Array.from(fixed.values(), (i) => this.segment(i)), ...ranges].sort((a, b) => a.address - b.address);
  }

  /** The state right after an event. @param {number} event @param {import("./snapshot.js").Snapshot} snapshot */
  at(event, snapshot) {
    const { allocations, checkpoints } = this.device;
    const { settings, reason, end, served } = this.facts;
    const last = Math.min(event, end - 1);
    const { address, size } = this.blocks;
    const blocks = Array.from(checkpoints.live(last))
      .filter((row) => size[row] > 0)
      .map((row) => ({
        row,
        address: address[row],
        requested: allocations.size[row],
        rounded: size[row],
        exact: !allocations.uncertain?.[row],
        pending: allocations.freeRequested[row] <= last,
      }))
      .sort((a, b) => a.address - b.address);
    const derived = !blocks.every(({ exact }) => exact);
    const state = stateOf(last, this.segments(last), blocks, derived, snapshot);
    if (!state.segments.length) state.sentences = ["There are no segments at this event."];
    state.sentences.unshift(`Replayed with ${settings}${reason && `, approximately: ${reason}`}.`);
    const request = served.find(([error]) => error === last);
    if (request) {
      // it has no allocation whose details could be shown
      const text = `The request of ${formatSize(request[1])} that failed in the recording is served at this event`;
      state.sentences.unshift(`${text}; its block is not shown.`);
    }
    if (event > last) state.sentences.unshift(`The replay ends before event ${end}, at which a request fails.`);
    return state;
  }
}
