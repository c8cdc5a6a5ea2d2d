/** The model of the profile page: levels, peaks and columns. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { DeviceTimeline } from "../../../ipygpumem/viewer/js/profile/model.js";
import { formatTime } from "../../../ipygpumem/viewer/js/profile/chart.js";
import { randomNumbers } from "./snapshots.mjs";

/** @param {any} facts @param {Record<string, number[]>} columns */
function create(facts, columns) {
  const column = (/** @type {string} */ name) =>
    columns[name] && /** @type {any} */ ({ into: () => Float64Array.from(columns[name]) });
  return new DeviceTimeline(
    { name: "cuda:0", start: 0, end: 100, base: [0, 0, 0, 0, 0, 0, 0, 0], has_counters: false, ...facts },
    column,
  );
}

const SMALL = {
  time: [10, 20, 20, 30],
  source: [-1, -1, 4, 3],
  target: [4, 3, 5, -1],
  size: [5, 7, 5, 7],
};

test("levels and peaks of the categories that are shown", () => {
  const device = create({ base: [1, 0, 0, 0, 0, 0, 0, 0], count: 4 }, SMALL);
  assert.deepEqual([...device.total], [1, 6, 13, 13, 6]);
  assert.deepEqual(device.peak, { row: 2, bytes: 13 });
  assert.deepEqual([...device.levels[4]], [0, 5, 5, 0, 0]);
  assert.deepEqual([...device.levels[5]], [0, 0, 0, 5, 5]);
  assert.deepEqual(device.highest[3], { row: 2, bytes: 7 });
  device.show(device.shown.map((_, category) => category === 5));
  assert.deepEqual(device.peak, { row: 3, bytes: 5 });
  assert.deepEqual(device.overallPeak, { row: 2, bytes: 13 });
  assert.equal(device.next(0, 1), 3, "the next change of a category that is shown");
  assert.equal(device.next(4, -1), 2);
});

test("a missing column is an error", () => {
  assert.throws(() => create({ count: 4 }, { time: [] }), /damaged: the column source is missing/);
});

test("the category at a height", () => {
  const device = create({ base: [1, 0, 0, 0, 0, 0, 0, 0], count: 4 }, SMALL);
  assert.deepEqual(
    [0, 1, 5.9, 6, 12.9, 13].map((bytes) => device.categoryAt(2, bytes)),
    [0, 4, 4, 3, 3, -1],
  );
});

test("unknown allocator counters are not 0", () => {
  const device = create(
    { count: 4, has_counters: true },
    { ...SMALL, allocated: [-1, 9, 8, 7], reserved: [-1, 20, 20, 20] },
  );
  assert.deepEqual(
    [1, 2, 4].map((row) => device.counter("allocated", row)),
    [Number.NaN, 9, 7],
  );
  const columns = device.columns("change", [0, 5], 5);
  assert.deepEqual(
    [...device.maxima(/** @type {Float64Array} */ (device.counters.allocated), columns)],
    [Number.NaN, Number.NaN, 9, 8, 7],
  );
});

test("each column shows the highest state inside it, on both axes and at every zoom", () => {
  const random = randomNumbers(7);
  const share = () => random(1000) / 1000;
  for (let round = 0; round < 60; round++) {
    const count = 1 + random(40);
    let now = 0;
    const time = Array.from({ length: count }, () => (now += random(4)));
    const size = time.map(() => random(100));
    const target = time.map(() => random(8));
    const device = create({ count, end: now + random(5) }, { time, size, target, source: time.map(() => -1) });
    for (const axis of /** @type {const} */ (["time", "change"])) {
      const [d0, d1] = device.domain(axis);
      const x0 = d0 + share() * (d1 - d0) * 0.6;
      const x1 = x0 + (d1 - x0) * (0.2 + 0.8 * share());
      const width = 1 + random(25);
      const rows = device.rows(device.columns(axis, [x0, x1], width));
      for (let column = 0; column < width; column++) {
        const left = x0 + ((x1 - x0) * column) / width;
        const right = x0 + ((x1 - x0) * (column + 1)) / width;
        const inside = [];
        for (let row = 0; row <= count; row++) {
          const begins = device.position(axis, row);
          const ends = row === count ? d1 : device.position(axis, row + 1);
          if (begins < right && (ends > left || (row === count && begins <= left))) inside.push(device.total[row]);
        }
        assert.equal(device.total[rows[column]], Math.max(...inside), `${axis} ${round} ${column}`);
      }
    }
  }
});

test("times have the unit of the profile and the precision of the view", () => {
  assert.equal(formatTime(0, 5e9, 5e9), "0");
  assert.equal(formatTime(1.5e9, 5e9, 5e9), "1.500 s");
  assert.equal(formatTime(1.5e9, 5e9, 5e5), "1.5000000 s");
  assert.equal(formatTime(2.25e8, 5e8, 5e8), "225.0 ms");
  assert.equal(formatTime(1500, 9000, 9000), "1.500 µs");
});
