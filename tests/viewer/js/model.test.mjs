/** Units, CSV, links, curves, cells, annotations and checkpoints. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { fromHash, toHash } from "../../../ipygpumem/viewer/js/snapshot/link.js";
import { Annotations } from "../../../ipygpumem/viewer/js/snapshot/model/annotations.js";
import { Cells } from "../../../ipygpumem/viewer/js/snapshot/model/cells.js";
import { Checkpoints } from "../../../ipygpumem/viewer/js/snapshot/model/checkpoints.js";
import { toCsv } from "../../../ipygpumem/viewer/js/data/csv.js";
import { groups } from "../../../ipygpumem/viewer/js/snapshot/engine/groups.js";
import { overviewOf } from "../../../ipygpumem/viewer/js/snapshot/engine/overview.js";
import { Curve } from "../../../ipygpumem/viewer/js/snapshot/model/curve.js";
import {
  byteStep,
  byteTick,
  byteTicks,
  duration,
  elapsed,
  fine,
  fixed,
  GIB,
  KIB,
  MIB,
  oneLine,
  signed,
  size,
} from "../../../ipygpumem/viewer/js/data/units.js";
import { initialState } from "../../../ipygpumem/viewer/js/snapshot/store.js";
import { createSnapshot, liveRows, randomNumbers, randomRecording } from "./snapshots.mjs";

test("a replay that ends early has no reserved memory after its end", () => {
  const event = (action, address, size) => ({ action, address, size, time: 1 });
  const events = [event(3, 0, 8), event(0, 0, 4), event(3, 8, 8), event(0, 8, 4)];
  const rows = [
    { start: 1, end: 4, size: 4, address: 0 },
    { start: 3, end: 4, size: 4, address: 8 },
  ];
  const columns = {
    "replay/0/address": [64, 0],
    "replay/0/size": [6, 0],
    "replay/0/event": [-1, -1, 1, 2],
    "replay/0/action": [3, 5, 5, 4],
    "replay/0/segment": [0, 64, 72, 0],
    "replay/0/bytes": [16, 8, 8, 16],
    "replay/0/pool": [0, 1, 1, -1],
  };
  const pools = [
    [0, 0, 0],
    [0, 7, 1],
  ];
  const replay = { settings: "x:1", reason: "a guess", end: 3, pools, served: [[2, 3 * MIB]] };
  const snapshot = createSnapshot(events, rows, { columns, device: { replay } });
  const [device] = snapshot.devices;
  assert.deepEqual([...device.replay.reserved.bytes], [24, 24, 32, 16, Number.NaN]);
  assert.equal(overviewOf(snapshot).devices[0].replay.peak, 32);
  const before = device.replay.at(-1, snapshot);
  assert.deepEqual(
    before.segments.map(({ segment: { address, size, stream, small, expandable } }) => [
      ...[address, size, stream, small],
      expandable,
    ]),
    [
      [0, 16, 0, 0, false],
      [64, 8, 7, 1, true],
    ],
  );
  const last = device.replay.at(3, snapshot);
  assert.equal(last.event, 2);
  assert.deepEqual(
    last.segments.map(({ segment, blocks }) => [segment.address, segment.size, blocks.length, blocks[0].rounded]),
    [[64, 16, 1, 6]],
  );
  assert.deepEqual(last.sentences.slice(0, 3), [
    "The replay ends before event 3, at which a request fails.",
    "The request of 3.0 MiB that failed in the recording is served at this event; its block is not shown.",
    "Replayed with x:1, approximately: a guess.",
  ]);
});

test("sizes have the same format as in Python", () => {
  assert.equal(size(400 * MIB), "400.0 MiB");
  assert.equal(size(1023.96 * MIB), "1.0 GiB");
  assert.equal(size(1300 * GIB), "1,300.0 GiB");
  assert.deepEqual(
    [fine(0), fine(511), fine(2 * KIB), fine(2.5 * MIB), fine(1.5 * GIB)],
    ["0 B", "511 B", "2.0 KiB", "2.5 MiB", "1.50 GiB"],
  );
  assert.deepEqual(
    [0, 5, 512, -5, 40 * KIB, 52428, 52429].map(size),
    ["0.0 MiB", "5 B", "512 B", "-5 B", "40.0 KiB", "51.2 KiB", "0.1 MiB"],
    "small sizes are not displayed as 0",
  );
  assert.equal(signed(-MIB), "−1.0 MiB");
  assert.deepEqual(
    [duration(12), duration(1500), duration(2.31e6), duration(247e6)],
    ["12 µs", "1.5 ms", "2.31 s", "4 min 07 s"],
  );
});

test("values are rounded half to even, as in Python", () => {
  assert.deepEqual([5 << 28, 1.75 * GIB, 100.25 * MIB, 100.75 * MIB, -100.25 * MIB, 0.5 * GIB + 0.25 * MIB].map(size), [
    "1.2 GiB",
    "1.8 GiB",
    "100.2 MiB",
    "100.8 MiB",
    "-100.2 MiB",
    "512.2 MiB",
  ]);
  assert.deepEqual([1.125 * GIB, 1.375 * GIB, 1.25 * KIB].map(fine), ["1.12 GiB", "1.38 GiB", "1.2 KiB"]);
  // 0.15 and 2.675 are not exactly in the middle as doubles; Python formats 2.675 as 2.67
  assert.deepEqual(
    [fixed(0.15, 1), fixed(2.675, 2), fixed(0.5, 0), fixed(1.5, 0), fixed(-0.25, 1)],
    ["0.1", "2.67", "0", "2", "-0.2"],
  );
});

/** @param {number} low @param {number} high @param {number} wanted */
function labels(low, high, wanted) {
  const step = byteStep(low, high, wanted);
  return byteTicks(low, high, step).map((tick) => byteTick(tick, step, high).replace("\u2009", " "));
}

test("byte ticks are round numbers of their unit", () => {
  assert.deepEqual(labels(0, 2 * GIB, 5), ["0", "0.5 GiB", "1.0 GiB", "1.5 GiB", "2.0 GiB"]);
  assert.deepEqual(labels(0, 100, 4), ["0", "50 B", "100 B"]);
  assert.deepEqual(labels(1700 * MIB, 1900 * MIB, 4), [
    "1,700 MiB",
    "1,750 MiB",
    "1,800 MiB",
    "1,850 MiB",
    "1,900 MiB",
  ]);
  assert.deepEqual(labels(1.1 * GIB, 1.6 * GIB, 4), ["1.125 GiB", "1.250 GiB", "1.375 GiB", "1.500 GiB"]);
  for (const high of [1, 3, 511, 5000, 3 * MIB, 7 * GIB, 2 ** 50]) {
    const { length } = labels(0, high, 6);
    assert.ok(length >= 2 && length <= 13, `${high}: ${length} ticks`);
  }
});

test("labels of byte ticks are exact at every zoom", () => {
  const units = { B: 1, KiB: KIB, MiB: MIB, GiB: GIB };
  for (const high of [1893068808, 90 * GIB, 700 * MIB, 3000 * KIB]) {
    for (let span = high; span >= 64; span /= 1.7) {
      const step = byteStep(high - span, high, 7);
      for (const value of byteTicks(high - span, high, step)) {
        const [number, unit] = byteTick(value, step, high).split("\u2009");
        assert.equal(Number(number.replaceAll(",", "")) * (units[unit] ?? 1), value, `${number} ${unit}`);
      }
    }
  }
});

test("labels of a time axis are distinct", () => {
  assert.deepEqual(
    [1200.2e6, 1200.4e6, 1200.6e6].map((us) => elapsed(us, 2e5)),
    ["20 min 00.2 s", "20 min 00.4 s", "20 min 00.6 s"],
  );
  assert.deepEqual(
    [0, 600e6, 660e6].map((us) => elapsed(us, 20e6)),
    ["0", "10 min 00 s", "11 min 00 s"],
  );
  assert.deepEqual(
    [3600e6, 3610e6, 7200e6].map((us) => elapsed(us, 1e7)),
    ["1 h 00 min 00 s", "1 h 00 min 10 s", "2 h 00 min 00 s"],
  );
  assert.equal(elapsed(5400e6, 1800e6), "1 h 30 min");
  for (const from of [0, 5e5, 12e6, 599e6, 1200e6, 3599e6, 86400e6]) {
    for (const step of [1, 20, 100, 200, 5e3, 5e4, 1e5, 2e5, 1e6, 5e6, 2e7, 1e8]) {
      const all = Array.from({ length: 9 }, (_, i) => elapsed(from - (from % step) + i * step, step));
      assert.equal(new Set(all).size, 9, all.join());
    }
  }
});

test("lifetimes that exceed the range are open", () => {
  const events = Array.from({ length: 6 }, (_, i) => ({ action: 0, address: 4096 * (i + 1), size: 10, time: i * 100 }));
  const rows = [
    { start: -1, end: 4, size: 1, address: 1 },
    { start: 1, end: 3, size: 2, address: 2 },
    { start: 2, end: 6, size: 4, address: 3 },
  ];
  const snapshot = createSnapshot(events, rows);
  const [device] = snapshot.devices;
  const openGroups = (first, last, rows) =>
    groups(snapshot, device, Int32Array.from(rows), "allocation", first, last).map(({ bytes, open }) => [bytes, open]);
  assert.deepEqual(openGroups(-1, 6, [0, 1, 2]), [
    [4, true],
    [2, false],
    [1, true],
  ]);
  assert.deepEqual(openGroups(2, 5, [1]), [[2, true]]);
});

test("control characters and changes of direction are removed", () => {
  assert.equal(oneLine("a\nb\u202ec\u0000d"), "a b c d");
});

test("no cell of a CSV table is a formula", () => {
  const text = toCsv([
    ["a", "b"],
    ["=cmd|' /C calc'!A0", 1],
    ["+1", 2],
    ['say "hi", you', null],
    [" @x", Number.NaN],
    ['a;"=1', ""],
    ["a;=1; b", "\uff1d1\u202e\u001b[2J\n\ud800"],
  ]);
  assert.equal(
    text,
    'a,b\r\n\'=cmd|\' /C calc\'!A0,1\r\n\'+1,2\r\n"say ""hi"", you",\r\n\' @x,\r\n"a;\'""=1",\r\na;\'=1; b,\'\uff1d1  [2J  \r\n',
  );
});

test("a link restores its view", () => {
  const view = {
    ...initialState(),
    device: 1,
    axis: "time",
    x: [12.5, 300.25],
    y: [0, 1e9],
    event: 4211,
    range: [5, 99],
    row: 17,
    mode: "size",
    hidden: [1, 4],
    mark: { kind: "group", key: "line", code: -3 },
    key: "stack",
    measure: "time",
    tab: "state",
    replayed: true,
    search: "a b&c=#<script>",
  };
  assert.deepEqual({ ...initialState(), ...fromHash(`#${toHash(view)}`) }, view);
  assert.equal(toHash(initialState()), "");
});

test("invalid links are ignored", () => {
  assert.deepEqual(fromHash("#x=9~3&y=a~b&e=1e99&n=-4&t=../../&c=__proto__&h=x&m=constructor~x&r=1.5~2&a=both"), {});
  assert.deepEqual(fromHash("%%%"), {});
});

test("the first maximum of any range", () => {
  const random = randomNumbers(3);
  const bytes = Float64Array.from({ length: 1500 }, () => random(40));
  const curve = new Curve(bytes);
  for (let turn = 0; turn < 500; turn++) {
    const first = random(1500);
    const last = first + random(1500 - first);
    const part = bytes.subarray(first, last + 1);
    assert.equal(curve.highest(first, last), first + part.indexOf(Math.max(...part)));
  }
});

test("live rows at any event, with lists that are not longer than the allocations", () => {
  const { snapshot, allocations } = randomRecording(6, 30000, { old: 3000 });
  const { checkpoints } = snapshot.devices[0];
  assert.ok(checkpoints.lists.length > 2);
  const listed = checkpoints.lists.slice(1).reduce((sum, { rows }) => sum + rows.length, 0);
  assert.ok(listed <= allocations.length, `${listed} rows in lists, ${allocations.length} allocations`);
  for (const event of [-1, 0, 1, 4999, 12345, 29999])
    assert.deepEqual([...checkpoints.live(event)], liveRows(allocations, event));
});

test("the deepest region at a time", () => {
  const region = (name, start_us, end_us, depth) => ({ name, device: 0, start_us, end_us, depth, ambiguous: false });
  const annotations = new Annotations([
    region("old", null, 50, 0),
    region("step", 100, 200, 0),
    region("inner", 120, 130, 1),
    region("open", 300, null, 0),
  ]);
  const name = (time) => annotations.all[annotations.innermost(time)]?.name;
  assert.deepEqual([20, 60, 110, 125, 130, 131, 200, 201, 999, -1].map(name), [
    "old",
    undefined,
    "step",
    "inner",
    "inner",
    "step",
    "step",
    undefined,
    "open",
    undefined,
  ]);
});

test("the run of a cell depends on time and file", () => {
  const cell = (number, filename, start_us, end_us) => ({ number, filename, start_us, end_us, success: true });
  const cells = new Cells([cell(1, "a.py", 0, 10), cell(2, "b.py", 20, 30), cell(3, "a.py", 40, 50)]);
  assert.equal(cells.label(5, [cells.find("a.py")]), "In[1]");
  assert.equal(cells.label(45, [cells.find("a.py")]), "In[3]");
  assert.equal(cells.label(25, [cells.find("a.py")]), "In[2]", "a function of In[1] called by In[2]");
  assert.equal(cells.label(-1, [cells.find("a.py")]), "In[1] or In[3]");
  assert.equal(cells.label(15, []), "(no cell)");
  assert.equal(cells.label(-1, [cells.find("<ipython-input-7-0123456789ab>")]), "In[7]");
});

test("cells that ran before the recording have their numbers", () => {
  const cells = new Cells([], { "/tmp/ipykernel_7/55.py": 4 });
  assert.equal(cells.labelOf("/tmp/ipykernel_7/55.py"), "In[4]");
  assert.equal(cells.labelOf("/tmp/ipykernel_7/56.py"), "cell 56");
});

test("files with one clock share the origin of time", () => {
  const events = [
    { action: 0, size: 512, time: 1_000_500 },
    { action: 0, size: 512, time: 1_001_000 },
  ];
  const allocations = events.map((_, start) => ({ start, end: 2, size: 512 }));
  const facts = (/** @type {object} */ device) =>
    overviewOf(createSnapshot(events, allocations, { device })).devices[0];
  const own = facts({});
  assert.deepEqual([own.origin, own.span, own.peak.time], [1_000_500, 500, 500]);
  const beside = facts({ zero_us: 1_000_000 });
  assert.deepEqual([beside.origin, beside.span, beside.peak.time], [1_000_000, 1000, 1000]);
  assert.equal(beside.domains.time[0] < 0 && beside.domains.time[1] > 1000, true);
  // The origin cannot be after the first event
  assert.equal(facts({ zero_us: 2_000_000 }).origin, 1_000_500);
});

/** Allocations of the model. @param {[number, number][]} lifetimes start and end, ordered by start */
function createAllocations(lifetimes) {
  const [start, end] = [0, 1].map((side) => Int32Array.from(lifetimes, (lifetime) => lifetime[side]));
  const after = (/** @type {number} */ event) => start.filter((first) => first <= event).length;
  return /** @type {any} */ ({ start, end, length: lifetimes.length, after });
}

test("checkpoints take linear time for any recording", () => {
  const count = 200_000;
  const never = 10 * count;
  /** @type {Record<string, (i: number) => [number, number]>} */
  const shapes = {
    "only growing": (i) => [i, never],
    "all before the first event": () => [-1, never],
    "20,000 live, and churn": (i) => (i < 20_000 ? [-1, never] : [2 * i, 2 * i + 7]),
    "5,000 live, and churn": (i) => (i < 5000 ? [i, never] : [2 * i, 2 * i + 1]),
    "sawtooth of 30,000": (i) => [i, i - (i % 30_000) + 30_000],
    "a wide sawtooth of 100,000, then churn": (i) => (i < 100_000 ? [i, 100_001] : [2 * i, 2 * i + 3]),
    "slowly decreasing": (i) => [i, count + 2 * i],
  };
  for (const [name, shape] of Object.entries(shapes)) {
    const rows = Array.from({ length: count }, (_, i) => shape(i));
    const checkpoints = new Checkpoints(createAllocations(rows));
    assert.ok(checkpoints.steps <= 6 * count, `${name}: ${checkpoints.steps} steps`);
    const listed = checkpoints.lists.reduce((sum, { rows }) => sum + rows.length, 0);
    assert.ok(listed <= 4 * count, `${name}: ${listed} rows in lists`);
    for (const event of [-1, 7, 99_999, 100_001, 250_000, 399_999]) {
      const live = rows.map((_, row) => row).filter((row) => rows[row][0] <= event && rows[row][1] > event);
      assert.deepEqual([...checkpoints.live(event)], live, `${name} at ${event}`);
      const list = checkpoints.lists.findLast((list) => list.event <= event);
      const walk = (list?.rows.length ?? 0) + rows.filter(([start]) => start <= event).length - (list?.next ?? 0);
      // Right after many frees, no allocation has begun at which a shorter list is created
      if (event !== 100_001 && !name.startsWith("slowly"))
        assert.ok(walk <= 2 * live.length + 4 * 8192, `${name} at ${event}: ${walk} rows visited`);
    }
  }
});

test("thousands of nested regions do not slow down a search by time", () => {
  const region = (name, start_us, end_us, depth) => ({ name, device: 0, start_us, end_us, depth, ambiguous: false });
  const inner = Array.from({ length: 50_000 }, (_, i) => region(`step ${i}`, 10 * i + 5, 10 * i + 8, 1));
  const annotations = new Annotations([region("all", 0, 1e9, 0), ...inner]);
  assert.equal(annotations.spans.boundaries.length, 2 + 2 * inner.length, "one entry per section");
  for (let time = 0; time < 500_000; time += 7)
    assert.equal(annotations.innermost(time), time % 10 >= 5 && time % 10 <= 8 ? Math.floor(time / 10) + 1 : 0);
});
