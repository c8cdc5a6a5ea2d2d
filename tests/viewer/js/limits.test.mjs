/** The work of the viewer is proportional to the size of the data, even if a file repeats an object many times. */

import assert from "node:assert/strict";
import test from "node:test";
import { deflateSync } from "node:zlib";
import { Numbers } from "../../../ipygpumem/viewer/js/data/collections.js";
import { decode } from "../../../ipygpumem/viewer/js/data/decode.js";
import { oneLine } from "../../../ipygpumem/viewer/js/data/units.js";
import { classify } from "../../../ipygpumem/viewer/js/snapshot/engine/classes.js";
import { joinFrames } from "../../../ipygpumem/viewer/js/snapshot/engine/callers.js";
import { describe, frameTexts, stackOf } from "../../../ipygpumem/viewer/js/snapshot/engine/describe.js";
import { expand } from "../../../ipygpumem/viewer/js/snapshot/engine/expand.js";
import { icicle } from "../../../ipygpumem/viewer/js/snapshot/engine/icicle.js";
import { overviewOf } from "../../../ipygpumem/viewer/js/snapshot/engine/overview.js";
import { Cells } from "../../../ipygpumem/viewer/js/snapshot/model/cells.js";
import { SegmentHistory } from "../../../ipygpumem/viewer/js/snapshot/model/segment-history.js";
import { SegmentLookup } from "../../../ipygpumem/viewer/js/snapshot/model/segment-lookup.js";
import { createSnapshot } from "./snapshots.mjs";

/** Count the calls of a method. */
function counted(object, name) {
  const calls = [];
  const original = object[name].bind(object);
  object[name] = (...values) => {
    calls.push(values);
    return original(...values);
  };
  return calls;
}

/** A snapshot in which all allocations have the same stack of some depth. */
function deepStack(depth, count, header = {}) {
  const nodes = Array.from({ length: depth }, (_, node) => node);
  const events = nodes.slice(0, count).map((event) => ({ action: 0, size: 1, time: event + 5, stack: 0 }));
  const allocations = events.map((_, start) => ({ start, end: count, size: 1, stack: 0 }));
  const frames = nodes.map((node) => [`/usr/lib/${node}.c`, 1, `f${node}`]);
  const columns = {
    "stacks/own": nodes.map(() => 0),
    "stacks/node_frame": nodes,
    "stacks/node_parent": nodes.map((node) => node - 1),
    "stacks/leaf": [depth - 1],
    "stacks/user_frame": [-1],
  };
  return createSnapshot(events, allocations, { header: { frames, ...header }, columns });
}

test("short columns are not decompressed", async (context) => {
  const columns = Array.from({ length: 2000 }, (_, number) => ({ name: `c${number}`, width: 1, count: 2, bytes: 2 }));
  const header = deflateSync(JSON.stringify({ columns: columns.map((facts) => ({ ...facts, coding: "plain" })) }));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(header.length);
  const data = Buffer.concat([Buffer.from("ipgmsnap"), length, header, Buffer.alloc(4000, 7)]);
  let streams = 0;
  const { DecompressionStream } = globalThis;
  context.after(() => {
    globalThis.DecompressionStream = DecompressionStream;
  });
  globalThis.DecompressionStream = class extends DecompressionStream {
    constructor(format) {
      super(format);
      streams++;
    }
  };
  const { column } = await decode(data.buffer.slice(data.byteOffset, data.byteOffset + data.length));
  assert.deepEqual([...column("c1999").into(Int32Array)], [7, 7]);
  assert.equal(streams, 1);
});

test("many devices share a limited number of cells", () => {
  const cells = Array.from({ length: 20000 }, (_, number) => ({
    number,
    filename: "",
    start_us: number,
    end_us: number,
  }));
  const events = [{ action: 0, size: 1, time: 5 }];
  const { devices } = createSnapshot(events, []).header;
  const snapshot = createSnapshot(events, [], { header: { cells, devices: Array(100).fill(devices[0]) } });
  assert.equal(overviewOf(snapshot).devices[99].cells.length, 1000);
  assert.equal(overviewOf(createSnapshot(events, [], { header: { cells } })).devices[0].cells.length, 20000);
});

test("a stack is not walked for each allocation", () => {
  const snapshot = deepStack(500, 400);
  const walks = counted(snapshot.stacks, "numbers");
  const files = counted(snapshot.cells, "label");
  assert.equal(classify(snapshot, snapshot.devices[0], "category").classes[4].count, 400);
  snapshot.key(snapshot.devices[0], "cell");
  assert.ok(walks.length <= 1);
  assert.ok(files.every(([, names]) => names.length === 0));
});

test("the depth of the icicle is limited", () => {
  const snapshot = deepStack(1500, 1);
  const root = Array.from({ length: 1500 }, (_, node) => `f${node}`).join("/");
  const request = { key: "stack", measure: "bytes", first: -1, last: 1, root, threshold: 0.001 };
  assert.equal(icicle(snapshot, snapshot.devices[0], [0], request).boxes.length, 1001);
});

test("the number of calls in the icicle is limited", () => {
  const annotation = { device: 0, depth: 0, ambiguous: false };
  const annotations = Array.from({ length: 110 }, (_, number) => ({
    ...annotation,
    name: `step ${number}`,
    start_us: number + 5,
    end_us: number + 5,
  }));
  const snapshot = deepStack(1000, 110, { annotations });
  let nodes = 0;
  snapshot.shortFile = () => `${++nodes}`;
  const rows = Array.from({ length: 110 }, (_, row) => row);
  const request = { key: "annotation", measure: "bytes", first: -1, last: 110, root: "", threshold: 0.001 };
  const { boxes, total } = icicle(snapshot, snapshot.devices[0], rows, request);
  assert.equal(nodes, 100_000);
  assert.equal(total, 110);
  assert.ok(boxes.length >= 110);
});

test("the runs of a cell are labeled once", () => {
  const cells = Array.from({ length: 9 }, (_, number) => ({
    number,
    filename: "c.py",
    start_us: number,
    end_us: number,
  }));
  const snapshot = createSnapshot([], [], { header: { cells } });
  const calls = counted(snapshot.cells, "joinLabels");
  for (let i = 0; i < 5; i++) assert.equal(snapshot.shortFile("c.py"), "In[0] … In[8]");
  assert.equal(calls.length, 1);
});

/** Columns of final segments at ascending addresses. */
function finalSegments(count, expandable) {
  const constants = { device: 0, size: 512, stream: 0, pool: 0, small: 0, expandable, stack: -1 };
  const columns = Object.entries(constants).map(([name, value]) => [`segments/${name}`, Array(count).fill(value)]);
  return Object.fromEntries([...columns, ["segments/address", Array.from({ length: count }, (_, i) => 4096 * i)]]);
}

test("there may be more final segments than a function can have arguments", () => {
  const snapshot = createSnapshot([{ action: 0, size: 1, time: 1 }], [], { columns: finalSegments(140_000, 0) });
  assert.equal(new SegmentHistory(snapshot, snapshot.devices[0]).fixed.length, 140_000);
});

test("the final range of a mapped range is found without a linear search", () => {
  const events = Array.from({ length: 100 }, (_, i) => ({ action: 5, size: 512, address: 1e9 + 4096 * i, time: i }));
  const columns = finalSegments(100, 1);
  columns["segments/pool"] = columns["segments/pool"].map((_, i) => i);
  const snapshot = createSnapshot(events, [], { columns });
  const history = new SegmentHistory(snapshot, snapshot.devices[0]);
  const reads = new Set();
  history.ranges = new Proxy(history.ranges, { get: (target, name) => reads.add(name) && target[name] });
  const { pool } = history.range(0, 99 * 4096 + 100, 100);
  assert.equal(pool, 99);
  assert.equal(history.range(0, 99 * 4096 + 512, 100).pool, -1);
  assert.equal(history.range(0, -1, 100).pool, -1);
  assert.ok(reads.size < 20);
});

test("the search for the segment of an address considers a limited number of lower addresses", () => {
  const segment = (address, size, end) => ({ address, size, start: 0, end });
  const large = segment(0, 1 << 30, 1);
  const small = Array.from({ length: 3000 }, (_, i) => segment(4096 * (i + 1), 256, 9));
  const lookup = new SegmentLookup([large, ...small]);
  const reads = [];
  lookup.bases = new Proxy(lookup.bases, { get: (target, name) => reads.push(name) && target[name] });
  assert.equal(lookup.at(3000 * 4096 + 300, 5), undefined);
  assert.ok(reads.length < 2200);
  assert.equal(lookup.at(1999 * 4096 - 1, 0), large);
  assert.equal(lookup.at(3000 * 4096 + 300, 0), undefined); // as in Python
});

test("long texts are truncated", () => {
  const long = "n".repeat(1e6);
  const none = { name: [0], filename: [0] };
  const header = { strings: [long], texts: [long], numbers: { [long]: 7 }, sources: { [long]: long } };
  const expanded = expand({ ...header, frames: [[0, 1, 0]], annotations: none, cells: none });
  const short = `${"n".repeat(1999)}…`;
  assert.deepEqual(expanded.frames, [[short, 1, short]]);
  assert.deepEqual(expanded.texts, [short]);
  assert.deepEqual(expanded.numbers, { [short]: 7 });
  assert.deepEqual([expanded.annotations[0].name, expanded.cells[0].filename], [short, short]);
  assert.equal(createSnapshot([], [], { header: expanded }).sourceLine(short, 1), short);
  assert.equal(oneLine(long), short);
  assert.equal(oneLine(long.slice(0, 2000)), long.slice(0, 2000));
});

test("the details of an allocation contain ten of the texts that were attached to it", () => {
  const attached = Array.from({ length: 1000 }, (_, n) => ({ action: 9, address: 4096, time: n + 6, metadata: 0 }));
  const events = [{ action: 0, address: 4096, size: 1, time: 5 }, ...attached];
  const allocations = [{ address: 4096, size: 1, start: 0, end: 1001 }];
  const snapshot = createSnapshot(events, allocations, { header: { texts: ["x"] } });
  const { annotations } = describe(snapshot, snapshot.devices[0], 0);
  assert.equal(annotations.length, 10);
  assert.deepEqual(annotations[0], { event: 1, text: "x" });
});

/** Positive integers whose hashes in V8 (`ComputeUnseededHash`) end with the same 15 bits, by inverting the hash. */
function collidingIntegers(count) {
  const inverse = (factor) => {
    let result = factor; // correct in 3 bits, which each step doubles
    for (let step = 0; step < 4; step++) result = Math.imul(result, 2 - Math.imul(factor, result));
    return result;
  };
  const unshift = (value, bits) => {
    let result = value;
    for (let known = bits; known < 32; known += bits) result = value ^ (result >>> bits);
    return result;
  };
  const integers = [];
  for (let high = 1; integers.length < count; high++) {
    let value = unshift(high << 15, 16);
    value = unshift(Math.imul(value, inverse(2057)), 4);
    value = unshift(Math.imul(value, inverse(5)), 12);
    value = Math.imul(value + 1, inverse(32767));
    if (value > 0) integers.push(value);
  }
  return integers;
}

test("addresses with the same hash are found quickly", () => {
  const addresses = collidingIntegers(45_000);
  const measured = (run) => {
    const start = process.cpuUsage().user;
    run();
    return process.cpuUsage().user - start;
  };
  const half = addresses.slice(0, addresses.length / 2);
  const slow = 4 * measured(() => new Map(half.map((address) => [address, 0]))); // quadratic
  const events = addresses.map((address, time) => ({ action: 3, address, size: 512, time }));
  const snapshot = createSnapshot(
    [
      ...events,
      ...events.map((event) => ({ ...event, action: 4 })),
      ...events.map((event) => ({ ...event, action: 9 })),
    ],
    addresses.map((address, start) => ({ start, end: addresses.length, size: 512, address })),
  );
  const [device] = snapshot.devices;
  const runs = {
    segments: () => new SegmentLookup(new SegmentHistory(snapshot, device).fixed),
    names: () => device.allocations.countAddresses(),
    annotations: () => device.annotateEvents,
  };
  for (const [name, run] of Object.entries(runs)) assert(measured(run) < slow / 3, name);
});

test("a limited number of cells in a stack is considered, and once for each time", () => {
  const count = 3000;
  const cells = Array.from({ length: count }, (_, number) => ({
    number,
    filename: `c${number}`,
    start_us: 5 + number,
    end_us: 2 * count,
  }));
  const snapshot = deepStack(count, count, { cells });
  const [device] = snapshot.devices;
  snapshot.stacks.frames.forEach((frame, number) => {
    frame.file = `c${number}`;
  });
  device.trace.time.fill(2 * count, 200);
  const running = counted(snapshot.cells, "running");
  const { codes, describe } = snapshot.key(device, "cell");
  const labels = [0, 1, 99, 100, count - 1].map((row) => describe(codes[row], [row]).label);
  assert.deepEqual(labels, ["In[0]", "In[1]", "In[99]", "In[99]", "In[99]"]); // as in Python
  assert(running.length <= 201 * 100);
});

test("stacks with the same cells share their runs", () => {
  const count = 100;
  const cells = Array.from({ length: count }, (_, number) => ({
    number,
    filename: `c${number % 2}`,
    start_us: 10 * number,
    end_us: 10 * number + 9,
  }));
  const frames = [["c0", 1, "a"], ["c1", 1, "b"], ...Array.from({ length: count }, (_, line) => ["x", line + 1, "f"])];
  const columns = {
    "stacks/own": frames.map(() => 1),
    "stacks/node_frame": frames.map((_, frame) => frame),
    "stacks/node_parent": frames.map((_, frame) => Math.min(frame - 1, 1)),
    "stacks/leaf": frames.slice(2).map((_, stack) => stack + 2),
    "stacks/user_frame": frames.slice(2).map((_, stack) => stack + 2),
  };
  const events = frames.slice(2).map((_, stack) => ({ action: 0, size: 1, time: 10 * stack, stack }));
  const allocations = events.map(({ stack }) => ({ start: stack, end: count, size: 1, stack }));
  const snapshot = createSnapshot(events, allocations, { header: { cells, frames }, columns });
  const { codes, describe } = snapshot.key(snapshot.devices[0], "cell");
  assert.deepEqual(
    Array.from(codes, (code) => describe(code).label),
    cells.map(({ number }) => `In[${number}]`),
  );
  assert(snapshot.cells.spans.size <= 3);
});

test("the texts of a deep stack are truncated", () => {
  const long = "n".repeat(1999);
  for (const [depth, shown] of [
    [1000, 1999],
    [10_000, 400],
    [41_000, 100],
  ]) {
    const frames = Array.from({ length: depth }, () => [long, 0, long]);
    const stack = stackOf(deepStack(depth, 1, { frames }), 0);
    assert.deepEqual([stack.length, stack[7].name.length, stack[7].title.length], [depth, shown, shown]);
  }
});

test("stacks share the texts of their frames, and the text of all stacks is limited", () => {
  const snapshot = deepStack(3, 1, { frames: Array.from({ length: 3 }, () => ["/a/b.py", 1, "n".repeat(1999)]) });
  const framesOf = frameTexts(snapshot);
  const walks = counted(snapshot, "shortFile");
  for (let i = 0; i < 9; i++) assert.equal(framesOf(0)[2], `a/b.py:1 ${"n".repeat(499)}…`);
  assert.equal(walks.length, 3);
  const groups = Array.from({ length: 80 }, () => ({ frames: ["f".repeat(1e6)] }));
  const lengths = joinFrames(groups, Number.POSITIVE_INFINITY).map((text) => text.length);
  assert.deepEqual([lengths[0], lengths[32], lengths[33]], [1e6, 1e6, 2000]);
});

test("the names of files in stacks are looked up once", () => {
  const count = 50;
  const snapshot = deepStack(count, count, {
    frames: Array.from({ length: count }, (_, line) => [`${4096 * (line % 9)}`, line, "f"]),
    numbers: { 4096: 3 },
  });
  const { stacks, cells } = snapshot;
  const lookups = counted(cells, "labelOf");
  for (let i = 0; i < 20; i++) assert.deepEqual(snapshot.cellsOf(0), [{ label: "In[3]", runs: undefined }]);
  assert.deepEqual(stacks.filesOf(0), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
  assert.deepEqual([stacks.files.names.length, stacks.files.names[8]], [9, "32768"]);
  assert.equal(lookups.length, 9);
});

test("keys of texts are never decimal numbers, whose hashes files could predict", () => {
  const texts = Array.from({ length: 20 }, (_, i) => `${(i + 1) * 2 ** 17}`);
  const cells = new Cells(
    texts.map((filename, i) => ({ number: i, filename, start_us: i, end_us: i + 1, success: true })),
    Object.fromEntries(texts.map((text, i) => [text, i])),
  );
  assert.deepEqual([cells.labelOf(texts[7]), cells.labelOf("8")], ["In[7]", undefined]);
  const names = new Numbers();
  const special = ["=1", "1", "=", "", "x".repeat(21), `=${"x".repeat(20)}`, "x".repeat(20)];
  for (const text of [...texts, ...special]) names.number(text);
  assert.deepEqual(names.texts, [...texts, ...special]);
  assert.deepEqual([names.number("1"), names.number(texts[3])], [21, 3]);
  for (const map of [names.map, cells.runs, cells.numbers, cells.labels]) {
    assert.ok(map.size);
    for (const key of map.keys()) assert.doesNotMatch(key, /^\d/);
  }
});
