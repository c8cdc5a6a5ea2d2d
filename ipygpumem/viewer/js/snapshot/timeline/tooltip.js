/** The lines of the tooltip of a timeline. */

import { count, duration, fine, plural, size } from "../../data/units.js";
import { h } from "../../ui/dom.js";

/** @typedef {import("./timeline.js").Target} Target */

/**
 * Describe what is below the pointer.
 * @param {import("./timeline.js").Timeline} timeline @param {Target} target
 * @param {{facts: any, thin: {count: number, bytes: number}|null}} description
 */
export function tooltipLines(timeline, target, { facts, thin }) {
  const soft = (/** @type {string} */ text) => h("span", { class: "soft" }, text);
  const { event, first, last, total, reserved, replayed, hidden } = target;
  const lines = [];
  if (facts) {
    lines.push(h("b", {}, fine(facts.size)), h("span", { class: "where" }, facts.line));
    if (facts.source) lines.push(h("code", { class: "where" }, facts.source));
    lines.push(soft(facts.end === null ? `alive at the end, for ${lifetime(facts)}` : `lifetime ${lifetime(facts)}`));
  } else if (thin) {
    lines.push(
      h("b", {}, `${plural(thin.count, "allocation")}, ${fine(thin.bytes)}`),
      soft("each less than one pixel high: zoom in to see them"),
    );
  } else if (target.strip) {
    const allocations = `${plural(hidden.count, "brief allocation")}, ${fine(hidden.bytes)}`;
    lines.push(
      h("b", {}, hidden.count ? allocations : "No brief allocations"),
      soft("allocated and freed within this pixel: zoom in to see them"),
    );
  }
  const levels = timeline.levels(event);
  const split = Number.isNaN(reserved) || levels.some(([name]) => name.startsWith("outside"));
  for (const [name, bytes] of levels) {
    const remainder = split ? "" : ` · ${size(Math.max(bytes - reserved, 0))} outside PyTorch + other processes`;
    lines.push(h("span", {}, `${size(bytes)} ${name}${remainder}`));
  }
  const reservedText = Number.isNaN(reserved) ? "" : ` · ${size(reserved)} reserved`;
  lines.push(
    h("span", { class: "foot" }, `${size(total)} allocated${reservedText}`),
    ...(Number.isNaN(replayed) ? [] : [h("span", {}, `${size(replayed)} ${replayedLabel(timeline)}`)]),
    soft(last > first ? `events ${count(first)} – ${count(last)}` : `event ${count(event)}`),
  );
  if (target.thin.count && facts)
    lines.push(soft(`${plural(target.thin.count, "allocation")} less than one pixel high: ${fine(target.thin.bytes)}`));
  return lines;
}

/** @param {import("./timeline.js").Timeline} timeline */
export function replayedLabel({ context, source }) {
  return `reserved with ${context.facts(source).replay?.settings}`;
}

/** @param {import("../engine/overview.js").Band} band */
export function bandLines({ label, start, end }) {
  const time = start !== null && end !== null ? duration(end - start) : "begins or ends outside the recording";
  return [h("b", { class: "where" }, label), h("span", { class: "soft" }, time)];
}

/** How long an allocation was alive; a lower bound if it is older than the recording. @param {any} facts */
export function lifetime({ start, lifetime, lifetimeEvents }) {
  const text = lifetime === null ? plural(lifetimeEvents, "event") : duration(lifetime);
  return start === null ? `≥ ${text}` : text;
}
