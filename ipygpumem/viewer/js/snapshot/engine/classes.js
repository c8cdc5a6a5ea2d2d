/** Assigns each allocation to a class, which has a color and an entry in the legend. */

import { getOrCreate } from "../../data/collections.js";
import { NO_REGION } from "../options.js";
import { BEFORE } from "../model/trace.js";
import { CLASSES } from "../palette.js";
import { GIB, KIB, MIB, plural } from "../../data/units.js";

/**
 * @typedef {object} Class
 * @property {string} label
 * @property {number} place number of the color; -1: all smaller groups, below -1: groups without a name
 * @property {number} bytes at the peak
 * @property {number} count of allocations in the whole recording
 *
 * @typedef {object} Classes
 * @property {string} mode
 * @property {boolean} ordered
 * @property {Class[]} classes
 * @property {Uint8Array} of the class of each allocation
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
const ALIVE = "alive at the end";
const SAMPLE = 64; // rows that help to describe a group
const OTHERS = -1;

/** @param {Snapshot} snapshot @param {Device} device @param {string} mode @param {Side[]} [beside] other files, which use the same colors @returns {Classes} */
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
    for (let row = 0; row < length; row++) of[row] = SIZES.findIndex(([limit]) => size[row] <= Number(limit));
  } else if (mode === "lifetime") {
    ordered = true;
    // All files use the same steps
    const timed = [device, ...beside.map((side) => side.device)].every(({ trace }) => trace.timed);
    const steps = timed ? TIMES : COUNTS;
    labels = [...steps.map(([, label]) => String(label)), ALIVE];
    for (let row = 0; row < length; row++) {
      const life = (timed ? device.lifetime(row) : null) ?? end[row] - start[row];
      of[row] = end[row] >= device.trace.length ? steps.length : steps.findIndex(([limit]) => life <= Number(limit));
    }
  } else if (mode === "category") {
    labels = categories(snapshot, device, of);
  } else {
    return byKey({ snapshot, device }, mode, of, beside);
  }
  return addSums(device, {
    mode,
    ordered,
    of,
    classes: labels.map((label, place) => ({ label, place, bytes: 0, count: 0 })),
  });
}

/**
 * Classify allocations by their purpose, as far as the snapshot shows it.
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device @param {Uint8Array} of
 */
function categories(snapshot, device, of) {
  const { allocations } = device;
  const annotation = snapshot.key(device, "annotation");
  const labels = [
    "older than the recording",
    "allocated in an optimizer's step",
    "allocated in zero_grad",
    "allocated in another annotated region",
    "allocated without Python (backward)",
    "allocated in a private pool",
    "allocated elsewhere",
  ];
  const pool = snapshot.key(device, "pool");
  const python = snapshot.stacks.matching((frame) => frame.file.endsWith(".py"));
  /** @type {Map<number, number>} */
  const regions = new Map();
  for (let row = 0; row < allocations.length; row++) {
    const code = getOrCreate(regions, annotation.codes[row], () => {
      const { label } = annotation.describe(annotation.codes[row]);
      if (label === NO_REGION) return 6;
      return label.startsWith("Optimizer.step") ? 1 : label.startsWith("Optimizer.zero_grad") ? 2 : 3;
    });
    const stack = allocations.stack[row];
    const id = snapshot.pools[pool.codes[row]];
    if (allocations.start[row] === BEFORE) of[row] = 0;
    else if (code !== 6) of[row] = code;
    else if (id && (id[0] || id[1])) of[row] = 5;
    else if (stack >= 0 && snapshot.stacks.userFrame[stack] < 0 && !python[stack]) of[row] = 4;
    else of[row] = 6;
  }
  return labels;
}

/** The groups of a key, the largest at the peak first. @param {Side} side @param {string} key */
function rankGroups({ snapshot, device }, key) {
  const { codes, describe } = snapshot.key(device, key);
  const { size, length } = device.allocations;
  let minimum = 0;
  let maximum = 0;
  for (let row = 0; row < length; row++) {
    if (codes[row] < minimum) minimum = codes[row];
    if (codes[row] > maximum) maximum = codes[row];
  }
  // Codes are small numbers: arrays by code are much faster than a map
  const all = new Float64Array(maximum - minimum + 1);
  const peak = new Float64Array(maximum - minimum + 1);
  /** @type {number[][]} the first rows of each group: they help to describe it */
  const rows = Array.from({ length: maximum - minimum + 1 }, () => []);
  for (let row = 0; row < length; row++) {
    const group = codes[row] - minimum;
    all[group] += size[row];
    if (rows[group].length < SAMPLE) rows[group].push(row);
  }
  for (const row of device.checkpoints.live(device.requested.peak() - 1)) peak[codes[row] - minimum] += size[row];
  const label = (/** @type {number} */ code) => describe(code, rows[code - minimum]).label;
  const groups = Array.from(rows.keys())
    .filter((index) => rows[index].length)
    .map((index) => ({ code: index + minimum, peak: peak[index], all: all[index] }))
    .sort(byBytes);
  // One more than there are colors shows that some groups share a color
  const leaders = groups.slice(0, CLASSES + 1).map((group) => ({ ...group, label: label(group.code) }));
  return { codes, minimum, maximum, groups, label, leaders };
}

/** @param {{peak: number, all: number}} a @param {{peak: number, all: number}} b */
function byBytes(a, b) {
  return b.peak - a.peak || b.all - a.all;
}

/** The largest groups of several files: a label that is large in one of them has its color in all. @param {Leader[][]} leadersOfFiles @returns {Leader[]} */
function mergeLeaders(leadersOfFiles) {
  /** @type {Map<string, Leader>} */
  const leaders = new Map();
  for (const leader of leadersOfFiles.flat()) {
    const largest = leaders.get(leader.label);
    if (!largest || byBytes(leader, largest) < 0) leaders.set(leader.label, leader);
  }
  // Equal groups by name: the order of the files differs for each of them
  return [...leaders.values()].sort((a, b) => byBytes(a, b) || (a.label < b.label ? -1 : 1));
}

/**
 * The largest groups of a key, and all others as one class.
 * @param {Side} side @param {string} key @param {Uint8Array} of @param {Side[]} beside @returns {Classes}
 */
function byKey(side, key, of, beside) {
  const { codes, minimum, maximum, groups, label, leaders } = rankGroups(side, key);
  const alone = !beside.length;
  const first = alone ? leaders : mergeLeaders([leaders, ...beside.map((file) => rankGroups(file, key).leaders)]);
  const full = first.length > CLASSES;
  const shown = first.slice(0, full ? CLASSES - 1 : CLASSES);
  const classOf = new Uint8Array(maximum - minimum + 1).fill(shown.length);
  const numbers = new Map(shown.map((group, number) => [alone ? group.code : group.label, number]));
  let otherGroups = 0;
  for (const { code } of groups) {
    const number = numbers.get(alone ? code : label(code));
    if (number === undefined) otherGroups++;
    else classOf[code - minimum] = number;
  }
  for (let row = 0; row < codes.length; row++) of[row] = classOf[codes[row] - minimum];
  let named = 0;
  const empty = { bytes: 0, count: 0 };
  const classes = shown.map((group) => ({
    label: group.label,
    place: group.code < 0 ? group.code - 1 : named++, // groups without a name have muted colors
    ...empty,
  }));
  // Several files share one legend: if one has other groups, all have that entry
  if (full) classes.push({ label: plural(otherGroups, "other"), place: OTHERS, ...empty });
  return addSums(side.device, { mode: key, ordered: false, classes, of });
}

/** @param {import("../model/device.js").Device} device @param {Classes} result */
function addSums(device, result) {
  const { size, length } = device.allocations;
  for (let row = 0; row < length; row++) result.classes[result.of[row]].count++;
  for (const row of device.checkpoints.live(device.requested.peak() - 1))
    result.classes[result.of[row]].bytes += size[row];
  return result;
}
