/** The monitor's course and what its charts reckon. */
import assert from "node:assert/strict";
import test from "node:test";
import { ceiling, highest, stacked } from "../monitor/chart.js";
import { Course } from "../monitor/history.js";

const MIB = 1 << 20;

function device(allocated, own = true) {
  return { allocated, cached: 2, outside: 3, others: 4, used: allocated + 9, capacity: 100, own };
}

function point(time, devices, cells = [], running = null) {
  return { time, devices, rss: 5, total: 50, cells, running };
}

function past(times, allocated, cells = []) {
  const row = (value) => times.map(() => value);
  const columns = { cached: row(2), outside: row(3), others: row(4), used: row(9), capacity: row(100), own: row(true) };
  return {
    every: 2,
    time: times,
    devices: { "cuda:0": { allocated, ...columns } },
    rss: row(5),
    total: 50,
    cells,
    running: [9, 1],
    labels: { "cuda:0": "a card" },
  };
}

test("points as they come", () => {
  const course = new Course();
  course.add(point(1, { "cuda:0": device(10) }, [[1, 0, 1, true]], [2, 1]));
  course.add(point(2, { "cuda:0": device(20), "cuda:1": device(30, false) }, [[1, 0, 1, true]]));
  course.add(point(2, { "cuda:0": device(99) }));
  course.add(point(3, {}));
  assert.deepEqual(course.time, [1, 2, 3]);
  assert.deepEqual(course.devices.get("cuda:0").columns.allocated, [10, 20, null]);
  assert.deepEqual(course.devices.get("cuda:1").columns.allocated, [null, 30, null]);
  assert.deepEqual(course.devices.get("cuda:1").own, [true, false, true]);
  assert.equal(course.cells.length, 1, "a cell that is told twice is one");
  assert.equal(course.running, null);
  assert.deepEqual([course.at(0.5), course.at(1), course.at(2.9), course.at(99)], [-1, 0, 1, 2]);
});

test("what was before comes late, and in its place", () => {
  const course = new Course();
  course.add(point(5, { "cuda:0": device(50) }, [[3, 4, 5, true]], [4, 5]));
  course.fill(past([1, 3, 5], [10, 30, 77], [[2, 1, 2, false]]));
  assert.deepEqual(course.time, [1, 3, 5]);
  assert.deepEqual(course.devices.get("cuda:0").columns.allocated, [10, 30, 50]);
  assert.deepEqual(
    course.cells.map((cell) => [cell.number, cell.good]),
    [
      [2, false],
      [3, true],
    ],
  );
  assert.deepEqual(course.running, { number: 4, begin: 5 }, "the newest word counts");
  assert.equal(course.every, 2);
  const first = new Course();
  first.fill(past([1, 3], [10, 30]));
  assert.deepEqual(first.running, { number: 9, begin: 1 });
});

test("an hour and no more", () => {
  const course = new Course();
  for (let i = 0; i < 5000; i++) course.add(point(i, { "cuda:0": device(i) }, [[i, i - 1, i, true]]));
  assert.ok(course.time.length <= 3700);
  assert.equal(course.time.length, course.devices.get("cuda:0").columns.used.length);
  assert.ok(course.cells.length <= 2000);
});

test("stacks: what is unknown adds nothing", () => {
  const tops = stacked([
    [1, null, 3],
    [10, null, null],
  ]);
  assert.deepEqual(tops, [
    [1, null, 3],
    [11, null, 3],
  ]);
  assert.equal(highest(tops[1], 0, 2), 11);
  assert.equal(highest(tops[1], -1, 1), 11);
  assert.equal(highest([], 0, -1), 0);
});

test("the axis has room, and ends at the card", () => {
  assert.ok(ceiling(700 * MIB, 1000 * MIB, false) > 700 * MIB);
  assert.ok(ceiling(990 * MIB, 1000 * MIB, false) <= 1020 * MIB);
  assert.equal(ceiling(5, 1000, true), 1020);
  assert.ok(ceiling(0, null, true) > 0);
});
