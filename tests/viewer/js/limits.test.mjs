/** The work of the viewer is proportional to the size of the data, even if a file repeats an object many times. */

import assert from "node:assert/strict";
import test from "node:test";
import { deflateSync } from "node:zlib";
import { decode } from "../../../ipygpumem/viewer/js/data/decode.js";
import { classify } from "../../../ipygpumem/viewer/js/snapshot/engine/classes.js";
import { icicle } from "../../../ipygpumem/viewer/js/snapshot/engine/icicle.js";
import { overviewOf } from "../../../ipygpumem/viewer/js/snapshot/engine/overview.js";
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
