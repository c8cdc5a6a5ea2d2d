/** Search over all events: text of frames, address, block name, size, action. */

import { remember } from "../../data/collections.js";
import { parts as words } from "./search-terms.js";

/**
 * Which events and allocations match a text.
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device @param {string} text
 * @returns {{events: Uint8Array, rows: Uint8Array, count: number, allocations: number, bytes: number, how: string}}
 */
export function search(snapshot, device, text) {
  const { trace, allocations } = device;
  const events = new Uint8Array(trace.length).fill(1);
  const rows = new Uint8Array(allocations.length).fill(1);
  const how = [];
  for (const word of words(text, snapshot.header.actions ?? [])) {
    how.push(word.how);
    if (word.kind === "size") {
      const { least, most } = word;
      for (let i = 0; i < events.length; i++) if (!(trace.size[i] >= least && trace.size[i] <= most)) events[i] = 0;
      for (let i = 0; i < rows.length; i++)
        if (!(allocations.size[i] >= least && allocations.size[i] <= most)) rows[i] = 0;
    } else if (word.kind === "action") {
      for (let i = 0; i < events.length; i++) if (!word.actions.includes(trace.action[i])) events[i] = 0;
      const alloc = word.actions.includes(0);
      if (!alloc) rows.fill(0);
    } else if (word.kind === "block") {
      byAddress(device, word, events, rows);
    } else {
      byText(snapshot, device, word.text, events, rows);
    }
  }
  let count = 0;
  for (const one of events) count += one;
  let found = 0;
  let bytes = 0;
  for (let i = 0; i < rows.length; i++) {
    if (rows[i]) {
      found++;
      bytes += allocations.size[i];
    }
  }
  return { events, rows, count, allocations: found, bytes, how: how.join(" and ") };
}

/**
 * @param {import("../model/device.js").Device} device @param {{address: bigint, nth: number|null}} word
 * @param {Uint8Array} events @param {Uint8Array} rows
 */
function byAddress({ trace, allocations }, { address, nth }, events, rows) {
  const wanted = Number(address - trace.base);
  const within = new Uint8Array(events.length);
  for (let i = 0; i < rows.length; i++) {
    const inside =
      nth === null && allocations.address[i] < wanted && wanted < allocations.address[i] + allocations.size[i];
    const same = allocations.address[i] === wanted && (nth === null || allocations.nth[i] === nth);
    if (!same && !inside) rows[i] = 0;
    else
      for (const event of [allocations.start[i], allocations.asked[i], allocations.end[i]])
        if (event >= 0 && event < within.length) within[event] = 1;
  }
  for (let i = 0; i < events.length; i++) {
    if (!within[i] && (nth !== null || trace.address[i] !== wanted)) events[i] = 0;
  }
}

/**
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device @param {string} text lower case
 * @param {Uint8Array} events @param {Uint8Array} rows
 */
function byText(snapshot, device, text, events, rows) {
  const { trace, allocations } = device;
  const stacks = snapshot.stacks.having((frame) => {
    const whole = `${frame.file}:${frame.line} ${frame.name}`.toLowerCase();
    if (whole.includes(text)) return true;
    return `${snapshot.shortFile(frame.file)}:${frame.line} ${frame.name}`.toLowerCase().includes(text);
  });
  const texts = Uint8Array.from(snapshot.texts, (one) => (one.toLowerCase().includes(text) ? 1 : 0));
  const regions = snapshot.annotations(device.index);
  const named = regions.all.some((one) => one.name.toLowerCase().includes(text));
  const key = named ? snapshot.key(device, "annotation") : undefined;
  /** @type {Map<number, number>} */
  const within = new Map();
  const before = key ? events.slice() : events;
  for (let i = 0; i < events.length; i++) {
    if (!events[i]) continue;
    const hit =
      (trace.stack[i] >= 0 && stacks[trace.stack[i]]) ||
      (trace.context[i] >= 0 && texts[trace.context[i]]) ||
      (trace.metadata[i] >= 0 && texts[trace.metadata[i]]);
    if (!hit) events[i] = 0;
  }
  for (let row = 0; row < rows.length; row++) {
    if (!rows[row]) continue;
    const start = allocations.start[row];
    let hit = allocations.stack[row] >= 0 && stacks[allocations.stack[row]];
    if (!hit && start >= 0) {
      hit =
        (trace.context[start] >= 0 && texts[trace.context[start]]) ||
        (trace.metadata[start] >= 0 && texts[trace.metadata[start]]);
    }
    if (!hit && key) {
      const code = key.codes[row];
      hit = remember(within, code, () => (key.describe(code).label.toLowerCase().includes(text) ? 1 : 0));
      if (hit && start >= 0 && before[start]) events[start] = 1;
    }
    if (!hit) rows[row] = 0;
  }
}
