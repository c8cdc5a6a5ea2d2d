/** The picture, column by column, against the plain answer. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { HIDDEN, NOTHING, sweep, THIN } from "../snapshot/engine/rasterize.js";
import { alive, bytes, dice, random } from "./snapshots.js";

const COLORS = new Uint32Array(512);

/** What a column of pixels ought to show: the rows alive, from below. */
function plain(allocations, event, view, style) {
  const scale = view.height / (view.y1 - view.y0);
  const pixels = new Array(view.height).fill(NOTHING);
  let sum = 0;
  let thin = { count: 0, bytes: 0 };
  for (const row of alive(allocations, event)) {
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
  const { snapshot, allocations, events } = random(seed, count, options);
  const [device] = snapshot.devices;
  const axis = device.axis(kind);
  const roll = dice(seed + 77);
  const style = new Uint8Array(allocations.length);
  if (options.hide) for (let row = 0; row < style.length; row++) if (roll(3) === 0) style[row] = HIDDEN;
  const [d0, d1] = axis.domain;
  for (let turn = 0; turn < 12; turn++) {
    const from = turn === 0 ? 0 : roll(1000) / 1000;
    const wide = turn === 0 ? 1 : Math.max(roll(1000) / 1000, 0.002) ** (1 + roll(4));
    const x0 = d0 + from * (1 - wide) * (d1 - d0);
    const x1 = x0 + wide * (d1 - d0);
    const most = device.requested.bytes.reduce((a, b) => Math.max(a, b), 0);
    const y0 = roll(3) ? 0 : (most * roll(50)) / 100;
    const view = { x0, x1, y0, y1: y0 + most * (roll(2) ? 1.05 : 0.2), width: 40 + roll(60), height: 30 + roll(40) };
    const picture = sweep(device, axis, view, style, COLORS);
    const shown = new Set();
    const step = (x1 - x0) / view.width;
    for (let column = 0; column < view.width; column++) {
      const event = picture.states[column] - 1;
      // the states inside the column, the plain way
      const left = x0 + column * step;
      const right = left + step;
      const inside = [];
      for (let one = -1; one < events.length; one++) {
        const begins = axis.place(one);
        if (begins < right - 1e-9 && axis.until(one) > left + 1e-9) inside.push(one);
        else if (begins >= left + 1e-9 && begins < right - 1e-9) inside.push(one);
      }
      const highest = Math.max(...inside.map((one) => bytes(allocations, one)));
      assert.ok(picture.total[column] >= highest, "no instant inside the column is higher");
      assert.equal(picture.total[column], bytes(allocations, event));
      assert.ok(picture.firsts[column] - 1 <= event && event <= picture.lasts[column] - 1);
      const wanted = plain(allocations, event, view, style);
      const seen = Array.from(
        { length: view.height },
        (_, y) => picture.ids[(view.height - 1 - y) * view.width + column],
      );
      const thin = seen.map((id, y) => (id === THIN && wanted.pixels[y] === THIN ? THIN : id));
      // the boundary of two thin runs may fall on either side of half a pixel
      assert.deepEqual(thin, wanted.pixels, `column ${column} of turn ${turn}`);
      assert.equal(picture.thinCount[column], wanted.thin.count);
      assert.ok(Math.abs(picture.thinBytes[column] - wanted.thin.bytes) < 1e-6);
      for (const row of alive(allocations, event)) shown.add(row);
    }
    // nothing is lost: what no column shows is counted in the strip
    const firstEvent = picture.firsts[0] - 1;
    const lastEvent = picture.lasts[view.width - 1] - 1;
    const lost = allocations.flatMap((one, row) =>
      one.start <= lastEvent && one.end > firstEvent && !shown.has(row) && style[row] !== HIDDEN && one.end > one.start
        ? [row]
        : [],
    );
    const counted = picture.hiddenCount.reduce((a, b) => a + b, 0);
    assert.equal(counted, lost.length, `turn ${turn}: all that is seen in no column is counted`);
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

test("with a legend that leaves some out", () => check(5, 300, "event", { hide: true }));

test("many at once: the tree of sums draws the same", () => {
  const { snapshot, allocations } = random(9, 3000, { old: 4000, sizes: 100 });
  const [device] = snapshot.devices;
  const axis = device.axis("event");
  const most = Math.max(...device.requested.bytes);
  const view = { x0: axis.domain[0], x1: axis.domain[1], y0: 0, y1: most * 1.05, width: 1100, height: 120 };
  const style = new Uint8Array(allocations.length);
  assert.ok(4000 * view.width > 2.5e6, "enough for the tree");
  const picture = sweep(device, axis, view, style, COLORS);
  for (let column = 0; column < view.width; column += 97) {
    const { pixels, thin } = plain(allocations, picture.states[column] - 1, view, style);
    const seen = Array.from(
      { length: view.height },
      (_, y) => picture.ids[(view.height - 1 - y) * view.width + column],
    );
    assert.deepEqual(seen, pixels);
    assert.equal(picture.thinCount[column], thin.count);
    assert.ok(Math.abs(picture.thinBytes[column] - thin.bytes) < 1e-3);
  }
});

test("a view beside the recording is empty", () => {
  const { snapshot, allocations } = random(4, 100);
  const [device] = snapshot.devices;
  const view = { x0: -1, x1: 399, y0: 0, y1: 1e5, width: 40, height: 10 };
  const picture = sweep(device, device.axis("event"), view, new Uint8Array(allocations.length), COLORS);
  assert.ok(!Number.isNaN(picture.total[5]));
  assert.ok(Number.isNaN(picture.total[20]), "the recording has 100 events");
  assert.ok(picture.ids.every((id, at) => id === NOTHING || at % 40 <= 10));
});
