/** Pictures compared with a simple reference implementation, column by column. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { HIDDEN, NOTHING, rasterize, THIN } from "../../../ipygpumem/viewer/js/snapshot/engine/rasterize.js";
import { liveBytes, liveRows, randomNumbers, randomRecording } from "./snapshots.mjs";

const COLORS = new Uint32Array(512);

/** What a column should show: the live rows from the bottom. */
function expectedColumn(allocations, event, view, style) {
  const scale = view.height / (view.y1 - view.y0);
  const pixels = new Array(view.height).fill(NOTHING);
  let sum = 0;
  let thin = { count: 0, bytes: 0 };
  for (const row of liveRows(allocations, event)) {
    if (style[row] === HIDDEN) continue;
    const { size } = allocations[row];
    const low = Math.round((sum - view.y0) * scale);
    sum += size;
    const high = Math.round((sum - view.y0) * scale);
    const small = size * scale < 1;
    if (small) thin = { count: thin.count + 1, bytes: thin.bytes + size };
    for (let y = Math.max(low, 0); y < Math.min(high, view.height); y++) pixels[y] = small ? THIN : row;
  }
  return { pixels, thin };
}

function check(seed, count, kind, options = {}) {
  const { snapshot, allocations, events } = randomRecording(seed, count, options);
  const [device] = snapshot.devices;
  const axis = device.axis(kind);
  const random = randomNumbers(seed + 77);
  const style = new Uint8Array(allocations.length);
  if (options.hide) for (let row = 0; row < style.length; row++) if (random(3) === 0) style[row] = HIDDEN;
  const [d0, d1] = axis.domain;
  for (let turn = 0; turn < 12; turn++) {
    const from = turn === 0 ? 0 : random(1000) / 1000;
    const wide = turn === 0 ? 1 : Math.max(random(1000) / 1000, 0.002) ** (1 + random(4));
    const x0 = d0 + from * (1 - wide) * (d1 - d0);
    const x1 = x0 + wide * (d1 - d0);
    const most = device.requested.bytes.reduce((a, b) => Math.max(a, b), 0);
    const y0 = random(3) ? 0 : (most * random(50)) / 100;
    const view = {
      x0,
      x1,
      y0,
      y1: y0 + most * (random(2) ? 1.05 : 0.2),
      width: 40 + random(60),
      height: 30 + random(40),
    };
    const picture = rasterize(device, axis, view, style, COLORS);
    const shown = new Set();
    const step = (x1 - x0) / view.width;
    for (let column = 0; column < view.width; column++) {
      const event = picture.states[column] - 1;
      // All states inside the column
      const left = x0 + column * step;
      const right = left + step;
      const inside = [];
      for (let state = -1; state < events.length; state++) {
        const begins = axis.place(state);
        if (begins < right - 1e-9 && axis.until(state) > left + 1e-9) inside.push(state);
        else if (begins >= left + 1e-9 && begins < right - 1e-9) inside.push(state);
      }
      const highest = Math.max(...inside.map((state) => liveBytes(allocations, state)));
      assert.ok(picture.total[column] >= highest, "no state inside the column is higher");
      assert.equal(picture.total[column], liveBytes(allocations, event));
      assert.ok(picture.firsts[column] - 1 <= event && event <= picture.lasts[column] - 1);
      const expected = expectedColumn(allocations, event, view, style);
      const drawnPixels = Array.from(
        { length: view.height },
        (_, y) => picture.ids[(view.height - 1 - y) * view.width + column],
      );
      const thin = drawnPixels.map((id, y) => (id === THIN && expected.pixels[y] === THIN ? THIN : id));
      // The boundary between two thin bands may be rounded either way
      assert.deepEqual(thin, expected.pixels, `column ${column} of turn ${turn}`);
      assert.equal(picture.thinCount[column], expected.thin.count);
      assert.ok(Math.abs(picture.thinBytes[column] - expected.thin.bytes) < 1e-6);
      for (const row of liveRows(allocations, event)) shown.add(row);
    }
    // Allocations that no column shows are counted as hidden
    const firstEvent = picture.firsts[0] - 1;
    const lastEvent = picture.lasts[view.width - 1] - 1;
    const lost = allocations.flatMap(({ start, end }, row) =>
      start <= lastEvent && end > firstEvent && !shown.has(row) && style[row] !== HIDDEN && end > start ? [row] : [],
    );
    const counted = picture.hiddenCount.reduce((a, b) => a + b, 0);
    assert.equal(counted, lost.length, `turn ${turn}: allocations that no column shows are counted`);
    const sum = lost.reduce((all, row) => all + allocations[row].size, 0);
    assert.equal(
      picture.hiddenBytes.reduce((a, b) => a + b, 0),
      sum,
    );
  }
}

for (const seed of [1, 2, 3]) {
  test(`by event, recording ${seed}`, () => check(seed, 400, "event"));
  test(`by time, recording ${seed}`, () => check(seed + 10, 400, "time"));
}

test("with hidden classes", () => check(5, 300, "event", { hide: true }));

test("very many live allocations: prefix sums give the same picture", () => {
  const { snapshot, allocations } = randomRecording(9, 3000, { old: 4000, sizes: 100 });
  const [device] = snapshot.devices;
  const axis = device.axis("event");
  const most = Math.max(...device.requested.bytes);
  const view = { x0: axis.domain[0], x1: axis.domain[1], y0: 0, y1: most * 1.05, width: 1100, height: 120 };
  const style = new Uint8Array(allocations.length);
  assert.ok(4000 * view.width > 2.5e6, "enough to use prefix sums");
  const picture = rasterize(device, axis, view, style, COLORS);
  for (let column = 0; column < view.width; column += 97) {
    const { pixels, thin } = expectedColumn(allocations, picture.states[column] - 1, view, style);
    const drawnPixels = Array.from(
      { length: view.height },
      (_, y) => picture.ids[(view.height - 1 - y) * view.width + column],
    );
    assert.deepEqual(drawnPixels, pixels);
    assert.equal(picture.thinCount[column], thin.count);
    assert.ok(Math.abs(picture.thinBytes[column] - thin.bytes) < 1e-3);
  }
});

test("a view outside of the recording is empty", () => {
  const { snapshot, allocations } = randomRecording(4, 100);
  const [device] = snapshot.devices;
  const view = { x0: -1, x1: 399, y0: 0, y1: 1e5, width: 40, height: 10 };
  const picture = rasterize(device, device.axis("event"), view, new Uint8Array(allocations.length), COLORS);
  assert.ok(!Number.isNaN(picture.total[5]));
  assert.ok(Number.isNaN(picture.total[20]), "the recording has 100 events");
  assert.ok(picture.ids.every((id, pixel) => id === NOTHING || pixel % 40 <= 10));
});
