/** The classes of the legend, of one file and of several. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { classify } from "../../../ipygpumem/viewer/js/snapshot/engine/classes.js";
import { CLASSES } from "../../../ipygpumem/viewer/js/snapshot/palette.js";
import { Engine } from "../../../ipygpumem/viewer/js/snapshot/engine/engine.js";
import { createSnapshot } from "./snapshots.mjs";

/** A recording with one allocation on each stream, all alive at the end. @param {[number, number][]} blocks stream, bytes */
function recordStreams(blocks) {
  const events = blocks.map(([stream, size], i) => ({ action: 0, stream, size, address: 4096 * (i + 1), time: i }));
  const allocations = blocks.map(([, size], i) => ({
    start: i,
    end: blocks.length,
    size,
    address: 4096 * (i + 1),
  }));
  const snapshot = createSnapshot(events, allocations);
  return { snapshot, device: snapshot.devices[0] };
}

/** @param {ReturnType<typeof classify>} result */
const labels = (result) => result.classes.map(({ label, bytes }) => [label, bytes]);

test("one file: the largest groups by name, all others as one", () => {
  const many = recordStreams(Array.from({ length: 12 }, (_, i) => [i + 1, 100 * (i + 1)]));
  const result = classify(many.snapshot, many.device, "stream");
  assert.equal(result.classes.length, CLASSES);
  assert.deepEqual(labels(result)[0], ["stream 0xc", 1200]);
  assert.deepEqual(labels(result).at(-1), ["3 others", 600]);
  const few = recordStreams([
    [7, 1],
    [9, 5],
  ]);
  assert.deepEqual(labels(classify(few.snapshot, few.device, "stream")), [
    ["stream 0x9", 5],
    ["stream 0x7", 1],
  ]);
});

test("two files of different programs: a group that is large in one has its color in both", () => {
  const first = recordStreams(Array.from({ length: 12 }, (_, i) => [i + 1, 10 * (i + 1)]));
  const second = recordStreams([
    [100, 7000],
    [12, 3],
    [1, 1],
  ]);
  const left = classify(first.snapshot, first.device, "stream", [second]);
  const right = classify(second.snapshot, second.device, "stream", [first]);
  const names = (/** @type {typeof left} */ result) =>
    result.classes.slice(0, -1).map(({ label, place }) => [label, place]);
  assert.deepEqual(names(left), names(right));
  assert.deepEqual(labels(left)[0], ["stream 0x64", 0]);
  assert.deepEqual(labels(right)[0], ["stream 0x64", 7000]);
  assert.deepEqual(labels(right)[1], ["stream 0xc", 3]);
  assert.deepEqual(labels(right).at(-1), ["1 other", 1]);
  assert.equal(
    labels(left).reduce((sum, [, bytes]) => sum + Number(bytes), 0),
    780,
  );
  assert.deepEqual([...right.of], [0, 1, CLASSES - 1]);
});

test("two files with classes of equal size have the same classes in the same order", () => {
  const first = recordStreams([
    [1, 10],
    [2, 10],
  ]);
  const second = recordStreams([
    [3, 10],
    [4, 10],
  ]);
  const left = classify(first.snapshot, first.device, "stream", [second]);
  const right = classify(second.snapshot, second.device, "stream", [first]);
  const names = (/** @type {typeof left} */ result) => result.classes.map(({ label, place }) => [label, place]);
  assert.deepEqual(names(left), names(right));
  assert.deepEqual(labels(left), [
    ["stream 0x1", 10],
    ["stream 0x2", 10],
    ["stream 0x3", 0],
    ["stream 0x4", 0],
  ]);
});

test("two files, one without times, use the same steps of lifetimes", () => {
  const timed = recordStreams([[1, 10]]);
  const events = [{ action: 0, size: 10, address: 4096, time: -1 }];
  const untimed = createSnapshot(events, [{ start: 0, end: 1, size: 10, address: 4096 }]);
  const side = { snapshot: untimed, device: untimed.devices[0] };
  const left = classify(timed.snapshot, timed.device, "lifetime", [side]);
  const right = classify(side.snapshot, side.device, "lifetime", [timed]);
  assert.deepEqual(
    left.classes.map(({ label }) => label),
    right.classes.map(({ label }) => label),
  );
});

test("two files use the colors of the devices that are shown", () => {
  const recordDevices = (/** @type {number[]} */ streams) => {
    const columns = /** @type {Record<string, any>} */ ({});
    const devices = streams.map((stream, device) => {
      const { snapshot } = recordStreams([[stream, 10]]);
      for (const name of ["action", "address", "size", "stream", "time"])
        columns[`trace/${device}/${name}`] = Array.from(/** @type {any} */ (snapshot.devices[0].trace)[name]);
      const table = {
        address: 4096,
        size: 10,
        start: 0,
        stack: -1,
        block: -1,
        free_requested_after: 1,
        freed_after: 0,
      };
      for (const [name, value] of Object.entries(table)) columns[`allocations/${device}/${name}`] = [value];
      return { ...snapshot.devices[0].facts, device };
    });
    return createSnapshot([], [], { header: { devices }, columns });
  };
  const engine = new Engine();
  engine.snapshots = [recordDevices([1, 2, 3]), recordDevices([4, 5])];
  const streamsOf = (/** @type {number} */ source, /** @type {number[]} */ devices) =>
    engine.classes({ source, device: devices[source], devices, mode: "stream" }).classes.map(({ label }) => label);
  assert.deepEqual(streamsOf(0, [0, 0]), ["stream 0x1", "stream 0x4"]);
  assert.deepEqual(streamsOf(1, [0, 0]), ["stream 0x1", "stream 0x4"]);
  assert.deepEqual(streamsOf(0, [2, 1]), ["stream 0x3", "stream 0x5"]);
  assert.deepEqual(streamsOf(1, [2, 1]), ["stream 0x3", "stream 0x5"]);
  assert.deepEqual(streamsOf(1, [1, 1]), ["stream 0x2", "stream 0x5"]);
});
