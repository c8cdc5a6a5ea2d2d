/** The interface of a page for scripts and tests. Each call returns plain data, as soon as everything is drawn. */

/** @typedef {import("./viewer.js").Viewer} Viewer */

/** @param {() => Promise<Viewer>} ready */
export function api(ready) {
  return {
    /** Show a device, or only return the current one. @param {number} [number] */
    async device(number) {
      const viewer = await ready();
      const { context } = viewer;
      if (number !== undefined) {
        checkInteger("device", number);
        if (!context.files[0].devices[number]) throw new Error(`There is no device ${number} in this snapshot.`);
        context.store.set({ device: number, x: null, y: null, event: null, row: null, range: null });
      }
      await viewer.settled();
      const facts = context.facts(0);
      return { ...facts, cells: facts.cells.length, annotations: facts.annotations.length };
    },

    /**
     * Show the events from `first` to `last`, and the bytes from `low` to `high` if they are given.
     * @param {number} first @param {number} last @param {number} [low] @param {number} [high]
     */
    async zoom(first, last, low, high) {
      checkInteger("first", first);
      checkInteger("last", last);
      if (first > last) throw new Error(`zoom: first (${first}) must not be greater than last (${last}).`);
      if (low !== undefined || high !== undefined) {
        checkNumber("low", low);
        checkNumber("high", high);
        if (Number(low) >= Number(high)) throw new Error(`zoom: low (${low}) must be less than high (${high}).`);
      }
      const viewer = await ready();
      const { context } = viewer;
      const [[from], [, to]] = await context.request("places", { axis: context.axis(), events: [first, last] });
      const y = low === undefined || high === undefined ? context.now.y : viewer.actions.clampBytes([low, high]);
      context.store.set({ x: viewer.actions.clampView([from, to]), y });
      return visible(viewer);
    },

    /** The visible part of the axes. */
    async view() {
      return visible(await ready());
    },

    async fit() {
      const viewer = await ready();
      viewer.actions.fit();
      return visible(viewer);
    },

    /** Move the cursor to an event, and select its allocation. @param {number} event */
    async select(event) {
      const viewer = await ready();
      checkEvent(viewer, event);
      const { context } = viewer;
      const moment = await context.request("moment", { event });
      const row = moment.row >= 0 ? moment.row : null;
      await viewer.actions.goTo(moment.event, context.now.source, { row });
      await viewer.settled();
      return { ...moment, allocation: row === null ? null : await context.request("allocation", { row }) };
    },

    /** Show the state of the allocator after an event. @param {number} event */
    async state(event) {
      const viewer = await ready();
      checkEvent(viewer, event);
      const { context } = viewer;
      await viewer.actions.goTo(event, context.now.source, { tab: "state" });
      await viewer.settled();
      const { mode, replayed } = context.now;
      return context.request("state", { event: context.event(), mode, replayed });
    },

    /** Highlight the events and allocations that match a text. @param {string} text */
    async search(text) {
      if (typeof text !== "string" || !text.trim())
        throw new Error(`search: text must not be empty, but got ${show(text)}.`);
      const viewer = await ready();
      viewer.actions.search(text);
      await viewer.settled();
      return viewer.context.request("search", { text: text.trim() });
    },

    /** Move the cursor to the peak: its event, bytes and groups of live allocations. */
    async peak() {
      const viewer = await ready();
      const { context } = viewer;
      await viewer.actions.peak();
      await viewer.settled();
      const { peak } = context.facts();
      const request = { event: peak.event, range: null, key: context.now.key, limit: 200 };
      return { ...peak, ...(await context.request("live", request)) };
    },

    /** Return what is drawn at a point of the window, given in CSS pixels. @param {number} x @param {number} y */
    async pick(x, y) {
      checkNumber("x", x);
      checkNumber("y", y);
      const viewer = await ready();
      await viewer.settled();
      for (const timeline of viewer.timelines) {
        const box = timeline.plot.getBoundingClientRect();
        if (x < box.left || x >= box.right || y < box.top || y >= box.bottom) continue;
        const target = timeline.at(x - box.left, y - box.top);
        if (!target) return null;
        const { facts, thin } = await viewer.actions.describe(timeline, target);
        const kind = target.id >= 0 ? "allocation" : target.id === -2 ? "thin" : "nothing";
        return {
          source: timeline.source,
          ...target,
          kind: target.strip ? "brief" : kind,
          allocation: facts,
          thinHere: thin,
        };
      }
      return null;
    },
  };
}

/** @param {unknown} value */
function show(value) {
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}

/** @param {string} name @param {unknown} value */
function checkNumber(name, value) {
  if (!Number.isFinite(value)) throw new Error(`${name} must be a number, but got ${show(value)}.`);
}

/** @param {string} name @param {unknown} value */
function checkInteger(name, value) {
  if (!Number.isSafeInteger(value)) throw new Error(`${name} must be an integer, but got ${show(value)}.`);
}

/** @param {Viewer} viewer @param {number} event -1: before the first event */
function checkEvent(viewer, event) {
  checkInteger("event", event);
  const { events } = viewer.context.facts();
  if (event < -1 || event >= Math.max(events, 1))
    throw new Error(`There is no event ${event}: events range from -1 (before the first event) to ${events - 1}.`);
}

/** @param {Viewer} viewer */
async function visible(viewer) {
  await viewer.settled();
  const { context, timelines } = viewer;
  const timeline = timelines[context.now.source];
  const totals = timeline.drawn?.picture.total ?? [];
  let maximum = 0;
  for (const bytes of totals) if (bytes > maximum) maximum = bytes;
  return { ...timeline.window(), axis: context.axis(), maximum };
}
