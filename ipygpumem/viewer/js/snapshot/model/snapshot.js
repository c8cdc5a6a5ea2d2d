/** A decoded snapshot: its devices, and what they share. */

import { remember } from "../../data/collections.js";
import { Annotations } from "./annotations.js";
import { Cells } from "./cells.js";
import { Device } from "./device.js";
import { keyed } from "./keys.js";
import { shortPath, Stacks } from "./stacks.js";
import { SegmentHistory } from "./segment-history.js";
import { Stays } from "./segment-lookup.js";
import { ACTION, addresses, BEFORE, read } from "./trace.js";

export class Snapshot {
  /** @param {import("../../data/decode.js").Header} header @param {import("./trace.js").Columns} columns @param {string} name */
  constructor(header, columns, name) {
    this.header = header;
    this.name = name;
    /** @type {string[]} */
    this.texts = header.texts ?? [];
    /** @type {[number, number][]} */
    this.pools = header.pools ?? [];
    /** @type {Record<string, string>} */
    this.sources = header.sources ?? {};
    this.cells = new Cells(header.cells ?? [], header.numbers);
    this.stacks = new Stacks(columns, header.frames ?? []);
    /** @type {Device[]} */
    this.devices = (header.devices ?? []).map((/** @type {any} */ facts) => new Device(columns, facts));
    const base = this.devices.map((one) => one.allocations.base).find((one) => one !== 0n) ?? 0n;
    for (const device of this.devices) device.rebase(base);
    this.segments = table(
      columns,
      "segments",
      ["device", "size", "stream", "pool", "small", "expandable", "stack"],
      base,
    );
    this.blocks = table(columns, "blocks", ["segment", "device", "size", "requested", "state", "stack"], base);
    /** @type {Map<string, string[]>} */
    this.lines = new Map();
    /** @type {Map<number, Annotations>} */
    this.regions = new Map();
    /** @type {Map<string, import("./keys.js").Keyed>} */
    this.keys = new Map();
    /** @type {Map<Device, {stays: Stays<import("./segment-history.js").Stay>, unmapped: number}>} */
    this.held = new Map();
  }

  /** Groups of a device's allocations. @param {Device} device @param {string} key */
  key(device, key) {
    const name = `${device.index} ${key}`;
    const found = remember(this.keys, name, () => keyed(this, device, key));
    return found;
  }

  /** @param {number} device */
  annotations(device) {
    return remember(this.regions, device, () => {
      const all = /** @type {import("./annotations.js").Annotation[]} */ (this.header.annotations ?? []);
      return new Annotations(all.filter((one) => one.device === device));
    });
  }

  /** A file's name for people: In[n] for a cell, else its last two parts. @param {string} file @param {number[]} [times] */
  shortFile(file, times) {
    return (times?.length ? this.cells.runsAt(file, times) : this.cells.runsOf(file)) ?? shortPath(file);
  }

  /** @param {string} file */
  sourceLines(file) {
    return remember(this.lines, file, () => {
      const text = Object.hasOwn(this.sources, file) ? this.sources[file] : "";
      return text ? text.split(/\r\n|\r|\n/) : [];
    });
  }

  /** The text of a line, where the snapshot carries the file's source. @param {string} file @param {number} line */
  sourceLine(file, line) {
    return this.sourceLines(file)[line - 1]?.trim() || undefined;
  }

  /** @param {number} pool number of the pool; -1: unknown */
  poolLabel(pool) {
    if (pool < 0 || !this.pools[pool]) return "(unknown)";
    const [owner, number] = this.pools[pool];
    return owner === 0 && number === 0 ? "default pool" : `private pool (${owner}, ${number})`;
  }

  /** The stream of an allocation older than the recording; -1: unknown. @param {Device} device @param {number} row */
  streamAt(device, row) {
    const block = device.allocations.block[row];
    return block < 0 ? -1 : this.segments.stream[this.blocks.segment[block]];
  }

  /** The pool of the segment that held an allocation when it was made; -1: nobody knows. @param {Device} device @param {number} row */
  poolAt(device, row) {
    const { block, address, start } = device.allocations;
    if (block[row] >= 0) return this.segments.pool[this.blocks.segment[block[row]]];
    const { stays, unmapped } = remember(this.held, device, () => ({
      stays: new Stays(new SegmentHistory(this, device).fixed),
      unmapped: device.trace.events(ACTION.UNMAP).at(-1) ?? BEFORE,
    }));
    const held = stays.at(address[row], start[row]);
    if (held) return held.pool;
    // a mapped range at the end is what it was since the last unmapping
    const segment = start[row] >= unmapped ? this.segmentAt(device, address[row]) : -1;
    return segment >= 0 && this.segments.expandable[segment] ? this.segments.pool[segment] : -1;
  }

  /** The segment at the end that holds an address. @param {Device} device @param {number} address */
  segmentAt(device, address) {
    const { segments } = this;
    for (let low = 0, high = segments.length; low < high; ) {
      const middle = (low + high) >> 1;
      const before = segments.device[middle] < device.index;
      if (
        before ||
        (segments.device[middle] === device.index && segments.address[middle] + segments.size[middle] <= address)
      ) {
        low = middle + 1;
      } else if (segments.device[middle] === device.index && segments.address[middle] <= address) {
        return middle;
      } else {
        high = middle;
      }
    }
    return -1;
  }
}

/**
 * @typedef {Record<string, Float64Array> & {address: Float64Array, length: number}} Table
 * @param {import("./trace.js").Columns} columns @param {string} name @param {string[]} fields @param {bigint} base
 * @returns {Table}
 */
function table(columns, name, fields, base) {
  /** @type {any} */
  const found = {};
  for (const field of fields) found[field] = read(columns, `${name}/${field}`, Float64Array);
  found.address = addresses(columns, name, base).values;
  found.length = found.address.length;
  return found;
}
