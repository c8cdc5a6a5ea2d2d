/** The call tree of some allocations, as rectangles: width by bytes, or by bytes times lifetime. */

import { remember } from "../../data/collections.js";
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
 * @property {string} path where it is in the tree, to ask for it again
 * @property {number} [rest] how many calls it stands for that are too narrow by themselves
 *
 * @typedef {{label: string, title?: string, own: boolean, value: number, count: number, inner: Map<string, Node>}} Node
 */

const MOST = 400;

/**
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device
 * @param {Int32Array} rows
 * @param {{key: string, measure: "bytes"|"time", first: number, last: number, root: string, least: number}} how
 *   key: the groups of the uppermost level, if not by call; root: the path of the box that fills the width; least: share of
 *   the width below which a box is left out
 * @returns {{boxes: Box[], total: number, left: number}}
 */
export function icicle(snapshot, device, rows, { key, measure, first, last, root, least }) {
  const top =
    key === "cell" || key === "annotation" || key === "line" || key === "function"
      ? snapshot.key(device, key)
      : undefined;
  /** @type {Node} */
  const tree = { label: "all", own: false, value: 0, count: 0, inner: new Map() };
  /** @type {Map<string, {value: number, count: number, row: number}>} */
  const sums = new Map();
  const { stack, size } = device.allocations;
  for (const row of rows) {
    const value = measure === "time" ? byteTime(device, row, first, last) : size[row];
    const id = `${top ? top.codes[row] : ""} ${stack[row]}`;
    const one = sums.get(id);
    if (one) {
      one.value += value;
      one.count++;
    } else {
      sums.set(id, { value, count: 1, row });
    }
  }
  for (const { value, count, row } of sums.values()) {
    let node = tree;
    const add = (/** @type {string} */ id, /** @type {() => {label: string, title?: string, own: boolean}} */ make) => {
      const next = remember(node.inner, id, () => ({ ...make(), value: 0, count: 0, inner: new Map() }));
      node = next;
      node.value += value;
      node.count += count;
    };
    tree.value += value;
    tree.count += count;
    if (top) add(`k${top.codes[row]}`, () => ({ label: top.describe(top.codes[row], [row]).label, own: true }));
    const frames = snapshot.stacks.numbers(stack[row]).reverse();
    for (const number of frames) {
      const frame = snapshot.stacks.frames[number];
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
  return layout(tree, root, least);
}

/** @param {Node} tree @param {string} root @param {number} least */
function layout(tree, root, least) {
  let node = tree;
  /** @type {Box[]} */
  const boxes = [];
  let path = "";
  const box = (
    /** @type {Node} */ one,
    /** @type {number} */ depth,
    /** @type {number} */ x0,
    /** @type {number} */ x1,
    /** @type {string} */ at,
  ) => ({
    label: one.label,
    title: one.title,
    depth,
    x0,
    x1,
    value: one.value,
    count: one.count,
    own: one.own,
    path: at,
  });
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
  /** @type {{one: Node, depth: number, x0: number, x1: number, at: string}[]} */
  let level = [{ one: node, depth: boxes.length - 1, x0: 0, x1: 1, at: path }];
  while (level.length && boxes.length < MOST) {
    /** @type {typeof level} */
    const below = [];
    for (const { one, depth, x0, at } of level) {
      let x = x0;
      const rest = { narrow: 0, value: 0, count: 0 };
      for (const [id, child] of [...one.inner].sort(([, a], [, b]) => b.value - a.value)) {
        const width = total > 0 ? child.value / total : 0;
        if (width < least || boxes.length >= MOST) {
          rest.narrow++;
          rest.value += child.value;
          rest.count += child.count;
        } else {
          const here = at ? `${at}/${id}` : id;
          boxes.push(box(child, depth + 1, x, x + width, here));
          below.push({ one: child, depth: depth + 1, x0: x, x1: x + width, at: here });
          x += width;
        }
      }
      left += rest.narrow;
      // they are the last: what they take together lies behind the others
      const width = total > 0 ? rest.value / total : 0;
      if (width >= least) {
        const label = `${count(rest.narrow)} narrower`;
        const node = { label, own: false, inner: new Map(), ...rest };
        boxes.push({ ...box(node, depth + 1, x, x + width, at), rest: rest.narrow });
      }
    }
    level = below;
  }
  return { boxes, total, left };
}
