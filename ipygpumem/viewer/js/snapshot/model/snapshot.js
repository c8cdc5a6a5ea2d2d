/** A decoded snapshot: its devices and the tables that they share. */

import { countWhile, getOrCreate, TextMap } from "../../data/collections.js";
import { shorten } from "../../data/units.js";
import { Annotations } from "./annotations.js";
import { Cells } from "./cells.js";
import { Device } from "./device.js";
import { groupingBy } from "./keys.js";
import { shortPath, Stacks } from "./stacks.js";
import { SegmentHistory } from "./segment-history.js";
import { SegmentLookup } from "./segment-lookup.js";
import { ACTION, addresses, BEFORE, read } from "./trace.js";

const MAX_CELLS = 100; // in a stack that are considered, as in `ipygpumem.snapshot.model.cells`

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
    const base = this.devices.map((device) => device.allocations.base).find((value) => value !== 0n) ?? 0n;
    for (const device of this.devices) device.rebase(base);
    this.segments = table(
      columns,
      "segments",
      ["device", "size", "stream", "pool", "small", "expandable", "stack"],
      base,
    );
    this.blocks = table(columns, "blocks", ["segment", "device", "size", "requested", "state", "stack"], base);
    /** The cell of each file in stacks. @type {(import("./cells.js").CellFile|null)[]} */
    this.cellFiles = [];
    /** @type {TextMap<string[]>} */
    this.sourceCache = new TextMap();
    /** @type {Map<number, Annotations>} */
    this.regions = new Map();
    /** @type {Map<string, import("./keys.js").Grouping>} */
    this.groupings = new Map();
    /** @type {Map<Device, {lookup: SegmentLookup<import("./segment-history.js").FixedSegment>, unmapped: number}>} */
    this.lookups = new Map();
  }

  /** The groups of a device's allocations. @param {Device} device @param {string} key */
  key(device, key) {
    return getOrCreate(this.groupings, `${device.index} ${key}`, () => groupingBy(this, device, key));
  }

  /** @param {number} device */
  annotations(device) {
    return getOrCreate(this.regions, device, () => {
      const all = /** @type {import("./annotations.js").Annotation[]} */ (this.header.annotations ?? []);
      return new Annotations(all.filter((annotation) => annotation.device === device));
    });
  }

  /** A short file name: In[n] for a cell, else the last two parts of the path. @param {string} file @param {number[]} [times] */
  shortFile(file, times) {
    return (times?.length ? this.cells.labelAt(file, times) : this.cells.labelOf(file)) ?? shortPath(file);
  }

  /** The outermost cells in a stack. @param {number} stack */
  cellsOf(stack) {
    const { cells, stacks, cellFiles } = this;
    /** @type {import("./cells.js").CellFile[]} */
    const found = [];
    for (const file of stacks.filesOf(stack)) {
      if (cellFiles[file] === undefined) cellFiles[file] = cells.find(stacks.files.names[file]);
      const cell = cellFiles[file];
      if (cell && found.push(cell) === MAX_CELLS) break;
    }
    return found;
  }

  /** @param {string} file */
  sourceLines(file) {
    return getOrCreate(this.sourceCache, file, () => {
      const text = Object.hasOwn(this.sources, file) ? this.sources[file] : "";
      return text ? text.split(/\r\n|\r|\n/) : [];
    });
  }

  /** The text of a line, if the snapshot contains the source of its file. @param {string} file @param {number} line */
  sourceLine(file, line) {
    return shorten(this.sourceLines(file)[line - 1]?.trim() ?? "") || undefined;
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

  /** The pool of the segment from which a block was allocated; -1: unknown. @param {Device} device @param {number} row */
  poolAt(device, row) {
    const { block, address, start } = device.allocations;
    if (block[row] >= 0) return this.segments.pool[this.blocks.segment[block[row]]];
    const { lookup, unmapped } = getOrCreate(this.lookups, device, () => ({
      lookup: new SegmentLookup(new SegmentHistory(this, device).fixed),
      unmapped: device.trace.events(ACTION.UNMAP).at(-1) ?? BEFORE,
    }));
    const fixed = lookup.at(address[row], start[row]);
    if (fixed) return fixed.pool;
    // A final mapped range has been unchanged since the last unmapping
    const segment = start[row] >= unmapped ? this.segmentAt(device, address[row]) : -1;
    return segment >= 0 && this.segments.expandable[segment] ? this.segments.pool[segment] : -1;
  }

  /** The final segment that contains an address; -1 if there is none. @param {Device} device @param {number} address */
  segmentAt(device, address) {
    const { segments } = this;
    const own = (/** @type {number} */ i) => segments.device[i] === device.index;
    const ended = (/** @type {number} */ i) => own(i) && segments.address[i] + segments.size[i] <= address;
    const index = countWhile(segments.length, (i) => segments.device[i] < device.index || ended(i));
    return index < segments.length && own(index) && segments.address[index] <= address ? index : -1;
  }
}

/**
 * @typedef {Record<string, Float64Array> & {address: Float64Array, length: number}} Table
 * @param {import("./trace.js").Columns} columns @param {string} name @param {string[]} fields @param {bigint} base
 * @returns {Table}
 */
function table(columns, name, fields, base) {
  /** @type {any} */
  const result = {};
  for (const field of fields) result[field] = read(columns, `${name}/${field}`, Float64Array);
  result.address = addresses(columns, name, base).values;
  result.length = result.address.length;
  return result;
}
