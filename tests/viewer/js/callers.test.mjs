/** Callers that distinguish groups by stack. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { distinguishingCallers, joinFrames } from "../../../ipygpumem/viewer/js/snapshot/engine/callers.js";
import { compare } from "../../../ipygpumem/viewer/js/snapshot/engine/diff.js";
import { createSnapshot } from "./snapshots.mjs";

test("stacks with the same label differ by the first distinct caller, and by further ones if necessary", () => {
  assert.deepEqual(
    distinguishingCallers([
      { label: "f", frames: ["f", "torch", "a", "main"] },
      { label: "f", frames: ["f", "torch", "b", "x", "main"] },
      { label: "f", frames: ["f", "torch", "b", "y", "main"] },
      { label: "f", frames: ["f", "torch"] },
      { label: "g", frames: ["g", "main"] },
      { label: "(no stack)" },
    ]),
    ["a", "b ← x", "b ← y", "(outermost)", "", ""],
  );
});

test("a deep recursion shows at most three callers", () => {
  const groups = Array.from({ length: 50 }, (_, depth) => ({
    label: "f",
    frames: [...Array(depth + 1).fill("f"), "main"],
  }));
  assert.deepEqual(distinguishingCallers(groups).slice(0, 3), ["main", "f ← main", "f ← f ← main"]);
  assert.equal(distinguishingCallers(groups)[40], "f ← f ← f");
});

test("the text of a deep stack is truncated on the screen", () => {
  const frames = Array.from({ length: 1000 }, (_, depth) => `frame ${depth}`);
  assert.equal(joinFrames([{ frames }], Number.POSITIVE_INFINITY)[0], frames.join(" ← "));
  assert.ok(joinFrames([{ frames }], 100)[0].startsWith("frame 0 ← frame 1 ← frame 2"));
  assert.ok(joinFrames([{ frames }], 100)[0].length <= 2000);
});

test("stacks are compared by their frames, without the numbers of kernels", () => {
  const columns = Object.fromEntries(
    Object.entries({ own: [1, 1], node_frame: [0, 1], node_parent: [-1, 0], leaf: [1], user_frame: [1] }).map(
      ([name, values]) => [`stacks/${name}`, values],
    ),
  );
  const pane = (kernel, name, size) => {
    const file = `/tmp/ipykernel_${kernel}/5.py`;
    const frames = [
      [file, 1, "main"],
      [file, 2, name],
    ];
    const event = { action: 0, size, time: 1, stack: 0 };
    const row = { start: 0, end: 1, size, stack: 0 };
    const snapshot = createSnapshot([event], [row], { header: { frames }, columns });
    return { snapshot, device: snapshot.devices[0] };
  };
  const changes = (...after) => compare(pane(1, "f", 8), 0, pane(...after), 0, "stack", 100).changes;
  assert.deepEqual(changes(2, "f", 8), []);
  const [{ before, after, text }] = changes(2, "f", 9);
  assert.deepEqual([before, after], [8, 9]);
  assert.equal(text, "/tmp/ipykernel_1/5.py:2 f ← /tmp/ipykernel_1/5.py:1 main");
  assert.equal(changes(1, "g", 8).length, 2);
});
