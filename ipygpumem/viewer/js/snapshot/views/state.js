/** The panel with the state of the allocator at the cursor: segments, blocks and fragmentation. */

import { count, fine, plural } from "../../data/units.js";
import { fitCanvas } from "../../ui/canvas.js";
import { button, headRow } from "../../ui/controls.js";
import { h, handleKey, listen } from "../../ui/dom.js";
import { chartColors } from "../../ui/theme.js";
import { radioGroup } from "./radio-group.js";
import { drawSegments, layoutSegments, segmentAt } from "./segments.js";
import { stackList } from "./stack-list.js";

const MAX_HEIGHT = 12000; // pixels of the canvas
const HINT =
  "Point at a segment or block. Blocks have the colors of the timeline; a paler end is rounding, an empty area is free, and a red lower edge means that the block waits for a stream.";

/** @typedef {import("./segments.js").Selection} Selection */

export class StateView {
  /** @param {import("../context.js").Context} context @param {import("./actions.js").Actions} actions */
  constructor(context, actions) {
    this.context = context;
    this.actions = actions;
    this.sentences = h("ul", { class: "sentences" });
    this.choice = radioGroup(
      "Settings",
      [
        ["recorded", "As recorded", "Segments and blocks as in the recording"],
        ["replayed", "Other settings", "Segments and blocks as they would have been with other allocator settings"],
      ],
      (value) => context.store.set({ replayed: value === "replayed" }),
    );
    this.title = h("h2", { class: "title" });
    this.canvas = h("canvas", { aria: { hidden: "true" } });
    const label =
      "Segments and blocks. Left and Right: previous and next event. Up and Down: previous and next block. Escape: no block.";
    this.field = h("div", { class: "segments", tabindex: 0, role: "application", aria: { label } }, this.canvas);
    listen(this.field, {
      pointermove: (event) => this.describe(this.at(event)),
      click: (event) => this.select(this.at(event)),
      pointerleave: () => this.describe(this.selection),
      keydown: (event) => this.keys(event),
    });
    const about = { label: "Segment or block", live: "polite" };
    this.side = h("div", { class: "about", role: "region", tabindex: 0, aria: about });
    const previous = button("← Previous event", () => this.step(-1));
    const next = button("Next event →", () => this.step(1));
    const head = headRow([this.title], [this.choice.element, previous, next]);
    const halves = h("div", { class: "halves wide" }, h("div", { class: "scroll" }, this.field), this.side);
    this.element = h("div", { class: "state" }, head, this.sentences, halves);
    /** @type {any} */
    this.state = { segments: [] };
    /** @type {string[]} */
    this.swatches = [];
    /** @type {import("./segments.js").Layout} */
    this.layout = { places: [], titles: [], height: 0 };
    /** @type {Selection|null} */
    this.selection = null;
    this.turn = 0;
  }

  async refresh() {
    const turn = ++this.turn;
    const { context } = this;
    const start = performance.now();
    const event = context.event();
    const [state, legend, { about }] = await Promise.all([
      context.request("state", { event, mode: context.now.mode, replayed: context.now.replayed }),
      context.legend(),
      context.request("moment", { event }),
    ]);
    if (turn !== this.turn) return;
    this.state = state;
    this.choice.element.hidden = !context.facts().replay;
    this.choice.value(context.now.replayed ? "replayed" : "recorded");
    this.swatches = context.swatches(legend);
    const bytes = about?.size ? ` of ${fine(about.size)}` : "";
    const action = about ? `${about.action.replaceAll("_", " ")}${bytes}${about.line ? `, ${about.line}` : ""}` : "";
    const moment = state.event < 0 ? "before the first event" : `after event ${count(state.event)}`;
    const segments = plural(state.segments.length, "segment");
    this.title.title = action;
    this.title.textContent = `${segments} ${moment}${action && ": "}${action}`;
    const sentences = [...state.sentences];
    const { length } = state.outside;
    if (length)
      sentences.push(`${plural(length, "block is", "blocks are")} in segments that the file does not contain.`);
    this.sentences.replaceChildren(...sentences.map((text) => h("li", {}, text)));
    this.selection = this.find(context.now.row);
    this.draw();
    this.describe(this.selection);
    performance.measure("ipygpumem:state", { start, end: performance.now() });
  }

  /** The block of an allocation. @param {number|null} row @returns {Selection|null} */
  find(row) {
    if (row === null) return null;
    for (const [segment, { blocks }] of this.state.segments.entries()) {
      const block = blocks.findIndex((/** @type {any} */ candidate) => candidate.row === row);
      if (block >= 0) return { segment, block };
    }
    return null;
  }

  draw() {
    const { segments } = this.state;
    const width = Math.max(this.field.clientWidth, 120);
    this.layout = layoutSegments(segments, width);
    const context = fitCanvas(this.canvas, width, Math.min(this.layout.height, MAX_HEIGHT));
    drawSegments(context, segments, this.layout, this.selection, this.swatches, chartColors(this.context.theme));
  }

  /** @param {PointerEvent} event */
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const { segments } = this.state;
    return segmentAt(segments, this.layout.places, event.clientX - box.left, event.clientY - box.top);
  }

  /** @param {Selection|null} selection */
  select(selection) {
    this.selection = selection;
    const block = selection && this.state.segments[selection.segment].blocks[selection.block];
    this.context.store.set({ row: block?.row ?? null });
    this.draw();
    this.describe(selection);
  }

  /** Show the facts about a segment or block. @param {Selection|null} selection */
  async describe(selection) {
    if (!selection) {
      this.side.replaceChildren(h("p", { class: "empty" }, HINT));
      return;
    }
    const { segment, blocks, free, largest } = this.state.segments[selection.segment];
    const block = blocks[selection.block];
    const { turn } = this;
    const [facts, stack] = await Promise.all([
      block ? this.context.request("allocation", { row: block.row }) : null,
      segment.stack >= 0 ? this.context.request("stack", { stack: segment.stack }) : [],
    ]);
    if (turn !== this.turn) return;
    const origin = segment.event >= 0 ? `allocated at event ${count(segment.event)}` : "older than the recording";
    const soft = (/** @type {string} */ text) => h("p", { class: "soft" }, text);
    const head = [h("h3", {}, block ? `Block of ${fine(block.requested)}` : "Free")];
    if (block) {
      const rounding = `${block.exact ? "" : "at least "}${fine(block.rounded)} rounded`;
      const pending = block.pending ? " · freed, waits for a stream" : "";
      const line = facts?.line ?? "";
      head.push(h("p", { class: "where", title: line }, line), soft(`${rounding}${pending} · ${facts?.name ?? ""}`));
    }
    this.side.replaceChildren(
      ...head,
      h("h3", {}, `Segment of ${fine(segment.size)}`),
      soft(
        `${segment.text} · ${plural(blocks.length, "block")} · ${fine(free)} free, the largest free block ${fine(largest)} · ${origin}`,
      ),
      h("h3", {}, "Stack of the segment"),
      stackList(stack),
    );
  }

  /** @param {1|-1} by */
  step(by) {
    return this.actions.step(by, this.context.now.source);
  }

  /** @param {KeyboardEvent} event */
  keys(event) {
    handleKey(event, {
      ArrowLeft: () => this.step(-1),
      ArrowRight: () => this.step(1),
      ArrowUp: () => this.selectAdjacent(-1),
      ArrowDown: () => this.selectAdjacent(1),
      Escape: () => this.select(null),
    });
  }

  /** Select the next or previous block. @param {1|-1} by */
  selectAdjacent(by) {
    const { segment, block } = this.selection ?? {};
    const all = this.layout.places.flatMap((place) =>
      [...this.state.segments[place.segment].blocks.keys()].map((number) => ({
        segment: place.segment,
        block: number,
      })),
    );
    const index = all.findIndex((candidate) => candidate.segment === segment && candidate.block === block);
    const next = all[Math.min(Math.max(index + by, 0), all.length - 1)];
    if (next) this.select(next);
  }
}
