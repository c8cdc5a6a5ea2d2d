/** Findings, the call tree, reserved memory and notes of small recordings. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { findings } from "../../../ipygpumem/viewer/js/snapshot/engine/findings.js";
import { icicle } from "../../../ipygpumem/viewer/js/snapshot/engine/icicle.js";
import { overviewOf } from "../../../ipygpumem/viewer/js/snapshot/engine/overview.js";
import { parseSearch } from "../../../ipygpumem/viewer/js/snapshot/engine/search-terms.js";
import { createSnapshot } from "./snapshots.mjs";

const MIB = 2 ** 20;

/** @param {string} kind @param {object[]} events @param {object[]} rows @param {object} [facts] */
function find(kind, events, rows, facts) {
  const snapshot = createSnapshot(events, rows, { device: facts });
  return findings(snapshot, snapshot.devices[0]).filter((finding) => finding.kind === kind);
}

test("out of memory 2,000 times: five findings, and one for all others", () => {
  const events = Array.from({ length: 2000 }, (_, time) => ({ action: 7, size: 32 * MIB, time }));
  const ooms = find("oom", events, []);
  assert.equal(ooms.length, 6);
  assert.equal(ooms[5].title, "Out of memory 1,995 more times");
  assert.equal(ooms[5].text, "2,000 times in total. The last, at event 1,999, tried to allocate 32.0 MiB.");
  assert.equal(ooms[5].event, 1999);
  assert.equal(find("oom", events.slice(0, 5), []).length, 5);
});

test("out of memory with free memory mentions a limit", () => {
  const [limited] = find("oom", [{ action: 7, size: 32 * MIB, time: 1 }], [], { device_free: { 0: 137 * 2 ** 30 } });
  assert.equal(
    limited.text,
    "Tried to allocate 32.0 MiB; 137.0 GiB of device memory was free. A limit may apply (torch.cuda.set_per_process_memory_fraction).",
  );
  const [full] = find("oom", [{ action: 7, size: 32 * MIB, time: 1 }], [], { device_free: { 0: MIB } });
  assert.equal(full.text, "Tried to allocate 32.0 MiB; 1.0 MiB of device memory was free.");
});

test("long pending free with adjacent events", () => {
  const findWait = (/** @type {number} */ wait) =>
    find(
      "pending",
      [
        { action: 0, size: MIB, time: 10 },
        { action: 1, size: MIB, time: 20 },
        { action: 2, size: MIB, time: 20 + wait },
      ],
      [{ start: 0, freeRequested: 1, end: 2, size: MIB }],
    );
  assert.equal(findWait(500_000).length, 1);
  assert.match(findWait(500_000)[0].text, /another stream still used it for 500 ms/);
  assert.equal(findWait(1700).length, 0, "an interruption inside one call");
});

test("segments that were released and allocated again", () => {
  const events = [
    { action: 4, size: MIB, time: 1 },
    { action: 3, size: MIB, time: 2 },
  ];
  const twice = [...events, ...events];
  assert.match(find("retry", events, [], { end_reserved: MIB })[0].text, /^Once, cached segments/);
  assert.match(find("retry", twice, [], { end_reserved: MIB })[0].text, /^Up to 2 times, /);
});

test("negative reserved bytes are unknown", () => {
  const events = [
    { action: 3, size: 20 * MIB, time: 1 },
    { action: 0, size: MIB, time: 2 },
  ];
  const rows = [{ start: 1, end: 2, size: MIB }];
  const of = (/** @type {number|null} */ end) =>
    overviewOf(createSnapshot(events, rows, { device: { end_reserved: end } })).devices[0];
  assert.equal(of(20 * MIB).reserved, 20 * MIB);
  assert.equal(of(0).reserved, null);
});

test("notes of the file are shown on one line each", () => {
  const { notes } = overviewOf(createSnapshot([], [], { device: { end_reserved: 0, notes: ["a\nb", "c"] } }))
    .devices[0];
  assert.deepEqual(notes, ["a b", "c"]);
});

test("calls that are too narrow share one box", () => {
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
  const snapshot = createSnapshot(events, rows, { header: { frames }, columns });
  const options = {
    key: "stack",
    measure: /** @type {const} */ ("bytes"),
    first: -1,
    last: 600,
    root: "",
    threshold: 0.01,
  };
  const { boxes } = icicle(snapshot, snapshot.devices[0], Int32Array.from(rows.keys()), options);
  const level = boxes.filter((box) => box.depth === 1);
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

test("the name of a block without its number", () => {
  const [term] = parseSearch("b7f15c3f76000", []);
  assert.deepEqual([term.kind, term.address, term.nth], ["block", 0x7f15c3f76000n, null]);
  assert.equal(parseSearch("b7f15c3f76000_2", [])[0].nth, 2);
  assert.equal(parseSearch("backbone", [])[0].kind, "text");
  assert.equal(parseSearch("beef", [])[0].kind, "text");
});
