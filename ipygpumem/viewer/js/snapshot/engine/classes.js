/** What the colors mean: a class for each allocation. */

import { BEFORE } from "../model/trace.js";
import { CLASSES } from "../palette.js";
import { GIB, KIB, MIB, plural } from "../../data/units.js";

/**
 * @typedef {object} Class
 * @property {string} label
 * @property {number} place which color; -1 for the rest, below for what has no name
 * @property {number} bytes at the peak
 * @property {number} count of all allocations
 *
 * @typedef {object} Classes
 * @property {string} mode
 * @property {boolean} ordered
 * @property {Class[]} classes
 * @property {Uint8Array} of class of each allocation
 *
 * @typedef {import("../model/snapshot.js").Snapshot} Snapshot
 * @typedef {import("../model/device.js").Device} Device
 * @typedef {{snapshot: Snapshot, device: Device}} Side
 * @typedef {{code: number, label: string, peak: number, all: number}} Leader
 */

const SIZES = [
  [16 * KIB, "up to 16 KiB"],
  [256 * KIB, "up to 256 KiB"],
  [MIB, "up to 1 MiB"],
  [10 * MIB, "up to 10 MiB"],
  [100 * MIB, "up to 100 MiB"],
  [GIB, "up to 1 GiB"],
  [Number.POSITIVE_INFINITY, "more than 1 GiB"],
];
const TIMES = [
  [100, "up to 100 µs"],
  [1e3, "up to 1 ms"],
  [1e4, "up to 10 ms"],
  [1e5, "up to 100 ms"],
  [1e6, "up to 1 s"],
  [Number.POSITIVE_INFINITY, "longer than 1 s"],
];
const COUNTS = [
  [10, "up to 10 events"],
  [100, "up to 100 events"],
  [1e3, "up to 1,000 events"],
  [1e4, "up to 10,000 events"],
  [Number.POSITIVE_INFINITY, "longer"],
];
const STAYS = "alive at the end";
const NAMED = 64;
const REST = -1;

/** @param {Snapshot} snapshot @param {Device} device @param {string} mode @param {Side[]} [beside] other files, with the same colors @returns {Classes} */
export function classify(snapshot, device, mode, beside = []) {
  const { allocations } = device;
  const { length, size, start, end } = allocations;
  const of = new Uint8Array(length);
  /** @type {string[]} */
  let labels;
  let ordered = false;
  if (mode === "size") {
    ordered = true;
    labels = SIZES.map(([, label]) => String(label));
    for (let row = 0; row < length; row++) of[row] = SIZES.findIndex(([most]) => size[row] <= Number(most));
  } else if (mode === "lifetime") {
    ordered = true;
    // the same steps in all files
    const timed = [device, ...beside.map((one) => one.device)].every(({ trace }) => trace.timed);
    const steps = timed ? TIMES : COUNTS;
    labels = [...steps.map(([, label]) => String(label)), STAYS];
    for (let row = 0; row < length; row++) {
      const life = (timed ? device.lifetime(row) : null) ?? end[row] - start[row];
      of[row] = end[row] >= device.trace.length ? steps.length : steps.findIndex(([most]) => life <= Number(most));
    }
  } else if (mode === "category") {
    labels = categories(snapshot, device, of);
  } else {
    return byKey({ snapshot, device }, mode, of, beside);
  }
  return sums(device, {
    mode,
    ordered,
    of,
    classes: labels.map((label, place) => ({ label, place, bytes: 0, count: 0 })),
  });
}

/**
 * What an allocation is for, as far as the file tells.
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device @param {Uint8Array} of
 */
function categories(snapshot, device, of) {
  const { allocations } = device;
  const note = snapshot.key(device, "annotation");
  const labels = [
    "older than the recording",
    "made in an optimizer's step",
    "made in zero_grad",
    "made in another annotated region",
    "made without Python (backward)",
    "made in a private pool",
    "made elsewhere",
  ];
  const pool = snapshot.key(device, "pool");
  /** @type {Map<number, number>} */
  const regions = new Map();
  for (let row = 0; row < allocations.length; row++) {
    let code = regions.get(note.codes[row]);
    if (code === undefined) {
      const { label } = note.describe(note.codes[row]);
      code = label.startsWith("Optimizer.step")
        ? 1
        : label.startsWith("Optimizer.zero_grad")
          ? 2
          : label === "(outside of all)"
            ? 6
            : 3;
      regions.set(note.codes[row], code);
    }
    const stack = allocations.stack[row];
    const id = snapshot.pools[pool.codes[row]];
    if (allocations.start[row] === BEFORE) of[row] = 0;
    else if (code !== 6) of[row] = code;
    else if (id && (id[0] || id[1])) of[row] = 5;
    else if (stack >= 0 && (snapshot.stacks.leaf[stack] < 0 || noPython(snapshot, stack))) of[row] = 4;
    else of[row] = 6;
  }
  return labels;
}

/** @param {import("../model/snapshot.js").Snapshot} snapshot @param {number} stack */
function noPython(snapshot, stack) {
  return (
    snapshot.stacks.userFrame[stack] < 0 &&
    !snapshot.stacks.numbers(stack).some((one) => snapshot.stacks.frames[one].file.endsWith(".py"))
  );
}

/** How much each group of a key weighs, the heaviest first. @param {Side} side @param {string} key */
function weigh({ snapshot, device }, key) {
  const { codes, describe } = snapshot.key(device, key);
  const { size, length } = device.allocations;
  let least = 0;
  let most = 0;
  for (let row = 0; row < length; row++) {
    if (codes[row] < least) least = codes[row];
    if (codes[row] > most) most = codes[row];
  }
  // codes are small numbers: arrays by code are much quicker than a map
  const all = new Float64Array(most - least + 1);
  const peak = new Float64Array(most - least + 1);
  /** @type {number[][]} the first rows of a group: they help to name it */
  const rows = Array.from({ length: most - least + 1 }, () => []);
  for (let row = 0; row < length; row++) {
    const group = codes[row] - least;
    all[group] += size[row];
    if (rows[group].length < NAMED) rows[group].push(row);
  }
  for (const row of device.checkpoints.live(device.requested.peak() - 1)) peak[codes[row] - least] += size[row];
  const label = (/** @type {number} */ code) => describe(code, rows[code - least]).label;
  const groups = Array.from(rows.keys())
    .filter((one) => rows[one].length)
    .map((one) => ({ code: one + least, peak: peak[one], all: all[one] }))
    .sort(heavier);
  // one more than there are colors tells that some are left over
  const leaders = groups.slice(0, CLASSES + 1).map((group) => ({ ...group, label: label(group.code) }));
  return { codes, least, most, groups, label, leaders };
}

/** @param {{peak: number, all: number}} a @param {{peak: number, all: number}} b */
function heavier(a, b) {
  return b.peak - a.peak || b.all - a.all;
}

/** The heaviest groups of several files: a label that weighs in one of them has its color in all. @param {Leader[][]} each @returns {Leader[]} */
function together(each) {
  /** @type {Map<string, Leader>} */
  const found = new Map();
  for (const leader of each.flat()) {
    const known = found.get(leader.label);
    if (!known || heavier(leader, known) < 0) found.set(leader.label, leader);
  }
  // equal ones by name: the files come in another order for each of them
  return [...found.values()].sort((a, b) => heavier(a, b) || (a.label < b.label ? -1 : 1));
}

/**
 * The largest groups by a key, and all others as one.
 * @param {Side} side @param {string} key @param {Uint8Array} of @param {Side[]} beside @returns {Classes}
 */
function byKey(side, key, of, beside) {
  const { codes, least, most, groups, label, leaders } = weigh(side, key);
  const alone = !beside.length;
  const first = alone ? leaders : together([leaders, ...beside.map((one) => weigh(one, key).leaders)]);
  const full = first.length > CLASSES;
  const shown = first.slice(0, full ? CLASSES - 1 : CLASSES);
  const place = new Uint8Array(most - least + 1).fill(shown.length);
  const numbers = new Map(shown.map((one, number) => [alone ? one.code : one.label, number]));
  let left = 0;
  for (const { code } of groups) {
    const number = numbers.get(alone ? code : label(code));
    if (number === undefined) left++;
    else place[code - least] = number;
  }
  for (let row = 0; row < codes.length; row++) of[row] = place[codes[row] - least];
  let named = 0;
  // what has no name takes a quiet color
  const classes = shown.map((one) => ({
    label: one.label,
    place: one.code < 0 ? one.code - 1 : named++,
    bytes: 0,
    count: 0,
  }));
  // the legend of several files is one: what stands for the rest in one stands for it in all
  if (full) classes.push({ label: plural(left, "other"), place: REST, bytes: 0, count: 0 });
  return sums(side.device, { mode: key, ordered: false, classes, of });
}

/** @param {import("../model/device.js").Device} device @param {Classes} found */
function sums(device, found) {
  const { size, length } = device.allocations;
  for (let row = 0; row < length; row++) found.classes[found.of[row]].count++;
  for (const row of device.checkpoints.live(device.requested.peak() - 1))
    found.classes[found.of[row]].bytes += size[row];
  return found;
}
