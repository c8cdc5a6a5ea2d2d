/** The allocator at the cursor: every segment, its blocks and its free gaps. */

import { remember } from "../../data/collections.js";
import { count, fine, plural, size } from "../../data/units.js";
import { stackList } from "./details.js";
import { fit, h } from "../../ui/dom.js";
import { ink } from "../../ui/theme.js";

const TALL = 15;
const GAP = 4;
const TITLE = 24;
const LEFT = 4;
const LINES = 14;

/**
 * @typedef {{x: number, y: number, width: number, segment: number}} Place of a segment, or of a part of one
 */

export class StateView {
  /** @param {import("../context.js").Context} context @param {import("./actions.js").Actions} actions */
  constructor(context, actions) {
    this.context = context;
    this.actions = actions;
    this.words = h("ul", { class: "words" });
    this.title = h("h2", { class: "title" });
    this.canvas = h("canvas", { aria: { hidden: "true" } });
    this.field = h(
      "div",
      {
        class: "segments",
        tabindex: 0,
        role: "application",
        aria: {
          label:
            "Segments and blocks. Left and right: event before and after. Up and down: block before and after. Enter: take it.",
        },
        on: {
          pointermove: (/** @type {PointerEvent} */ event) => this.point(event, false),
          click: (/** @type {PointerEvent} */ event) => this.point(event, true),
          pointerleave: () => this.about(this.chosen),
          keydown: (/** @type {KeyboardEvent} */ event) => this.keys(event),
        },
      },
      this.canvas,
    );
    this.side = h("div", {
      class: "about",
      role: "region",
      tabindex: 0,
      aria: { label: "Segment or block", live: "polite" },
    });
    this.element = h(
      "div",
      { class: "state" },
      h(
        "div",
        { class: "row head" },
        this.title,
        h("span", { class: "space" }),
        h("button", { type: "button", on: { click: () => actions.step(-1, context.now.source) } }, "← Event before"),
        h("button", { type: "button", on: { click: () => actions.step(1, context.now.source) } }, "Event after →"),
      ),
      this.words,
      h("div", { class: "halves wide" }, h("div", { class: "scroll" }, this.field), this.side),
    );
    /** @type {any} */
    this.state = undefined;
    /** @type {Place[]} */
    this.places = [];
    /** @type {{segment: number, block: number}|null} block -1: the segment itself or a gap */
    this.chosen = null;
    this.turn = 0;
  }

  async refresh() {
    const turn = ++this.turn;
    const { context } = this;
    const begun = performance.now();
    const [state, legend, moment] = await Promise.all([
      context.ask("state", { event: context.event(), mode: context.now.mode }),
      context.legend(),
      context.ask("moment", { event: context.event() }),
    ]);
    if (turn !== this.turn) return;
    this.state = state;
    this.swatches = context.swatches(legend);
    const { about } = moment;
    const what = about
      ? `: ${about.action.replaceAll("_", " ")}${about.size ? ` of ${fine(about.size)}` : ""}${about.line ? `, ${about.line}` : ""}`
      : "";
    this.title.title = what.slice(2);
    this.title.textContent = `${plural(state.segments.length, "segment")} ${state.event < 0 ? "before the first event" : `after event ${count(state.event)}`}${what}`;
    this.words.replaceChildren(...state.words.map((/** @type {string} */ text) => h("li", {}, text)));
    if (state.outside.length)
      this.words.append(
        h("li", {}, `${plural(state.outside.length, "block")} lie in segments that the file does not show.`),
      );
    this.chosen = this.find(context.now.row);
    this.draw();
    this.about(this.chosen);
    performance.measure("ipygpumem:state", { start: begun, end: performance.now() });
  }

  /** Where an allocation lies. @param {number|null} row */
  find(row) {
    if (row === null) return null;
    for (const [segment, { blocks }] of this.state.segments.entries()) {
      const block = blocks.findIndex((/** @type {any} */ one) => one.row === row);
      if (block >= 0) return { segment, block };
    }
    return null;
  }

  /** Segments in groups, side by side at one scale, as many in a line as fit. @param {number} width */
  layout(width) {
    const { segments } = this.state;
    /** @type {Map<string, number[]>} */
    const groups = new Map();
    for (const [i, { segment }] of segments.entries()) {
      const kind = segment.expandable
        ? "expandable segments"
        : segment.small === 1
          ? "small segments"
          : "large segments";
      const pool = segment.pool >= 0 ? segment.poolLabel : "unknown pool";
      const stream = segment.stream === 0 ? "default stream" : `stream 0x${segment.stream.toString(16)}`;
      const name = `${kind} · ${pool} · ${stream}`;
      remember(groups, name, () => []).push(i);
    }
    this.places = [];
    /** @type {{y: number, text: string}[]} */
    this.titles = [];
    let y = 0;
    const room = width - LEFT;
    for (const [name, members] of groups) {
      members.sort(
        (a, b) =>
          segments[b].segment.size - segments[a].segment.size ||
          segments[a].segment.address - segments[b].segment.address,
      );
      const bytes = members.reduce((sum, i) => sum + segments[i].segment.size, 0);
      this.titles.push({ y: y + TITLE / 2, text: `${name}: ${count(members.length)}, ${size(bytes)}` });
      y += TITLE;
      const largest = segments[members[0]].segment.size;
      // all together about fourteen lines, if the largest then fits into one
      const scale = Math.min(room / largest, (room * LINES) / bytes);
      let x = 0;
      for (const i of members) {
        const wide = Math.max(Math.min(segments[i].segment.size * scale, room), 5);
        if (x && x + wide > room) {
          x = 0;
          y += TALL + GAP;
        }
        this.places.push({ x: x + LEFT, y, width: wide, segment: i });
        x += wide + GAP;
      }
      y += TALL + GAP + 4;
    }
    return Math.max(y, 30);
  }

  draw() {
    if (!this.state) return;
    const width = Math.max(this.field.clientWidth, 120);
    const height = this.layout(width);
    const context = fit(this.canvas, width, Math.min(height, 12000));
    const colors = ink(this.context.theme);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = colors.soft;
    for (const { y, text } of this.titles ?? []) context.fillText(text, LEFT, y + 2);
    for (const place of this.places) this.segment(context, place, colors);
    if (!this.places.length) context.fillText("No segments here.", LEFT, 14);
  }

  /** @param {CanvasRenderingContext2D} context @param {Place} place @param {ReturnType<typeof ink>} colors */
  segment(context, place, colors) {
    const { segment, blocks } = this.state.segments[place.segment];
    const scale = place.width / segment.size;
    context.fillStyle = colors.free;
    context.fillRect(place.x, place.y, place.width, TALL);
    for (const [i, block] of blocks.entries()) {
      const x = place.x + (block.address - segment.address) * scale;
      const wide = Math.max(block.rounded * scale, 0.6);
      context.fillStyle = this.swatches?.[block.class] ?? colors.soft;
      context.fillRect(x, place.y, Math.max(block.requested * scale, 0.6), TALL);
      if (block.rounded > block.requested && (block.rounded - block.requested) * scale > 0.5) {
        context.globalAlpha = 0.45;
        context.fillRect(x + block.requested * scale, place.y, (block.rounded - block.requested) * scale, TALL);
        context.globalAlpha = 1;
      }
      if (wide > 3) {
        context.fillStyle = colors.ground;
        context.fillRect(x + wide - 1, place.y, 1, TALL);
      }
      if (block.pending) {
        context.fillStyle = colors.oom;
        context.fillRect(x, place.y + TALL - 3, wide, 3);
      }
      if (this.chosen?.segment === place.segment && this.chosen.block === i) {
        context.strokeStyle = colors.peak;
        context.lineWidth = 2;
        context.strokeRect(x, place.y, Math.max(wide, 2), TALL);
      }
    }
    context.strokeStyle = this.chosen?.segment === place.segment && this.chosen.block < 0 ? colors.peak : colors.border;
    context.lineWidth = 1;
    context.strokeRect(place.x - 0.5, place.y - 0.5, place.width + 1, TALL + 1);
  }

  /** @param {PointerEvent} event @param {boolean} take */
  point(event, take) {
    if (!this.state) return;
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const place = this.places.find(
      (one) => x >= one.x - 2 && x <= one.x + one.width + 2 && y >= one.y - 2 && y <= one.y + TALL + 2,
    );
    if (!place) {
      if (take) this.take(null);
      return;
    }
    const { segment, blocks } = this.state.segments[place.segment];
    const address = segment.address + ((x - place.x) / place.width) * segment.size;
    const block = blocks.findIndex(
      (/** @type {any} */ one) =>
        address >= one.address && address < one.address + Math.max(one.rounded, segment.size / place.width),
    );
    const found = { segment: place.segment, block, address };
    if (take) this.take(found);
    else this.about(found);
  }

  /** @param {{segment: number, block: number}|null} found */
  take(found) {
    this.chosen = found;
    const row = found && found.block >= 0 ? this.state.segments[found.segment].blocks[found.block].row : null;
    this.context.store.set({ row });
    this.draw();
    this.about(found);
  }

  /** @param {{segment: number, block: number, address?: number}|null} found */
  async about(found) {
    if (!found) {
      this.side.replaceChildren(
        h(
          "p",
          { class: "empty" },
          "Point at a segment or a block. Color: blocks, as in the timeline; paler end: rounding; empty: free; red foot: waits for a stream.",
        ),
      );
      return;
    }
    const { segment, blocks, free, largest } = this.state.segments[found.segment];
    const block = blocks[found.block];
    const turn = this.turn;
    const [facts, stack] = await Promise.all([
      block ? this.context.ask("allocation", { row: block.row }) : null,
      segment.stack >= 0 ? this.context.ask("stack", { stack: segment.stack }) : [],
    ]);
    if (turn !== this.turn) return;
    const rounding = block ? `${fine(block.rounded)} ${block.told ? "rounded" : "rounded, at least"}` : "";
    this.side.replaceChildren(
      ...(block
        ? [
            h("h3", {}, `Block of ${fine(block.requested)}`),
            h("p", { class: "where", title: facts?.line }, facts?.line ?? ""),
            h(
              "p",
              { class: "soft" },
              `${rounding}${block.pending ? " · freed, waits for a stream" : ""} · ${facts?.name ?? ""}`,
            ),
          ]
        : [h("h3", {}, "Free")]),
      h("h3", {}, `Segment of ${fine(segment.size)}`),
      h(
        "p",
        { class: "soft" },
        `${segment.text} · ${plural(blocks.length, "block")} · ${fine(free)} free, the largest piece ${fine(largest)} · ${segment.event >= 0 ? `made at event ${count(segment.event)}` : "older than the recording"}`,
      ),
      h("h3", {}, "Stack of the segment"),
      stackList(stack),
    );
  }

  /** @param {KeyboardEvent} event */
  keys(event) {
    const { context, actions } = this;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      event.preventDefault();
      actions.step(event.key === "ArrowLeft" ? -1 : 1, context.now.source);
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && this.places.length) {
      event.preventDefault();
      const all = this.places.flatMap(({ segment }) =>
        this.state.segments[segment].blocks.map((/** @type {any} */ _, /** @type {number} */ block) => ({
          segment,
          block,
        })),
      );
      const at = all.findIndex((one) => one.segment === this.chosen?.segment && one.block === this.chosen?.block);
      const next = all[Math.min(Math.max(at + (event.key === "ArrowDown" ? 1 : -1), 0), all.length - 1)];
      if (next) this.take(next);
    } else if (event.key === "Escape") {
      this.take(null);
    }
  }
}
