/** The call tree of some allocations as rectangles, whose width is bytes or bytes times lifetime. */

import { getOrCreate } from "../../data/collections.js";
import { byteTime } from "./groups.js";
import { count, oneLine } from "../../data/units.js";

/**
 * @typedef {object} Box
 * @property {string} label
 * @property {string} [title]
 * @property {number} depth
 * @property {number} x0 share of the whole, 0 to 1
 * @property {number} x1
 * @property {number} value
 * @property {number} count
 * @property {boolean} own the user's own code
 * @property {string} path where it is in the tree
 * @property {number} [rest] the number of calls that it replaces because each of them would be too narrow
 *
 * @typedef {{label: string, title?: string, own: boolean, value: number, count: number, inner: Map<string, Node>}} Node
 */

const MAX_BOXES = 400;
const MAX_DEPTH = 1000; // Python's default recursion limit
const MAX_NODES = 100_000; // after which only calls that are already in the tree are added

/**
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device
 * @param {Int32Array} rows
 * @param {{key: string, measure: "bytes"|"time", first: number, last: number, root: string, threshold: number}} options
 *   key: groups of the top level, if they are not calls; root: path of the box that fills the width; threshold: share of
 *   the width below which calls are merged
 * @returns {{boxes: Box[], total: number, left: number}}
 */
export function icicle(snapshot, device, rows, { key, measure, first, last, root, threshold }) {
  const top =
    key === "cell" || key === "annotation" || key === "line" || key === "function"
      ? snapshot.key(device, key)
      : undefined;
  /** @type {Node} */
  const tree = { label: "all", own: false, value: 0, count: 0, inner: new Map() };
  /** @type {Map<string, {value: number, count: number, row: number}>} */
  const sums = new Map();
  let nodes = 0;
  const { stack, size } = device.allocations;
  for (const row of rows) {
    const value = measure === "time" ? byteTime(device, row, first, last) : size[row];
    const id = `${top ? top.codes[row] : ""} ${stack[row]}`;
    const sum = getOrCreate(sums, id, () => ({ value: 0, count: 0, row }));
    sum.value += value;
    sum.count++;
  }
  for (const { value, count, row } of sums.values()) {
    let node = tree;
    const add = (/** @type {string} */ id, /** @type {() => {label: string, title?: string, own: boolean}} */ make) => {
      const next = getOrCreate(node.inner, id, () => ({ ...make(), value: 0, count: 0, inner: new Map() }));
      node = next;
      node.value += value;
      node.count += count;
    };
    tree.value += value;
    tree.count += count;
    if (top) add(`k${top.codes[row]}`, () => ({ label: top.describe(top.codes[row], [row]).label, own: true }));
    const frames = snapshot.stacks.numbers(stack[row]).reverse().slice(0, MAX_DEPTH);
    for (const number of frames) {
      const frame = snapshot.stacks.frames[number];
      if (!node.inner.has(`f${number}`) && ++nodes > MAX_NODES) break;
      add(`f${number}`, () => ({
        label: oneLine(
          frame.line ? `${snapshot.shortFile(frame.file)}:${frame.line} ${frame.name}` : frame.name || frame.file,
        ),
        title: oneLine(`${frame.file}:${frame.line} ${frame.name}`),
        own: frame.own,
      }));
    }
    if (!frames.length) {
      const line = snapshot.key(device, "line");
      add("none", () => ({ label: line.describe(line.codes[row], [row]).label, own: false }));
    }
  }
  return layout(tree, root, threshold);
}

/** @param {Node} tree @param {string} root @param {number} threshold */
function layout(tree, root, threshold) {
  let node = tree;
  /** @type {Box[]} */
  const boxes = [];
  let path = "";
  /** @type {(node: Node, depth: number, x0: number, x1: number, path: string) => Box} */
  const box = ({ inner: _, ...facts }, depth, x0, x1, path) => ({ ...facts, depth, x0, x1, path });
  boxes.push(box(tree, 0, 0, 1, ""));
  for (const step of root ? root.split("/") : []) {
    const next = node.inner.get(step);
    if (!next) break;
    path = path ? `${path}/${step}` : step;
    node = next;
    boxes.push(box(node, boxes.length, 0, 1, path));
  }
  let left = 0;
  const total = node.value;
  /** @type {{parent: Node, depth: number, x0: number, at: string}[]} */
  let level = [{ parent: node, depth: boxes.length, x0: 0, at: path }];
  while (level.length && boxes.length < MAX_BOXES) {
    /** @type {typeof level} */
    const below = [];
    for (const { parent, depth, x0, at } of level) {
      let x = x0;
      const narrowSum = { value: 0, count: 0 };
      let narrow = 0;
      for (const [id, child] of [...parent.inner].sort(([, a], [, b]) => b.value - a.value)) {
        const width = total > 0 ? child.value / total : 0;
        if (width < threshold || boxes.length >= MAX_BOXES) {
          narrow++;
          narrowSum.value += child.value;
          narrowSum.count += child.count;
        } else {
          const here = at ? `${at}/${id}` : id;
          boxes.push(box(child, depth, x, x + width, here));
          below.push({ parent: child, depth: depth + 1, x0: x, at: here });
          x += width;
        }
      }
      left += narrow;
      // Narrow calls are the smallest ones, so their sum is drawn after the others
      const width = total > 0 ? narrowSum.value / total : 0;
      if (width >= threshold) {
        const merged = { label: `${count(narrow)} narrower`, own: false, inner: new Map(), ...narrowSum };
        boxes.push({ ...box(merged, depth, x, x + width, at), rest: narrow });
      }
    }
    level = below;
  }
  return { boxes, total, left };
}
