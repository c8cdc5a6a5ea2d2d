/** Groups allocations by line, function, cell and other keys, and describes groups, as `ipygpumem.snapshot.queries.groups` does. */

import { getOrCreate, Numbers } from "../../data/collections.js";
import { NO_REGION } from "../options.js";
import { BEFORE } from "./trace.js";
import { hex, oneLine } from "../../data/units.js";

/**
 * @typedef {object} Description
 * @property {string} label
 * @property {string} [file]
 * @property {number} [line]
 * @property {string} [name]
 * @property {string} [source] the text of the line
 * @property {number} [stack]
 *
 * @typedef {object} Grouping a code for each allocation, and the meaning of the codes
 * @property {Int32Array} codes
 * @property {(code: number, rows?: ArrayLike<number>) => Description} describe rows: a sample of the group
 *
 * @typedef {import("./snapshot.js").Snapshot} Snapshot
 * @typedef {import("./device.js").Device} Device
 */

const LIBRARY = -1;
const NO_PYTHON = -2;
const OLDER = -3;
const NO_STACK = -4;
/** @type {Record<number, string>} */
const UNNAMED = {
  [LIBRARY]: "(no frame of your own code)",
  [NO_PYTHON]: "(no Python frames on the thread, as in a backward pass)",
  [OLDER]: "(older than the recording, without a stack)",
  [NO_STACK]: "(no stack recorded)",
};
const UNKNOWN = "(unknown)";
const MAX_TEXTS = 5; // texts attached to an allocation
const MAX_LENGTH = 200;
const SIZE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** The innermost frame of the user's own code of each allocation, or the reason why there is none. @param {Snapshot} snapshot @param {Device} device */
function userFrames(snapshot, device) {
  const { stacks } = snapshot;
  const { stack, start, length } = device.allocations;
  const codes = new Int32Array(length);
  for (let row = 0; row < length; row++) {
    const id = stack[row];
    let code = id < 0 ? NO_STACK : stacks.leaf[id] < 0 ? NO_PYTHON : stacks.userFrame[id];
    if (start[row] === BEFORE && (code === NO_PYTHON || code === NO_STACK)) code = OLDER;
    codes[row] = code;
  }
  return codes;
}

/**
 * Groups by the innermost frame of the user's own code.
 * @param {Int32Array} codes below 0: there is none @param {Grouping["describe"]} describe @returns {Grouping}
 */
function byUserFrame(codes, describe) {
  return { codes, describe: (code, rows) => (code < 0 ? { label: UNNAMED[code] } : describe(code, rows)) };
}

/** @param {Snapshot} snapshot @param {Device} device @param {import("./stacks.js").Frame} frame @param {ArrayLike<number>} [rows] */
function describeFrame(snapshot, device, { file, line, name }, rows) {
  const short = snapshot.shortFile(file, times(device, rows));
  return { label: oneLine(`${short}:${line} ${name}`), file, line, name };
}

/** Groups by a text of each allocation. @param {Device} device @param {(row: number) => string} textOf @returns {Grouping} */
function byText(device, textOf) {
  const names = new Numbers();
  const codes = new Int32Array(device.allocations.length);
  for (let row = 0; row < codes.length; row++) codes[row] = names.number(textOf(row));
  return { codes, describe: (code) => ({ label: oneLine(names.texts[code]) }) };
}

/** @param {Device} device @param {ArrayLike<number>|undefined} rows */
function times(device, rows) {
  return Array.from(rows ?? [], (row) => startTime(device, row));
}

/** The time of an allocation in microseconds since the Unix epoch; -1 if unknown. @param {Device} device @param {number} row */
function startTime(device, row) {
  const event = device.allocations.start[row];
  return event < 0 ? -1 : device.trace.time[event];
}

/** The cell of one allocation. @param {Snapshot} snapshot @param {Device} device @param {number} row */
export function cellOf(snapshot, device, row) {
  return oneLine(snapshot.cells.label(startTime(device, row), snapshot.cellsOf(device.allocations.stack[row])));
}

/** The innermost annotated region at the time of an allocation. @param {Snapshot} snapshot @param {Device} device @param {number} row */
export function regionOf(snapshot, device, row) {
  const regions = snapshot.annotations(device.index);
  const index = regions.innermost(startTime(device, row));
  return index < 0 ? NO_REGION : oneLine(regions.all[index].name);
}

/** The number of the memory pool of one allocation; -1 if unknown. @param {Snapshot} snapshot @param {Device} device @param {number} row */
export function poolOf(snapshot, device, row) {
  const start = device.allocations.start[row];
  const recorded = start < 0 ? -1 : device.trace.pool[start];
  return recorded >= 0 ? recorded : snapshot.poolAt(device, row);
}

/** @type {Record<string, (snapshot: Snapshot, device: Device) => Grouping>} */
const GROUPINGS = {
  line(snapshot, device) {
    return byUserFrame(userFrames(snapshot, device), (code, rows) => {
      const frame = snapshot.stacks.frames[code];
      const source = snapshot.sourceLine(frame.file, frame.line);
      return { ...describeFrame(snapshot, device, frame, rows), source };
    });
  },

  function(snapshot, device) {
    const names = new Numbers();
    const of = snapshot.stacks.frames.map((frame) => names.number(JSON.stringify([frame.file, frame.name])));
    const codes = userFrames(snapshot, device).map((code) => (code < 0 ? code : of[code]));
    return byUserFrame(codes, (code, rows) => {
      const [file, name] = JSON.parse(names.texts[code]);
      return { label: oneLine(`${snapshot.shortFile(file, times(device, rows))} ${name}`), file, name };
    });
  },

  file(snapshot, device) {
    const names = new Numbers();
    const of = snapshot.stacks.frames.map((frame) => names.number(frame.file));
    const codes = userFrames(snapshot, device).map((code) => (code < 0 ? code : of[code]));
    return byUserFrame(codes, (code) => ({ label: oneLine(names.texts[code]), file: names.texts[code] }));
  },

  cell(snapshot, device) {
    const names = new Numbers();
    const { stack, length } = device.allocations;
    /** The cells in each stack, and its last result. @type {Map<number, {files: import("./cells.js").CellFile[], time: number, code: number}>} */
    const byStack = new Map();
    const codes = new Int32Array(length);
    for (let row = 0; row < length; row++) {
      const create = () => ({ files: snapshot.cellsOf(stack[row]), time: Number.NaN, code: 0 });
      const last = getOrCreate(byStack, stack[row], create);
      const time = startTime(device, row);
      if (last.time !== time) {
        last.time = time;
        last.code = names.number(snapshot.cells.label(time, last.files));
      }
      codes[row] = last.code;
    }
    return { codes, describe: (code) => ({ label: oneLine(names.texts[code]) }) };
  },

  stack(snapshot, device) {
    const { stack } = device.allocations;
    const codes = userFrames(snapshot, device).map((code, row) => (code < LIBRARY ? code : stack[row]));
    return byUserFrame(codes, (code, rows) => {
      const frame = /** @type {import("./stacks.js").Frame} */ (snapshot.stacks.mainFrame(code));
      return { ...describeFrame(snapshot, device, frame, rows), stack: code };
    });
  },

  annotation(snapshot, device) {
    const regions = snapshot.annotations(device.index);
    return byText(device, (row) => {
      const index = regions.innermost(startTime(device, row));
      return index < 0 ? NO_REGION : regions.all[index].name;
    });
  },

  pool(snapshot, device) {
    return {
      codes: Int32Array.from({ length: device.allocations.length }, (_, row) => poolOf(snapshot, device, row)),
      describe: (code) => ({ label: snapshot.poolLabel(code) }),
    };
  },

  stream(snapshot, device) {
    const { start } = device.allocations;
    const { stream } = device.trace;
    return byText(device, (row) => streamLabel(start[row] < 0 ? snapshot.streamAt(device, row) : stream[start[row]]));
  },

  context(snapshot, device) {
    const { start } = device.allocations;
    const texts = device.trace.context;
    return {
      codes: start.map((event) => (event < 0 ? -1 : texts[event])),
      describe: (code) => ({ label: oneLine((code >= 0 ? snapshot.texts[code] : "") || "(none)") }),
    };
  },

  metadata(snapshot, device) {
    const { start } = device.allocations;
    const { metadata } = device.trace;
    const { texts } = snapshot;
    const codes = start.map((event) => (event < 0 ? -1 : metadata[event]));
    const combined = new Numbers();
    for (const [row, events] of device.annotateEvents) {
      const attached = [codes[row], ...events.map((event) => metadata[event])];
      const parts = [...new Set(attached.filter((number) => number >= 0 && texts[number]))].slice(0, MAX_TEXTS);
      const text = () => parts.map((number) => texts[number].slice(0, MAX_LENGTH)).join("; ");
      codes[row] = parts.length > 1 ? texts.length + combined.number(text()) : (parts[0] ?? -1);
    }
    const label = (/** @type {number} */ code) => texts[code] ?? combined.texts[code - texts.length];
    return { codes, describe: (code) => ({ label: oneLine((code >= 0 ? label(code) : "") || "(none)") }) };
  },

  size(_, device) {
    return {
      codes: Int32Array.from(device.allocations.size, (bytes) => Math.ceil(Math.log2(Math.max(bytes, 1)))),
      describe: (code) => ({ label: `up to ${2 ** (code % 10)} ${SIZE_UNITS[Math.floor(code / 10)]}` }),
    };
  },

  allocation(snapshot, device) {
    const { allocations } = device;
    const line = snapshot.key(device, "line");
    allocations.countAddresses(); // naming one allocation without these counts takes linear time
    return {
      codes: Int32Array.from({ length: allocations.length }, (_, row) => row),
      describe: (code) => ({ ...line.describe(line.codes[code], [code]), label: allocations.name(code) }),
    };
  },
};

/** @param {number} stream the raw handle; -1: unknown */
export function streamLabel(stream) {
  return stream === -1 ? UNKNOWN : stream === 0 ? "default stream" : `stream ${hex(stream)}`;
}

/** @param {Snapshot} snapshot @param {Device} device @param {string} key one of `GROUP_KEYS` */
export function groupingBy(snapshot, device, key) {
  return (GROUPINGS[key] ?? GROUPINGS.line)(snapshot, device);
}
