/** Searches all events by text of frames, address, block name, size and action. */

import { getOrCreate } from "../../data/collections.js";
import { parseSearch } from "./search-terms.js";

/**
 * Find the events and allocations that match a text: 1 for each match.
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device @param {string} text
 * @returns {{events: Uint8Array, rows: Uint8Array, count: number, allocations: number, bytes: number, how: string}}
 */
export function search(snapshot, device, text) {
  const { trace, allocations } = device;
  const events = new Uint8Array(trace.length).fill(1);
  const rows = new Uint8Array(allocations.length).fill(1);
  const how = [];
  for (const term of parseSearch(text, snapshot.header.actions ?? [])) {
    how.push(term.how);
    if (term.kind === "size") {
      const { minimum, maximum } = term;
      for (let i = 0; i < events.length; i++)
        if (!(trace.size[i] >= minimum && trace.size[i] <= maximum)) events[i] = 0;
      for (let i = 0; i < rows.length; i++)
        if (!(allocations.size[i] >= minimum && allocations.size[i] <= maximum)) rows[i] = 0;
    } else if (term.kind === "action") {
      for (let i = 0; i < events.length; i++) if (!term.actions.includes(trace.action[i])) events[i] = 0;
      const alloc = term.actions.includes(0);
      if (!alloc) rows.fill(0);
    } else if (term.kind === "block") {
      byAddress(device, term, events, rows);
    } else {
      byText(snapshot, device, term.text, events, rows);
    }
  }
  let count = 0;
  for (const match of events) count += match;
  let allocationCount = 0;
  let bytes = 0;
  for (let i = 0; i < rows.length; i++) {
    if (rows[i]) {
      allocationCount++;
      bytes += allocations.size[i];
    }
  }
  return { events, rows, count, allocations: allocationCount, bytes, how: how.join(" and ") };
}

/**
 * @param {import("../model/device.js").Device} device @param {{address: bigint, nth: number|null}} term
 * @param {Uint8Array} events @param {Uint8Array} rows
 */
function byAddress({ trace, allocations }, { address, nth }, events, rows) {
  const target = Number(address - trace.base);
  const within = new Uint8Array(events.length);
  for (let i = 0; i < rows.length; i++) {
    const inside =
      nth === null && allocations.address[i] < target && target < allocations.address[i] + allocations.size[i];
    const same = allocations.address[i] === target && (nth === null || allocations.countAddresses()[i] === nth);
    if (!same && !inside) rows[i] = 0;
    else
      for (const event of [allocations.start[i], allocations.freeRequested[i], allocations.end[i]])
        if (event >= 0 && event < within.length) within[event] = 1;
  }
  for (let i = 0; i < events.length; i++) {
    if (!within[i] && (nth !== null || trace.address[i] !== target)) events[i] = 0;
  }
}

/**
 * @param {import("../model/snapshot.js").Snapshot} snapshot @param {import("../model/device.js").Device} device @param {string} text lower case
 * @param {Uint8Array} events @param {Uint8Array} rows
 */
function byText(snapshot, device, text, events, rows) {
  const { trace, allocations } = device;
  const stacks = snapshot.stacks.matching((frame) => {
    const whole = `${frame.file}:${frame.line} ${frame.name}`.toLowerCase();
    if (whole.includes(text)) return true;
    return `${snapshot.shortFile(frame.file)}:${frame.line} ${frame.name}`.toLowerCase().includes(text);
  });
  const texts = Uint8Array.from(snapshot.texts, (value) => (value.toLowerCase().includes(text) ? 1 : 0));
  const regions = snapshot.annotations(device.index);
  const named = regions.all.some((region) => region.name.toLowerCase().includes(text));
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
    if (!hit && device.annotateEvents.get(row)?.some((event) => texts[trace.metadata[event]])) hit = 1;
    if (!hit && key) {
      const code = key.codes[row];
      hit = getOrCreate(within, code, () => (key.describe(code).label.toLowerCase().includes(text) ? 1 : 0));
      if (hit && start >= 0 && before[start]) events[start] = 1;
    }
    if (!hit) rows[row] = 0;
  }
}
