/** The small modules: units, CSV, hash, curves, cells, annotations, checkpoints. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { fromHash, toHash } from "../hash.js";
import { Annotations } from "../model/annotations.js";
import { Cells } from "../model/cells.js";
import { toCsv } from "../model/csv.js";
import { Curve } from "../model/curve.js";
import { byteTick, byteTicks, duration, fine, GIB, KIB, MIB, oneLine, signed, size } from "../model/units.js";
import { atFirst } from "../store.js";
import { alive, dice, random } from "./made.js";

test("sizes as everywhere in this package", () => {
  assert.equal(size(400 * MIB), "400.0 MiB");
  assert.equal(size(1023.96 * MIB), "1.0 GiB");
  assert.equal(size(1300 * GIB), "1,300.0 GiB");
  assert.deepEqual(
    [fine(0), fine(511), fine(2 * KIB), fine(2.5 * MIB), fine(1.5 * GIB)],
    ["0 B", "511 B", "2.0 KiB", "2.5 MiB", "1.50 GiB"],
  );
  assert.equal(signed(-MIB), "−1.0 MiB");
  assert.deepEqual(
    [duration(12), duration(1500), duration(2.31e6), duration(247e6)],
    ["12 µs", "1.5 ms", "2.31 s", "4 min 07 s"],
  );
});

test("byte ticks: round numbers of their unit", () => {
  const ticks = byteTicks(0, 2 * GIB, 5);
  const step = ticks[1] - ticks[0];
  assert.deepEqual(
    ticks.map((one) => byteTick(one, step, 2 * GIB).replace("\u2009", " ")),
    ["0", "0.5 GiB", "1.0 GiB", "1.5 GiB", "2.0 GiB"],
  );
  assert.deepEqual(byteTicks(0, 100, 4), [0, 50, 100]);
  for (const most of [1, 3, 511, 5000, 3 * MIB, 7 * GIB, 2 ** 50]) {
    const found = byteTicks(0, most, 6);
    assert.ok(found.length >= 2 && found.length <= 13, `${most}: ${found.length} ticks`);
  }
});

test("control characters and turned writing stay inside their line", () => {
  assert.equal(oneLine("a\nb\u202ec\u0000d"), "a b c d");
});

test("a spreadsheet takes no cell for a formula", () => {
  const text = toCsv(
    ["a", "b"],
    [
      ["=cmd|' /C calc'!A0", 1],
      ["+1", 2],
      ['say "hi", you', null],
      [" @x", Number.NaN],
    ],
  );
  assert.equal(text, 'a,b\r\n\'=cmd|\' /C calc\'!A0,1\r\n\'+1,2\r\n"say ""hi"", you",\r\n\' @x,\r\n');
});

test("a hash leads back to its view", () => {
  const view = {
    ...atFirst(),
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
    search: "a b&c=#<script>",
  };
  assert.deepEqual({ ...atFirst(), ...fromHash(`#${toHash(view)}`) }, view);
  assert.equal(toHash(atFirst()), "");
});

test("a hash of somebody else's is no view", () => {
  assert.deepEqual(fromHash("#x=9~3&y=a~b&e=1e99&n=-4&t=../../&c=__proto__&h=x&m=constructor~x&r=1.5~2&a=both"), {});
  assert.deepEqual(fromHash("%%%"), {});
});

test("the highest of any stretch, the first of equals", () => {
  const roll = dice(3);
  const bytes = Float64Array.from({ length: 1500 }, () => roll(40));
  const curve = new Curve(bytes);
  for (let turn = 0; turn < 500; turn++) {
    const first = roll(1500);
    const last = first + roll(1500 - first);
    const part = bytes.subarray(first, last + 1);
    assert.equal(curve.highest(first, last), first + part.indexOf(Math.max(...part)));
  }
});

test("what lives at any event, and no more lists than allocations", () => {
  const { snapshot, allocations } = random(6, 30000, { old: 3000 });
  const { checkpoints } = snapshot.devices[0];
  assert.ok(checkpoints.kept.length > 2);
  const kept = checkpoints.kept.slice(1).reduce((sum, { rows }) => sum + rows.length, 0);
  assert.ok(kept <= allocations.length, `${kept} rows in lists, ${allocations.length} allocations`);
  for (const event of [-1, 0, 1, 4999, 12345, 29999])
    assert.deepEqual([...checkpoints.live(event)], alive(allocations, event));
});

test("the deepest region around a time", () => {
  const region = (name, start_us, end_us, depth) => ({ name, device: 0, start_us, end_us, depth, ambiguous: false });
  const found = new Annotations([
    region("old", null, 50, 0),
    region("step", 100, 200, 0),
    region("inner", 120, 130, 1),
    region("open", 300, null, 0),
  ]);
  const name = (time) => found.all[found.innermost(time)]?.name;
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

test("the run of a cell is told by time and by file", () => {
  const cell = (number, filename, start_us, end_us) => ({ number, filename, start_us, end_us, success: true });
  const cells = new Cells([cell(1, "a.py", 0, 10), cell(2, "b.py", 20, 30), cell(3, "a.py", 40, 50)]);
  assert.equal(cells.label(5, ["a.py"]), "In[1]");
  assert.equal(cells.label(45, ["a.py"]), "In[3]");
  assert.equal(cells.label(25, ["a.py"]), "In[2]", "a function of In[1] that In[2] called");
  assert.equal(cells.label(-1, ["a.py"]), "In[1] or In[3]");
  assert.equal(cells.label(15, ["x.py"]), "(no cell)");
  assert.equal(cells.label(-1, ["<ipython-input-7-0123456789ab>"]), "In[7]");
});

test("a cell that ran before the recording has its number", () => {
  const cells = new Cells([], { "/tmp/ipykernel_7/55.py": 4 });
  assert.equal(cells.runsOf("/tmp/ipykernel_7/55.py"), "In[4]");
  assert.equal(cells.runsOf("/tmp/ipykernel_7/56.py"), "cell 56");
});
