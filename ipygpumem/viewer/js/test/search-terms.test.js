/** What a search text asks for. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { parts } from "../snapshot/engine/search-terms.js";

const ACTIONS = ["alloc", "free_requested", "free_completed", "segment_alloc"];
const MIB = 1024 ** 2;
const kinds = (text) => parts(text, ACTIONS).map(({ how: _, ...rest }) => rest);

test("text stands together, quotes hold words that mean something else", () => {
  assert.deepEqual(kinds("train.py forward"), [{ kind: "text", text: "train.py forward" }]);
  assert.deepEqual(kinds('"alloc"'), [{ kind: "text", text: "alloc" }]);
  assert.deepEqual(kinds("  "), []);
});

test("sizes, with and without a space, with a sign and without", () => {
  assert.deepEqual(kinds(">= 10 MiB"), [{ kind: "size", least: 10 * MIB, most: Number.POSITIVE_INFINITY }]);
  assert.deepEqual(kinds("<=1.5KiB"), [{ kind: "size", least: 0, most: 1536 }]);
  assert.deepEqual(kinds("=512"), [{ kind: "size", least: 512, most: 512 }]);
  const [about] = kinds("10.5 MiB");
  assert.ok(about.least < 10.46 * MIB && about.most > 10.54 * MIB, "all that is written as 10.5 MiB");
  const [more] = kinds(">1GiB");
  assert.ok(more.least > 1024 * MIB);
});

test("addresses, blocks and actions", () => {
  assert.deepEqual(kinds("0x7f064c000000"), [{ kind: "block", address: 0x7f064c000000n, nth: null }]);
  assert.deepEqual(kinds("7f064c000000"), [{ kind: "block", address: 0x7f064c000000n, nth: null }]);
  assert.deepEqual(kinds("b7f064c000000_3"), [{ kind: "block", address: 0x7f064c000000n, nth: 3 }]);
  assert.deepEqual(kinds("Alloc"), [{ kind: "action", actions: [0] }]);
  assert.deepEqual(kinds("free"), [{ kind: "action", actions: [1, 2] }]);
  assert.deepEqual(
    kinds("alloc >1MiB forward").map((one) => one.kind),
    ["action", "size", "text"],
  );
});
