/** Callers that distinguish groups by stack. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { distinguishingCallers } from "../../../ipygpumem/viewer/js/snapshot/engine/callers.js";

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
