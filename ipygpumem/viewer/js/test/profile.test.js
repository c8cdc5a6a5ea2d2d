/** The model of a profile's page: levels, peaks and columns as the plain way has them. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Device } from "../profile/model.js";
import { categoryAt, moment } from "../profile/plot.js";
import { dice } from "./snapshots.js";

/** @param {any} facts @param {Record<string, number[]>} columns */
function made(facts, columns) {
  const column = (/** @type {string} */ name) =>
    columns[name] && /** @type {any} */ ({ into: () => Float64Array.from(columns[name]) });
  return new Device(
    { name: "cuda:0", start: 0, end: 100, base: [0, 0, 0, 0, 0, 0, 0, 0], told: false, ...facts },
    column,
  );
}

const SMALL = {
  time: [10, 20, 20, 30],
  source: [-1, -1, 4, 3],
  target: [4, 3, 5, -1],
  size: [5, 7, 5, 7],
};

test("levels, peaks and what is shown", () => {
  const device = made({ base: [1, 0, 0, 0, 0, 0, 0, 0], count: 4 }, SMALL);
  assert.deepEqual([...device.total], [1, 6, 13, 13, 6]);
  assert.deepEqual(device.peak, { row: 2, bytes: 13 });
  assert.deepEqual([...device.levels[4]], [0, 5, 5, 0, 0]);
  assert.deepEqual([...device.levels[5]], [0, 0, 0, 5, 5]);
  assert.deepEqual(device.highest[3], { row: 2, bytes: 7 });
  device.show(device.shown.map((_, category) => category === 5));
  assert.deepEqual(device.peak, { row: 3, bytes: 5 });
  assert.deepEqual(device.wholePeak, { row: 2, bytes: 13 });
  assert.equal(device.next(0, 1), 3, "the next change of what is shown");
  assert.equal(device.next(4, -1), 2);
});

test("a missing column is told", () => {
  assert.throws(() => made({ count: 4 }, { time: [] }), /damaged: there is no column source/);
});

test("the category under a point", () => {
  const device = made({ base: [1, 0, 0, 0, 0, 0, 0, 0], count: 4 }, SMALL);
  assert.deepEqual(
    [0, 1, 5.9, 6, 12.9, 13].map((bytes) => categoryAt(device, 2, bytes)),
    [0, 4, 4, 3, 3, -1],
  );
});

test("PyTorch's own count: unknown is not 0", () => {
  const device = made({ count: 4, told: true }, { ...SMALL, allocated: [-1, 9, 8, 7], reserved: [-1, 20, 20, 20] });
  assert.deepEqual(
    [1, 2, 4].map((row) => device.counted("allocated", row)),
    [Number.NaN, 9, 7],
  );
  const columns = device.columns("change", 0, 5, 5);
  assert.deepEqual(
    [...device.most(/** @type {Float64Array} */ (device.allocated), columns)],
    [Number.NaN, Number.NaN, 9, 8, 7],
  );
});

test("each column is the highest state inside it, on both axes, at every zoom", () => {
  const next = dice(7);
  const up = (/** @type {number} */ most) => next(most);
  const draw = () => up(1000) / 1000;
  for (let round = 0; round < 60; round++) {
    const count = 1 + up(40);
    let now = 0;
    const time = Array.from({ length: count }, () => (now += up(4)));
    const size = time.map(() => up(100));
    const target = time.map(() => up(8));
    const device = made({ count, end: now + up(5) }, { time, size, target, source: time.map(() => -1) });
    for (const axis of /** @type {const} */ (["time", "change"])) {
      const [d0, d1] = device.domain(axis);
      const x0 = d0 + draw() * (d1 - d0) * 0.6;
      const x1 = x0 + (d1 - x0) * (0.2 + 0.8 * draw());
      const width = 1 + up(25);
      const rows = device.rows(device.columns(axis, x0, x1, width));
      for (let column = 0; column < width; column++) {
        const left = x0 + ((x1 - x0) * column) / width;
        const right = x0 + ((x1 - x0) * (column + 1)) / width;
        const inside = [];
        for (let row = 0; row <= count; row++) {
          const begins = device.place(axis, row);
          const ends = row === count ? d1 : device.place(axis, row + 1);
          if (begins < right && (ends > left || (row === count && begins <= left))) inside.push(device.total[row]);
        }
        assert.equal(device.total[rows[column]], Math.max(...inside), `${axis} ${round} ${column}`);
      }
    }
  }
});

test("times in the unit of the whole, as exactly as the view needs", () => {
  assert.equal(moment(0, 5e9, 5e9), "0");
  assert.equal(moment(1.5e9, 5e9, 5e9), "1.500 s");
  assert.equal(moment(1.5e9, 5e9, 5e5), "1.5000000 s");
  assert.equal(moment(2.25e8, 5e8, 5e8), "225.0 ms");
  assert.equal(moment(1500, 9000, 9000), "1.500 µs");
});
