/** The terms of a search text. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { parseSearch } from "../../../ipygpumem/viewer/js/snapshot/engine/search-terms.js";

const ACTIONS = ["alloc", "free_requested", "free_completed", "segment_alloc"];
const MIB = 1024 ** 2;
const parse = (text) => parseSearch(text, ACTIONS).map(({ how: _, ...rest }) => rest);

test("adjacent words form one text, and quotes make text of anything", () => {
  assert.deepEqual(parse("train.py forward"), [{ kind: "text", text: "train.py forward" }]);
  assert.deepEqual(parse('"alloc"'), [{ kind: "text", text: "alloc" }]);
  assert.deepEqual(parse("  "), []);
});

test("sizes, with and without a space, with a sign and without", () => {
  assert.deepEqual(parse(">= 10 MiB"), [{ kind: "size", minimum: 10 * MIB, maximum: Number.POSITIVE_INFINITY }]);
  assert.deepEqual(parse("<=1.5KiB"), [{ kind: "size", minimum: 0, maximum: 1536 }]);
  assert.deepEqual(parse("=512"), [{ kind: "size", minimum: 512, maximum: 512 }]);
  const [about] = parse("10.5 MiB");
  assert.ok(about.minimum < 10.46 * MIB && about.maximum > 10.54 * MIB, "every size that is displayed as 10.5 MiB");
  const [more] = parse(">1GiB");
  assert.ok(more.minimum > 1024 * MIB);
});

test("addresses, blocks and actions", () => {
  assert.deepEqual(parse("0x7f064c000000"), [{ kind: "block", address: 0x7f064c000000n, nth: null }]);
  assert.deepEqual(parse("7f064c000000"), [{ kind: "block", address: 0x7f064c000000n, nth: null }]);
  assert.deepEqual(parse("b7f064c000000_3"), [{ kind: "block", address: 0x7f064c000000n, nth: 3 }]);
  assert.deepEqual(parse("Alloc"), [{ kind: "action", actions: [0] }]);
  assert.deepEqual(parse("free"), [{ kind: "action", actions: [1, 2] }]);
  assert.deepEqual(
    parse("alloc >1MiB forward").map((term) => term.kind),
    ["action", "size", "text"],
  );
});
