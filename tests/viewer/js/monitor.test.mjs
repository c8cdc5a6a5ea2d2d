/** The history of the monitor, and the computations of its charts. */
import assert from "node:assert/strict";
import test from "node:test";
import { axisTop, maximum, stackRows } from "../../../ipygpumem/viewer/js/monitor/chart.js";
import { History } from "../../../ipygpumem/viewer/js/monitor/history.js";

const MIB = 1 << 20;

function device(allocated, own = true) {
  return { allocated, cached: 2, outside: 3, others: 4, used: allocated + 9, capacity: 100, own };
}

function reading(time, devices, cells = [], running = null) {
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
    labels: { "cuda:0": "a device" },
  };
}

test("readings are added in order", () => {
  const history = new History();
  history.add(reading(1, { "cuda:0": device(10) }, [[1, 0, 1, true]], [2, 1]));
  history.add(reading(2, { "cuda:0": device(20), "cuda:1": device(30, false) }, [[1, 0, 1, true]]));
  history.add(reading(2, { "cuda:0": device(99) }));
  history.add(reading(3, {}));
  assert.deepEqual(history.time, [1, 2, 3]);
  assert.deepEqual(history.devices.get("cuda:0").allocated, [10, 20, null]);
  assert.deepEqual(history.devices.get("cuda:1").allocated, [null, 30, null]);
  assert.deepEqual(history.devices.get("cuda:1").own, [null, false, null]);
  assert.equal(history.cells.length, 1, "a cell that is sent twice is added once");
  assert.equal(history.running, null);
  assert.deepEqual([history.at(0.5), history.at(1), history.at(2.9), history.at(99)], [-1, 0, 1, 2]);
});

test("past readings are inserted before newer ones", () => {
  const history = new History();
  history.add(reading(5, { "cuda:0": device(50) }, [[3, 4, 5, true]], [4, 5]));
  history.prepend(past([1, 3, 5], [10, 30, 77], [[2, 1, 2, false]]));
  assert.deepEqual(history.time, [1, 3, 5]);
  assert.deepEqual(history.devices.get("cuda:0").allocated, [10, 30, 50]);
  assert.deepEqual(
    history.cells.map((cell) => [cell.number, cell.good]),
    [
      [2, false],
      [3, true],
    ],
  );
  assert.deepEqual(history.running, { number: 4, begin: 5 }, "the newest reading decides");
  assert.equal(history.every, 2);
  const first = new History();
  first.prepend(past([1, 3], [10, 30]));
  assert.deepEqual(first.running, { number: 9, begin: 1 });
});

test("readings of one hour are kept", () => {
  const history = new History();
  for (let i = 0; i < 5000; i++) history.add(reading(i, { "cuda:0": device(i) }, [[i, i - 1, i, true]]));
  assert.ok(history.time.length <= 3700);
  assert.equal(history.time.length, history.devices.get("cuda:0").used.length);
  assert.ok(history.cells.length <= 2000);
});

test("unknown values add nothing to a stack", () => {
  const tops = stackRows([
    [1, null, 3],
    [10, null, null],
  ]);
  assert.deepEqual(tops, [
    [1, null, 3],
    [11, null, 3],
  ]);
  assert.equal(maximum(tops[1], 0, 2), 11);
  assert.equal(maximum(tops[1], -1, 1), 11);
  assert.equal(maximum([], 0, -1), 0);
});

test("the axis has headroom and ends at the capacity", () => {
  assert.ok(axisTop(700 * MIB, 1000 * MIB, false) > 700 * MIB);
  assert.ok(axisTop(990 * MIB, 1000 * MIB, false) <= 1020 * MIB);
  assert.equal(axisTop(5, 1000, true), 1020);
  assert.ok(axisTop(0, null, true) > 0);
});
