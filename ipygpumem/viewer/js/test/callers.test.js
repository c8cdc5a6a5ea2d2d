/** What tells groups by stack apart. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { trails } from "../snapshot/engine/callers.js";

test("the first caller at which stacks of one name part, and the next where that is not enough", () => {
  assert.deepEqual(
    trails([
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

test("a recursion as deep as it likes keeps to three callers", () => {
  const groups = Array.from({ length: 50 }, (_, depth) => ({
    label: "f",
    frames: [...Array(depth + 1).fill("f"), "main"],
  }));
  assert.deepEqual(trails(groups).slice(0, 3), ["main", "f ← main", "f ← f ← main"]);
  assert.equal(trails(groups)[40], "f ← f ← f");
});
