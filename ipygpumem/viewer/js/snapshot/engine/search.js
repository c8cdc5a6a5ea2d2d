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
      const matches = (/** @type {number} */ size) => size >= term.minimum && size <= term.maximum;
      keep(events, (event) => matches(trace.size[event]));
      keep(rows, (row) => matches(allocations.size[row]));
    } else if (term.kind === "action") {
      keep(events, (event) => term.actions.includes(trace.action[event]));
      if (!term.actions.includes(0)) rows.fill(0);
    } else if (term.kind === "block") {
      byAddress(device, term, events, rows);
    } else {
      byText(snapshot, device, term.text, events, rows);
    }
  }
  const sum = (/** @type {Uint8Array} */ matches) => matches.reduce((total, match) => total + match, 0);
  const bytes = rows.reduce((total, match, row) => total + match * allocations.size[row], 0);
  return { events, rows, count: sum(events), allocations: sum(rows), bytes, how: how.join(" and ") };
}

/** Keep only the matches that satisfy a condition. @param {Uint8Array} matches @param {(index: number) => unknown} condition */
function keep(matches, condition) {
  for (let i = 0; i < matches.length; i++) if (matches[i] && !condition(i)) matches[i] = 0;
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
  keep(events, (event) => within[event] || (nth === null && trace.address[event] === target));
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
  /** @type {Map<number, boolean>} */
  const hits = new Map();
  const before = key ? events.slice() : events;
  const { stack, context, metadata } = trace;
  const within = (/** @type {Uint8Array} */ matches, /** @type {number} */ index) => index >= 0 && matches[index];
  const attached = (/** @type {number} */ event) => within(texts, context[event]) || within(texts, metadata[event]);
  keep(events, (event) => within(stacks, stack[event]) || attached(event));
  keep(rows, (row) => {
    const start = allocations.start[row];
    if (within(stacks, allocations.stack[row]) || (start >= 0 && attached(start))) return true;
    if (device.annotateEvents.get(row)?.some((event) => texts[metadata[event]])) return true;
    if (!key) return false;
    const code = key.codes[row];
    const hit = getOrCreate(hits, code, () => key.describe(code).label.toLowerCase().includes(text));
    if (hit && start >= 0 && before[start]) events[start] = 1;
    return hit;
  });
}
