/** What is worth a look; the call tree; the reserved curve; pools: small recordings with one thing in them. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { findings } from "../snapshot/engine/findings.js";
import { icicle } from "../snapshot/engine/icicle.js";
import { overviewOf } from "../snapshot/engine/overview.js";
import { parts } from "../snapshot/engine/search-terms.js";
import { made } from "./snapshots.js";

const MIB = 2 ** 20;

/** @param {string} kind @param {object[]} events @param {object[]} rows @param {object} [facts] */
function told(kind, events, rows, facts) {
  const snapshot = made(events, rows, { device: facts });
  return findings(snapshot, snapshot.devices[0]).filter((one) => one.kind === kind);
}

test("out of memory 2,000 times: five one by one, the others as one", () => {
  const events = Array.from({ length: 2000 }, (_, time) => ({ action: 7, size: 32 * MIB, time }));
  const found = told("oom", events, []);
  assert.equal(found.length, 6);
  assert.equal(found[5].title, "… and out of memory 1,995 more times");
  assert.equal(found[5].text, "2,000 times in all, the last at event 1,999: 32.0 MiB were asked for.");
  assert.equal(found[5].event, 1999);
  assert.equal(told("oom", events.slice(0, 5), []).length, 5);
});

test("out of memory with memory left says why that may be", () => {
  const [one] = told("oom", [{ action: 7, size: 32 * MIB, time: 1 }], [], { device_free: { 0: 137 * 2 ** 30 } });
  assert.equal(
    one.text,
    "32.0 MiB were asked for; the device had 137.0 GiB free: perhaps there was a limit (torch.cuda.set_per_process_memory_fraction).",
  );
  const [other] = told("oom", [{ action: 7, size: 32 * MIB, time: 1 }], [], { device_free: { 0: MIB } });
  assert.equal(other.text, "32.0 MiB were asked for; the device had 1.0 MiB free.");
});

test("long in pending free, request and completion being neighbours", () => {
  const at = (/** @type {number} */ wait) =>
    told(
      "pending",
      [
        { action: 0, size: MIB, time: 10 },
        { action: 1, size: MIB, time: 20 },
        { action: 2, size: MIB, time: 20 + wait },
      ],
      [{ start: 0, asked: 1, end: 2, size: MIB }],
    );
  assert.equal(at(500_000).length, 1);
  assert.match(at(500_000)[0].text, /waited 500 ms for a stream/);
  assert.equal(at(1700).length, 0, "an interruption inside one call");
});

test("segments given back once", () => {
  const events = [
    { action: 4, size: MIB, time: 1 },
    { action: 3, size: MIB, time: 2 },
  ];
  const twice = [...events, ...events];
  assert.match(told("retry", events, [], { end_reserved: MIB })[0].text, /^Once: cached memory/);
  assert.match(told("retry", twice, [], { end_reserved: MIB })[0].text, /^Up to 2 times: /);
});

test("reserved bytes below nothing are not known, and that is said", () => {
  const events = [
    { action: 3, size: 20 * MIB, time: 1 },
    { action: 0, size: MIB, time: 2 },
  ];
  const rows = [{ start: 1, end: 2, size: MIB }];
  const of = (/** @type {number|null} */ end) =>
    overviewOf(made(events, rows, { device: { end_reserved: end } })).devices[0];
  assert.equal(of(20 * MIB).reserved, 20 * MIB);
  assert.deepEqual(of(20 * MIB).notes, []);
  assert.equal(of(0).reserved, null);
  assert.deepEqual(of(0).notes, [
    "the segments at the end and the events do not fit together: the reserved bytes are unknown",
  ]);
  assert.deepEqual(of(null).notes, ["the file has no segments, so the reserved bytes are unknown"]);
});

test("a device without events is told by what it is", () => {
  const { notes } = overviewOf(made([], [], { device: { end_reserved: 0 } })).devices[0];
  assert.deepEqual(notes, ["no events were recorded on this device: only the state at the end is known"]);
});

test("calls too narrow to be drawn stand as one box", () => {
  const frames = Array.from({ length: 600 }, (_, i) => ["/a.py", i + 1, "f"]);
  const columns = {
    "stacks/own": frames.map(() => 1),
    "stacks/node_frame": frames.map((_, i) => i),
    "stacks/node_parent": frames.map(() => -1),
    "stacks/leaf": frames.map((_, i) => i),
    "stacks/user_frame": frames.map((_, i) => i),
  };
  const events = frames.map((_, i) => ({ action: 0, stack: i, time: i }));
  const rows = frames.map((_, i) => ({ start: i, end: 600, size: i < 2 ? 1000 : 10, stack: i }));
  const snapshot = made(events, rows, { header: { frames }, columns });
  const how = { key: "stack", measure: /** @type {const} */ ("bytes"), first: -1, last: 600, root: "", least: 0.01 };
  const found = icicle(snapshot, snapshot.devices[0], Int32Array.from(rows.keys()), how);
  const level = found.boxes.filter((box) => box.depth === 1);
  assert.deepEqual(
    level.map((box) => [box.rest ?? 0, box.value, box.count]),
    [
      [0, 1000, 1],
      [0, 1000, 1],
      [598, 5980, 598],
    ],
  );
  assert.equal(level[2].label, "598 narrower");
  assert.equal(level[0].x0, 0);
  assert.ok(Math.abs(level[2].x1 - 1) < 1e-9, "the whole width is filled");
  assert.equal(level[2].x0, level[1].x1);
});

test("a block's name without its number", () => {
  const [word] = parts("b7f15c3f76000", []);
  assert.deepEqual([word.kind, word.address, word.nth], ["block", 0x7f15c3f76000n, null]);
  assert.equal(parts("b7f15c3f76000_2", [])[0].nth, 2);
  assert.equal(parts("backbone", [])[0].kind, "text");
  assert.equal(parts("beef", [])[0].kind, "text");
});
