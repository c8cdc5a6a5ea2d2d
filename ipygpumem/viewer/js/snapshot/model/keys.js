/** By what allocations can be grouped, and what such a group is called. As `ipygpumem.snapshot.queries.groups`. */

import { remember } from "../../data/collections.js";
import { BEFORE } from "./trace.js";
import { hex, oneLine } from "../../data/units.js";

/**
 * @typedef {object} Named
 * @property {string} label
 * @property {string} [file]
 * @property {number} [line]
 * @property {string} [name]
 * @property {string} [source] the text of the line
 * @property {number} [stack]
 *
 * @typedef {object} Keyed a code for each allocation, and what the codes mean
 * @property {Int32Array} codes
 * @property {(code: number, rows?: ArrayLike<number>) => Named} describe rows: some that have the code
 *
 * @typedef {import("./snapshot.js").Snapshot} Snapshot
 * @typedef {import("./device.js").Device} Device
 */

const FOREIGN = -1;
const EMPTY = -2;
const OLD = -3;
const NO_STACK = -4;
/** @type {Record<number, string>} */
const UNNAMED = {
  [FOREIGN]: "(no frame of your own code)",
  [EMPTY]: "(no Python on that thread, such as a backward pass)",
  [OLD]: "(older than the recording, without a stack)",
  [NO_STACK]: "(no stack recorded)",
};
const UNKNOWN = "(unknown)";
const OUTSIDE = "(outside of all)";
const SIZE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Numbers texts in the order of their first use. */
class Numbers {
  constructor() {
    /** @type {Map<string, number>} */
    this.map = new Map();
    /** @type {string[]} */
    this.texts = [];
  }

  /** @param {string} text */
  number(text) {
    let found = this.map.get(text);
    if (found === undefined) {
      found = this.texts.length;
      this.map.set(text, found);
      this.texts.push(text);
    }
    return found;
  }
}

/** For each allocation the innermost frame of the user's own code, or why there is none. @param {Snapshot} snapshot @param {Device} device */
function userFrames(snapshot, device) {
  const { stacks } = snapshot;
  const { stack, start, length } = device.allocations;
  const codes = new Int32Array(length);
  for (let row = 0; row < length; row++) {
    const one = stack[row];
    let code = one < 0 ? NO_STACK : stacks.leaf[one] < 0 ? EMPTY : stacks.userFrame[one];
    if (start[row] === BEFORE && (code === EMPTY || code === NO_STACK)) code = OLD;
    codes[row] = code;
  }
  return codes;
}

/** @param {Device} device @param {ArrayLike<number>|undefined} rows */
function times(device, rows) {
  const found = [];
  for (let i = 0; i < (rows?.length ?? 0); i++) found.push(startTime(device, /** @type {any} */ (rows)[i]));
  return found;
}

/** When an allocation was made, in microseconds since 1970; -1 if nobody knows. @param {Device} device @param {number} row */
function startTime(device, row) {
  const event = device.allocations.start[row];
  return event < 0 ? -1 : device.trace.time[event];
}

/** The cell of one allocation. @param {Snapshot} snapshot @param {Device} device @param {number} row */
export function cellOf(snapshot, device, row) {
  return oneLine(snapshot.cells.label(startTime(device, row), snapshot.stacks.files(device.allocations.stack[row])));
}

/** The innermost region around the beginning of one allocation. @param {Snapshot} snapshot @param {Device} device @param {number} row */
export function regionOf(snapshot, device, row) {
  const regions = snapshot.annotations(device.index);
  const found = regions.innermost(startTime(device, row));
  return found < 0 ? OUTSIDE : oneLine(regions.all[found].name);
}

/** The number of the pool of one allocation. @param {Snapshot} snapshot @param {Device} device @param {number} row */
export function poolOf(snapshot, device, row) {
  const start = device.allocations.start[row];
  const told = start < 0 ? -1 : device.trace.pool[start];
  return told >= 0 ? told : snapshot.poolAt(device, row);
}

/** @type {Record<string, (snapshot: Snapshot, device: Device) => Keyed>} */
const KEYED = {
  line(snapshot, device) {
    return {
      codes: userFrames(snapshot, device),
      describe(code, rows) {
        if (code < 0) return { label: UNNAMED[code] };
        const { file, line, name } = snapshot.stacks.frames[code];
        const short = snapshot.shortFile(file, times(device, rows));
        return {
          label: oneLine(`${short}:${line} ${name}`),
          file,
          line,
          name,
          source: snapshot.sourceLine(file, line),
        };
      },
    };
  },

  function(snapshot, device) {
    const names = new Numbers();
    const of = snapshot.stacks.frames.map((frame) => names.number(JSON.stringify([frame.file, frame.name])));
    return {
      codes: userFrames(snapshot, device).map((code) => (code < 0 ? code : of[code])),
      describe(code, rows) {
        if (code < 0) return { label: UNNAMED[code] };
        const [file, name] = JSON.parse(names.texts[code]);
        return { label: oneLine(`${snapshot.shortFile(file, times(device, rows))} ${name}`), file, name };
      },
    };
  },

  file(snapshot, device) {
    const names = new Numbers();
    const of = snapshot.stacks.frames.map((frame) => names.number(frame.file));
    return {
      codes: userFrames(snapshot, device).map((code) => (code < 0 ? code : of[code])),
      describe: (code) =>
        code < 0 ? { label: UNNAMED[code] } : { label: oneLine(names.texts[code]), file: names.texts[code] },
    };
  },

  cell(snapshot, device) {
    const names = new Numbers();
    const { stack, length } = device.allocations;
    /** @type {Map<number, string[]>} */
    const files = new Map();
    const codes = new Int32Array(length);
    for (let row = 0; row < length; row++) {
      const of = remember(files, stack[row], () => snapshot.stacks.files(stack[row]));
      codes[row] = names.number(snapshot.cells.label(startTime(device, row), of));
    }
    return { codes, describe: (code) => ({ label: oneLine(names.texts[code]) }) };
  },

  stack(snapshot, device) {
    const { stack } = device.allocations;
    return {
      codes: userFrames(snapshot, device).map((code, row) => (code < FOREIGN ? code : stack[row])),
      describe(code, rows) {
        if (code < 0) return { label: UNNAMED[code] };
        const { stacks } = snapshot;
        const own = stacks.userFrame[code];
        const { file, line, name } = stacks.frames[own >= 0 ? own : stacks.nodeFrame[stacks.leaf[code]]];
        const short = snapshot.shortFile(file, times(device, rows));
        return { label: oneLine(`${short}:${line} ${name}`), file, line, name, stack: code };
      },
    };
  },

  annotation(snapshot, device) {
    const names = new Numbers();
    const regions = snapshot.annotations(device.index);
    const { length } = device.allocations;
    const codes = new Int32Array(length);
    for (let row = 0; row < length; row++) {
      const found = regions.innermost(startTime(device, row));
      codes[row] = names.number(found < 0 ? OUTSIDE : regions.all[found].name);
    }
    return { codes, describe: (code) => ({ label: oneLine(names.texts[code]) }) };
  },

  pool(snapshot, device) {
    return {
      codes: Int32Array.from({ length: device.allocations.length }, (_, row) => poolOf(snapshot, device, row)),
      describe: (code) => ({ label: snapshot.poolLabel(code) }),
    };
  },

  stream(snapshot, device) {
    const names = new Numbers();
    const { start, length } = device.allocations;
    const codes = new Int32Array(length);
    for (let row = 0; row < length; row++) {
      codes[row] = names.number(
        streamLabel(start[row] < 0 ? snapshot.streamAt(device, row) : device.trace.stream[start[row]]),
      );
    }
    return { codes, describe: (code) => ({ label: names.texts[code] }) };
  },

  context: byText("context"),
  metadata: byText("metadata"),

  size(_, device) {
    return {
      codes: Int32Array.from(device.allocations.size, (bytes) => Math.ceil(Math.log2(Math.max(bytes, 1)))),
      describe: (code) => ({ label: `up to ${2 ** (code % 10)} ${SIZE_UNITS[Math.floor(code / 10)]}` }),
    };
  },

  allocation(snapshot, device) {
    const { allocations } = device;
    const line = snapshot.key(device, "line");
    allocations.count(); // names by the thousand: a walk for each would take its time
    return {
      codes: Int32Array.from({ length: allocations.length }, (_, row) => row),
      describe: (code) => ({ ...line.describe(line.codes[code], [code]), label: allocations.name(code) }),
    };
  },
};

/** @param {"context"|"metadata"} column @returns {(snapshot: Snapshot, device: Device) => Keyed} */
function byText(column) {
  return (snapshot, device) => {
    const { start } = device.allocations;
    const texts = device.trace[column];
    return {
      codes: start.map((event) => (event < 0 ? -1 : texts[event])),
      describe: (code) => ({ label: oneLine((code >= 0 ? snapshot.texts[code] : "") || "(none)") }),
    };
  };
}

/** @param {number} stream the raw handle; -1: unknown */
export function streamLabel(stream) {
  return stream === -1 ? UNKNOWN : stream === 0 ? "default stream" : `stream ${hex(stream)}`;
}

/** @param {Snapshot} snapshot @param {Device} device @param {string} key one of `names.KEYS` */
export function keyed(snapshot, device, key) {
  return (KEYED[key] ?? KEYED.line)(snapshot, device);
}
