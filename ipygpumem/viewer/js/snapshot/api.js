/** What a page offers to scripts and tests: each call gives plain data, once it is drawn. */

/** @param {() => Promise<import("./viewer.js").Viewer>} ready */
export function api(ready) {
  return {
    /** Show a device; without a number only say which. @param {number} [number] */
    async device(number) {
      const viewer = await ready();
      const { context } = viewer;
      if (number !== undefined) {
        whole("device", number);
        if (!context.files[0].devices[number]) throw new Error(`There is no device ${number}.`);
        context.store.set({ device: number, x: null, y: null, event: null, row: null, range: null });
      }
      await viewer.settled();
      return {
        ...context.facts(0),
        cells: context.facts(0).cells.length,
        annotations: context.facts(0).annotations.length,
      };
    },

    /**
     * Show the events from `first` to `last`, and of the bytes those from `low` to `high`, if they are given.
     * @param {number} first @param {number} last @param {number} [low] @param {number} [high]
     */
    async zoom(first, last, low, high) {
      whole("first", first);
      whole("last", last);
      if (first > last) throw new Error(`zoom: first (${first}) lies behind last (${last}).`);
      if (low !== undefined || high !== undefined) {
        finite("low", low);
        finite("high", high);
        if (Number(low) >= Number(high)) throw new Error(`zoom: low (${low}) is not below high (${high}).`);
      }
      const viewer = await ready();
      const { context } = viewer;
      const [[from], [, to]] = await context.ask("places", { axis: context.axis(), events: [first, last] });
      const y = low === undefined || high === undefined ? context.now.y : viewer.actions.heights([low, high]);
      context.store.set({ x: viewer.actions.widths([from, to]), y });
      return shown(viewer);
    },

    /** The part of the axes in view. */
    async view() {
      return shown(await ready());
    },

    async fit() {
      const viewer = await ready();
      viewer.actions.fit();
      return shown(viewer);
    },

    /** Put the cursor on an event, and select the allocation that it is about. @param {number} event */
    async select(event) {
      const viewer = await ready();
      known(viewer, event);
      const { context } = viewer;
      const moment = await context.ask("moment", { event });
      await viewer.actions.goTo(moment.event, context.now.source, { row: moment.row >= 0 ? moment.row : null });
      await viewer.settled();
      const allocation = moment.row >= 0 ? await context.ask("allocation", { row: moment.row }) : null;
      return { ...moment, allocation };
    },

    /** The allocator after an event, shown in its panel. @param {number} event */
    async state(event) {
      const viewer = await ready();
      known(viewer, event);
      const { context } = viewer;
      await viewer.actions.goTo(event, context.now.source, { tab: "state" });
      await viewer.settled();
      return context.ask("state", { event: context.event(), mode: context.now.mode });
    },

    /** Mark what a text finds. @param {string} text */
    async search(text) {
      if (typeof text !== "string" || !text.trim()) throw new Error(`search: a text is needed, not ${said(text)}.`);
      const viewer = await ready();
      viewer.toolbar.find(text);
      await viewer.settled();
      return viewer.context.ask("search", { text: text.trim() });
    },

    /** The peak: event, bytes and the groups of what lived then. */
    async peak() {
      const viewer = await ready();
      const { context } = viewer;
      await viewer.actions.peak();
      await viewer.settled();
      const { peak } = context.facts();
      return {
        ...peak,
        ...(await context.ask("live", { event: peak.event, range: null, key: context.now.key, most: 200 })),
      };
    },

    /** What is drawn at a point of the window, in CSS pixels. @param {number} x @param {number} y */
    async pick(x, y) {
      finite("x", x);
      finite("y", y);
      const viewer = await ready();
      await viewer.settled();
      for (const timeline of viewer.timelines) {
        const box = timeline.plot.getBoundingClientRect();
        if (x < box.left || x >= box.right || y < box.top || y >= box.bottom) continue;
        const at = timeline.at(x - box.left, y - box.top);
        if (!at) return null;
        const told = await viewer.actions.told(timeline, at);
        return {
          source: timeline.source,
          ...at,
          kind: at.strip ? "brief" : at.id >= 0 ? "allocation" : at.id === -2 ? "thin" : "nothing",
          allocation: told.facts,
          thinHere: told.thin,
        };
      }
      return null;
    },
  };
}

/** @param {unknown} value */
function said(value) {
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}

/** @param {string} name @param {unknown} value */
function finite(name, value) {
  if (!Number.isFinite(value)) throw new Error(`${name} must be a number, not ${said(value)}.`);
}

/** @param {string} name @param {unknown} value */
function whole(name, value) {
  if (!Number.isSafeInteger(value)) throw new Error(`${name} must be a whole number, not ${said(value)}.`);
}

/** An event of the recording; -1 is before the first. @param {import("./viewer.js").Viewer} viewer @param {number} event */
function known(viewer, event) {
  whole("event", event);
  const { events } = viewer.context.facts();
  if (event < -1 || event >= Math.max(events, 1))
    throw new Error(`There is no event ${event}: they go from -1, before the first, to ${events - 1}.`);
}

/** @param {import("./viewer.js").Viewer} viewer */
async function shown(viewer) {
  await viewer.settled();
  const { context, timelines } = viewer;
  const drawn = timelines[context.now.source].drawn;
  return {
    ...timelines[context.now.source].window(),
    axis: context.axis(),
    most: drawn ? drawn.picture.total.reduce((most, one) => Math.max(most, one || 0), 0) : 0,
  };
}
