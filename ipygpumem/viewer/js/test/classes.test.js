/** The classes of the legend: of one file, and the same ones for several. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { classify } from "../snapshot/engine/classes.js";
import { CLASSES } from "../snapshot/palette.js";
import { Engine } from "../snapshot/engine/engine.js";
import { made } from "./snapshots.js";

/** A recording with one block on each stream, all alive at the end. @param {[number, number][]} blocks stream, bytes */
function streams(blocks) {
  const events = blocks.map(([stream, size], at) => ({ action: 0, stream, size, address: 4096 * (at + 1), time: at }));
  const allocations = blocks.map(([, size], at) => ({
    start: at,
    end: blocks.length,
    size,
    address: 4096 * (at + 1),
  }));
  const snapshot = made(events, allocations);
  return { snapshot, device: snapshot.devices[0] };
}

/** @param {ReturnType<typeof classify>} found */
const plain = (found) => found.classes.map(({ label, bytes }) => [label, bytes]);

test("one file: the heaviest by name, the rest as one", () => {
  const many = streams(Array.from({ length: 12 }, (_, at) => [at + 1, 100 * (at + 1)]));
  const found = classify(many.snapshot, many.device, "stream");
  assert.equal(found.classes.length, CLASSES);
  assert.deepEqual(plain(found)[0], ["stream 0xc", 1200]);
  assert.deepEqual(plain(found).at(-1), ["3 others", 600]);
  const few = streams([
    [7, 1],
    [9, 5],
  ]);
  assert.deepEqual(plain(classify(few.snapshot, few.device, "stream")), [
    ["stream 0x9", 5],
    ["stream 0x7", 1],
  ]);
});

test("two files of different programs: what is large in either has its color in both", () => {
  const first = streams(Array.from({ length: 12 }, (_, at) => [at + 1, 10 * (at + 1)]));
  const second = streams([
    [100, 7000],
    [12, 3],
    [1, 1],
  ]);
  const left = classify(first.snapshot, first.device, "stream", [second]);
  const right = classify(second.snapshot, second.device, "stream", [first]);
  const names = (/** @type {typeof left} */ found) =>
    found.classes.slice(0, -1).map(({ label, place }) => [label, place]);
  assert.deepEqual(names(left), names(right));
  assert.deepEqual(plain(left)[0], ["stream 0x64", 0]);
  assert.deepEqual(plain(right)[0], ["stream 0x64", 7000]);
  assert.deepEqual(plain(right)[1], ["stream 0xc", 3]);
  assert.deepEqual(plain(right).at(-1), ["1 other", 1]);
  assert.equal(
    plain(left).reduce((sum, [, bytes]) => sum + Number(bytes), 0),
    780,
  );
  assert.deepEqual([...right.of], [0, 1, CLASSES - 1]);
});

test("two files with classes of equal weight: the same ones in the same order", () => {
  const first = streams([
    [1, 10],
    [2, 10],
  ]);
  const second = streams([
    [3, 10],
    [4, 10],
  ]);
  const left = classify(first.snapshot, first.device, "stream", [second]);
  const right = classify(second.snapshot, second.device, "stream", [first]);
  const names = (/** @type {typeof left} */ found) => found.classes.map(({ label, place }) => [label, place]);
  assert.deepEqual(names(left), names(right));
  assert.deepEqual(plain(left), [
    ["stream 0x1", 10],
    ["stream 0x2", 10],
    ["stream 0x3", 0],
    ["stream 0x4", 0],
  ]);
});

test("two files, one without times: lifetimes have the same steps in both", () => {
  const timed = streams([[1, 10]]);
  const events = [{ action: 0, size: 10, address: 4096, time: -1 }];
  const untimed = made(events, [{ start: 0, end: 1, size: 10, address: 4096 }]);
  const side = { snapshot: untimed, device: untimed.devices[0] };
  const left = classify(timed.snapshot, timed.device, "lifetime", [side]);
  const right = classify(side.snapshot, side.device, "lifetime", [timed]);
  assert.deepEqual(
    left.classes.map(({ label }) => label),
    right.classes.map(({ label }) => label),
  );
});

test("two files: the colors are those of the devices that are shown", () => {
  const several = (/** @type {number[]} */ each) => {
    const columns = /** @type {Record<string, any>} */ ({});
    const devices = each.map((stream, device) => {
      const { snapshot } = streams([[stream, 10]]);
      for (const name of ["action", "address", "size", "stream", "time"])
        columns[`trace/${device}/${name}`] = Array.from(/** @type {any} */ (snapshot.devices[0].trace)[name]);
      const table = { address: 4096, size: 10, start: 0, stack: -1, block: -1, asked_after: 1, freed_after: 0 };
      for (const [name, value] of Object.entries(table)) columns[`allocations/${device}/${name}`] = [value];
      return { ...snapshot.devices[0].facts, device };
    });
    return made([], [], { header: { devices }, columns });
  };
  const engine = new Engine();
  engine.snapshots = [several([1, 2, 3]), several([4, 5])];
  const labels = (/** @type {number} */ source, /** @type {number[]} */ devices) =>
    engine.classes({ source, device: devices[source], devices, mode: "stream" }).classes.map(({ label }) => label);
  assert.deepEqual(labels(0, [0, 0]), ["stream 0x1", "stream 0x4"]);
  assert.deepEqual(labels(1, [0, 0]), ["stream 0x1", "stream 0x4"]);
  assert.deepEqual(labels(0, [2, 1]), ["stream 0x3", "stream 0x5"]);
  assert.deepEqual(labels(1, [2, 1]), ["stream 0x3", "stream 0x5"]);
  assert.deepEqual(labels(1, [1, 1]), ["stream 0x2", "stream 0x5"]);
});
