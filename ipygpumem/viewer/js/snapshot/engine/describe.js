/** The details of one allocation or one event, as plain data. */

import { getOrCreate } from "../../data/collections.js";
import { cellOf, poolOf, regionOf, streamLabel } from "../model/keys.js";
import { ACTION, BEFORE } from "../model/trace.js";
import { oneLine, truncate } from "../../data/units.js";

// Characters of each column of a stack: a file can repeat a frame with a long name in two bytes
const MAX_STACK_TEXT = 4_000_000;
const MIN_TEXT = 100;
const MAX_FRAME_TEXT = 500;

/**
 * A stack for display: `own` marks the user's code, `library` names the code that views fold. Long texts in deep stacks are
 * truncated.
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {number} stack @param {number} [time]
 */
export function stackOf(snapshot, stack, time = -1) {
  const numbers = snapshot.stacks.numbers(stack);
  const length = Math.max(Math.floor(MAX_STACK_TEXT / numbers.length), MIN_TEXT);
  return numbers.map((number) => describeFrame(snapshot, number, time, length));
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {number} number @param {number} time @param {number} length maximum of each text */
function describeFrame(snapshot, number, time, length) {
  const { file, line, name, own } = snapshot.stacks.frames[number];
  const text = (/** @type {string} */ long) => truncate(oneLine(long), length);
  return {
    place: text(line ? place(snapshot, { file, line }, time < 0 ? null : time) : snapshot.shortFile(file)),
    name: text(name),
    title: text(line ? `${file}:${line}` : file),
    own,
    library: own ? "" : text(library(file)),
    source: own ? text(snapshot.sourceLine(file, line) ?? "") : "",
  };
}

/** A function that returns the frames of a stack as texts, which all stacks share. @param {import("../model/snapshot.js").Snapshot} snapshot */
export function frameTexts(snapshot) {
  /** @type {Map<number, string>} */
  const texts = new Map();
  const textOf = (/** @type {number} */ number) =>
    getOrCreate(texts, number, () => {
      const frame = describeFrame(snapshot, number, -1, MAX_FRAME_TEXT);
      return `${frame.place} ${frame.name}`;
    });
  return (/** @type {number} */ stack) => snapshot.stacks.numbers(stack).map(textOf);
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {{file: string, line: number}} frame @param {number|null} time */
function place(snapshot, { file, line }, time) {
  return `${snapshot.shortFile(file, time === null ? undefined : [time])}:${line}`;
}

const MAX_ANNOTATIONS = 10;
const PACKAGE = /[/\\](?:site|dist)-packages[/\\]([^/\\]+)/;
const PYTHON = /[/\\]lib[/\\]python3|^<frozen /;
const NATIVE = /\.(c|cc|cpp|cxx|cu|cuh|h|hpp|inl|so)(\.\d+)*$/i;

/** The package or language that a file belongs to. @param {string} file */
function library(file) {
  const match = PACKAGE.exec(file);
  if (match) return oneLine(match[1].replace(/\.py$/, ""));
  if (PYTHON.test(file)) return "Python";
  if (NATIVE.test(file) || file === "??") return "C++";
  return oneLine(file.replaceAll("\\", "/").split("/").at(-2) ?? file) || "other files";
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device @param {number} row */
export function describe(snapshot, device, row) {
  const { allocations, trace } = device;
  const start = allocations.start[row];
  const end = allocations.end[row];
  const requested = allocations.freeRequested[row];
  const line = snapshot.key(device, "line");
  const described = line.describe(line.codes[row], [row]);
  const time = start < 0 ? -1 : trace.time[start];
  const text = (/** @type {Int32Array} */ column) =>
    start >= 0 && column[start] >= 0 ? oneLine(snapshot.texts[column[start]]) : null;
  const block = allocations.block[row];
  return {
    row,
    name: allocations.name(row),
    address: `0x${allocations.addressText(row)}`,
    size: allocations.size[row],
    rounded: block >= 0 ? snapshot.blocks.size[block] : null,
    line: described.label,
    lineCode: line.codes[row],
    source: described.source === undefined ? null : oneLine(described.source),
    cell: cellOf(snapshot, device, row),
    annotation: regionOf(snapshot, device, row),
    stream: start < 0 ? streamLabel(snapshot.streamAt(device, row)) : streamLabel(trace.stream[start]),
    pool: snapshot.poolLabel(poolOf(snapshot, device, row)),
    context: text(trace.context),
    metadata: text(trace.metadata),
    annotations: (device.annotateEvents.get(row) ?? []).slice(0, MAX_ANNOTATIONS).map((event) => ({
      event,
      text: metadataOf(snapshot, trace, event),
    })),
    start: start === BEFORE ? null : start,
    freeRequested: requested >= 0 && requested < trace.length ? requested : null,
    end: end < trace.length ? end : null,
    /** Microseconds from the request to free it until it was free. */
    pendingTime: trace.timed && requested >= 0 && end < trace.length ? trace.time[end] - trace.time[requested] : null,
    startTime: start === BEFORE ? null : device.time(start),
    lifetime: start === BEFORE ? null : device.lifetime(row),
    lifetimeEvents: end - Math.max(start, 0),
    stack: stackOf(snapshot, allocations.stack[row], time),
  };
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/trace.js").Trace} trace @param {number} event */
function metadataOf(snapshot, trace, event) {
  return oneLine(snapshot.texts[trace.metadata[event]] ?? "");
}

/** One row of the list of events. @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device @param {number} event */
export function describeEvent(snapshot, device, event) {
  const { trace } = device;
  const stack = trace.stack[event];
  const frame = snapshot.stacks.mainFrame(stack);
  const address = trace.address[event];
  const time = device.time(event);
  return {
    event,
    action: snapshot.header.actions?.[trace.action[event]] ?? "other",
    address: address || trace.base ? `0x${(BigInt(address) + trace.base).toString(16)}` : "",
    size: trace.size[event],
    total: device.requested.bytes[event + 1],
    stream: streamLabel(trace.stream[event]),
    time: time === null ? null : time - trace.origin,
    line: [
      trace.action[event] === ACTION.ANNOTATE ? metadataOf(snapshot, trace, event) : "",
      frame ? oneLine(frame.line ? `${place(snapshot, frame, time)} ${frame.name}` : frame.name) : "",
    ]
      .filter(Boolean)
      .join(" · "),
    stack: stack >= 0 ? stack : -1,
  };
}
