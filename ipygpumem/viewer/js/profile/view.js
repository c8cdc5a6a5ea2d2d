/** The page of a profile's memory by category: its parts, and what they show. */

import { toCsv } from "../data/csv.js";
import { count, duration, fine, plural, size } from "../data/units.js";
import { download, eachFrame, h } from "../ui/dom.js";
import { ink, themeOf, watchTheme } from "../ui/theme.js";
import { gestures } from "./gestures.js";
import { Help } from "./help.js";
import { NAMES, ORDER } from "./model.js";
import { COLORS, categoryAt, draw, moment, paint, ROOM } from "./plot.js";
import { Table } from "./table.js";

const STRIP = 34;
const TITLE = 34;
const SCALE = 2;
const FONT = "system-ui, sans-serif";
/** @type {Record<"allocated"|"reserved", string>} */
const LINES = { allocated: "allocated (PyTorch's own count)", reserved: "reserved" };

/**
 * @typedef {{name: string, notes: string[], devices: import("./model.js").Device[], theme: "auto"|"light"|"dark"}} Given
 */

export class View {
  /** @param {HTMLElement} root @param {Given} given */
  constructor(root, given) {
    this.root = root;
    this.given = given;
    this.device = given.devices[0];
    /** @type {import("./model.js").AxisKind} */
    this.axis = "time";
    /** @type {[number, number]} */
    this.x = this.device.domain(this.axis);
    /** @type {number|null} */
    this.cursor = null;
    /** @type {number|null} */
    this.pointed = null;
    /** @type {{clientX: number, clientY: number}|null} */
    this.pointer = null;
    this.lines = { allocated: true, reserved: true };
    /** The states of the strip, which changes less often than the view. */
    this.whole = { key: "", rows: new Int32Array(0) };
    this.theme = themeOf(root, given.theme);
    /** @type {import("./plot.js").Drawn|null} */
    this.drawn = null;
    this.helpBox = new Help();
    this.table = new Table();
    this.picture = h("canvas", { aria: { hidden: true } });
    this.pad = h("div", {
      class: "pad",
      tabindex: 0,
      role: "application",
      aria: { label: "Memory by category over time", describedby: "caption" },
    });
    this.tip = h("div", { class: "tip", hidden: true });
    this.frame = h("div", { class: "frame" }, this.picture, this.pad, this.tip);
    this.strip = h("canvas", { class: "strip", title: "All of it; click to go there", aria: { hidden: true } });
    this.strip.addEventListener("pointerdown", (event) => this.drag(event));
    this.strip.addEventListener("pointermove", (event) => event.buttons && this.drag(event));
    this.chips = h("div", { class: "chips", role: "group", aria: { label: "Categories shown" } });
    this.facts = h("p", { class: "soft" });
    this.axisBox = this.choice("Axis", [
      ["time", "by time"],
      ["change", "by change"],
    ]);
    this.axisBox.select.addEventListener("change", () =>
      this.turn(/** @type {import("./model.js").AxisKind} */ (this.axisBox.select.value)),
    );
    const devices = this.choice(
      "Device",
      given.devices.map((device, place) => [String(place), device.name]),
    );
    devices.select.addEventListener("change", () => this.pick(Number(devices.select.value)));
    this.deviceBox = devices;
    const button = (/** @type {string} */ text, /** @type {() => void} */ act, /** @type {string} */ title) =>
      h("button", { type: "button", title, on: { click: act } }, text);
    this.status = h("div", { class: "off", role: "status", aria: { live: "polite" } });
    this.root.append(
      h(
        "div",
        { class: "head" },
        h("h1", {}, given.name),
        this.facts,
        h("span", { class: "space" }),
        given.devices.length > 1 ? devices.label : null,
        this.axisBox.label,
        button("Peak", () => this.goTo(this.device.peak.row), "Put the cursor at the peak (P)"),
        button("All", () => this.fit(), "See all of it (0)"),
        button("−", () => this.zoomBy(1.5), "Zoom out (−)"),
        button("+", () => this.zoomBy(1 / 1.5), "Zoom in (+)"),
        button("PNG", () => this.png(), "Save the picture"),
        button("CSV", () => this.csv(), "Save the bytes of each category after each change"),
        button("?", () => this.help(), "Keys and gestures"),
      ),
      ...given.notes.map((note) => h("p", { class: "note" }, note)),
      this.chips,
      this.frame,
      this.strip,
      h("div", { class: "scroll" }, this.table.element),
      this.status,
      this.helpBox.element,
    );
    this.table.caption.id = "caption";
    this.again = eachFrame(() => this.refresh());
    this.gestures = gestures(this);
    watchTheme(root, () => this.recolor(), new AbortController().signal);
    new ResizeObserver(() => this.again.ask()).observe(this.frame);
    this.recolor();
    this.legend();
    this.refresh();
  }

  /** @param {string} label @param {string[][]} entries */
  choice(label, entries) {
    const select = h("select", {}, ...entries.map(([value, text]) => h("option", { value }, text)));
    return { select, label: h("label", { class: "choice" }, label, select) };
  }

  // what is seen

  domain() {
    return this.device.domain(this.axis);
  }

  plotWidth() {
    return Math.max(this.frame.clientWidth - ROOM.left - ROOM.right, 10);
  }

  /** @param {[number, number]} x */
  look(x) {
    const [d0, d1] = this.domain();
    const wide = Math.min(Math.max(x[1] - x[0], 1e-6), d1 - d0);
    const left = Math.min(Math.max(x[0], d0), d1 - wide);
    this.x = [left, left + wide];
    this.again.ask();
  }

  fit() {
    this.look(this.domain());
  }

  /** Nanoseconds in view. */
  wide() {
    const { device, axis, x } = this;
    if (axis === "time") return Math.max(x[1] - x[0], 1);
    return Math.max(device.when(device.row(axis, x[1])) - device.when(device.row(axis, x[0])), 1);
  }

  /** @param {number} row */
  moment(row) {
    return moment(this.device.when(row), this.device.span, this.wide());
  }

  /** @param {number} share */
  pan(share) {
    const by = (this.x[1] - this.x[0]) * share;
    this.look([this.x[0] + by, this.x[1] + by]);
  }

  /** @param {number} factor */
  zoomBy(factor) {
    const [x0, x1] = this.x;
    const [d0, d1] = this.domain();
    const least = Math.min(this.axis === "time" ? 200 : 4, d1 - d0);
    const at = this.cursor === null ? (x0 + x1) / 2 : this.device.place(this.axis, this.cursor);
    const inside = at >= x0 && at <= x1 ? at : (x0 + x1) / 2;
    const wide = Math.max((x1 - x0) * factor, least);
    const left = inside - ((inside - x0) / (x1 - x0)) * wide;
    this.look([left, left + wide]);
  }

  /** @param {number} row */
  goTo(row) {
    this.cursor = row;
    this.pointed = null;
    this.hover(null);
    const at = this.device.place(this.axis, row);
    const [x0, x1] = this.x;
    if (at < x0 || at > x1) this.look([at - (x1 - x0) / 2, at + (x1 - x0) / 2]);
    this.again.ask();
    this.status.textContent = `${this.moment(row)}: ${size(this.device.total[row])}`;
  }

  /** @param {1|-1} by */
  step(by) {
    this.goTo(this.cursor === null ? this.device.peak.row : this.device.next(this.cursor, by));
  }

  clear() {
    this.cursor = null;
    this.hover(null);
    this.again.ask();
  }

  /** @param {import("./model.js").AxisKind} axis */
  turn(axis) {
    const seen = [this.device.row(this.axis, this.x[0]), this.device.row(this.axis, this.x[1])];
    const all = this.x[0] <= this.domain()[0] && this.x[1] >= this.domain()[1];
    this.axis = axis;
    this.axisBox.select.value = axis;
    if (all) this.look(this.domain());
    else
      this.look([
        this.device.place(axis, seen[0]),
        this.device.place(axis, seen[1] + 1 > this.device.count ? seen[1] : seen[1] + 1),
      ]);
  }

  /** @param {number} place */
  pick(place) {
    const { shown } = this.device;
    this.device = this.given.devices[place];
    this.device.show(shown);
    this.deviceBox.select.value = String(place);
    this.cursor = null;
    this.pointed = null;
    this.x = this.domain();
    this.legend();
    this.again.ask();
  }

  /** @param {number} place in the order of the legend @param {boolean} [only] */
  toggle(place, only) {
    const category = ORDER[place];
    const { shown } = this.device;
    const alone = only && shown.every((on, one) => on === (one === category));
    this.device.show(shown.map((on, one) => (only ? alone || one === category : one === category ? !on : on)));
    this.legend();
    this.again.ask();
  }

  help() {
    this.helpBox.show();
  }

  // pointing

  /** @param {{clientX: number, clientY: number}|null} event */
  hover(event) {
    this.pointer = event && { clientX: event.clientX, clientY: event.clientY };
    this.again.ask();
  }

  /** @param {MouseEvent} event */
  click(event) {
    const found = this.at(event);
    if (found) this.cursor = found.row === this.cursor ? null : found.row;
    this.again.ask();
  }

  /** @param {{clientX: number, clientY: number}} event */
  at(event) {
    if (!this.drawn) return null;
    const { rows, top, plotWidth, plotHeight } = this.drawn;
    const box = this.pad.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const column = Math.min(Math.max(Math.floor((x / plotWidth) * rows.length), 0), rows.length - 1);
    const bytes = top * (1 - y / plotHeight);
    return { row: rows[column], category: categoryAt(this.device, rows[column], bytes), x, y };
  }

  /** @param {PointerEvent} event */
  drag(event) {
    const [d0, d1] = this.domain();
    const box = this.strip.getBoundingClientRect();
    const at = d0 + ((d1 - d0) * (event.clientX - box.left - ROOM.left)) / this.plotWidth();
    const half = (this.x[1] - this.x[0]) / 2;
    this.look([at - half, at + half]);
  }

  // drawing

  recolor() {
    this.theme = themeOf(this.root, this.given.theme);
    this.root.dataset.theme = this.theme;
    this.legend();
    this.again.ask();
  }

  seen() {
    const { device, axis, x, lines } = this;
    const cursor = this.pointed ?? this.cursor;
    return { device, axis, x, lines, cursor, pinned: this.pointed === null };
  }

  refresh() {
    const { clientWidth, clientHeight } = this.frame;
    if (!clientWidth) return;
    const found = this.pointer && this.at(this.pointer);
    this.pointed = found ? found.row : null;
    this.drawn = draw(this.picture, clientWidth, clientHeight, this.seen(), this.theme);
    this.overview(clientWidth);
    this.gestures.follow();
    this.tell();
    const row = this.pointed ?? this.cursor ?? this.device.wholePeak.row;
    this.table.show(this.device, row, this.pointed === null, this.theme, this.wide(), (to) => this.goTo(to));
    const { device } = this;
    this.facts.textContent = `${this.given.devices.length > 1 ? "" : `${device.name} · `}${plural(device.count, "change")} in ${duration(device.span / 1000)}`;
  }

  tell() {
    const { tip } = this;
    const found = this.pointer && this.at(this.pointer);
    tip.hidden = !found;
    if (!found) return;
    const { device } = this;
    const { row, category } = found;
    const lines = [];
    if (category >= 0) {
      lines.push(
        h(
          "b",
          {},
          h("i", { class: "swatch", style: { background: COLORS[this.theme][category] } }),
          `${NAMES[category]} ${fine(device.levels[category][row])}`,
        ),
      );
    }
    lines.push(h("span", {}, `${size(device.total[row])} ${device.shown.every(Boolean) ? "in all" : "shown"}`));
    for (const name of /** @type {const} */ (["allocated", "reserved"])) {
      const bytes = device.counted(name, row);
      if (!Number.isNaN(bytes)) lines.push(h("span", { class: "soft" }, `${size(bytes)} ${LINES[name]}`));
    }
    lines.push(h("span", { class: "soft" }, `${this.moment(row)} · change ${count(row)}`));
    tip.replaceChildren(...lines);
    const left = ROOM.left + found.x;
    const room = this.frame.clientWidth - tip.offsetWidth - 4;
    const x = left + 16 > room ? left - tip.offsetWidth - 14 : left + 16;
    const y = Math.min(ROOM.top + found.y + 8, this.frame.clientHeight - tip.offsetHeight - 4);
    tip.style.transform = `translate(${Math.max(x, 2)}px, ${Math.max(y, 2)}px)`;
  }

  /** The whole of it, small, with the part in view. @param {number} width */
  overview(width) {
    const colors = ink(this.theme);
    const { device, axis, strip } = this;
    const [d0, d1] = this.domain();
    const plotWidth = this.plotWidth();
    const dense = Math.min(Math.max(globalThis.devicePixelRatio || 1, 1), 2);
    strip.width = Math.round(width * dense);
    strip.height = Math.round(STRIP * dense);
    strip.style.height = `${STRIP}px`;
    const context = /** @type {CanvasRenderingContext2D} */ (strip.getContext("2d"));
    context.scale(dense, dense);
    const pixels = Math.round(plotWidth);
    const key = `${this.given.devices.indexOf(device)} ${axis} ${pixels} ${device.shown}`;
    if (this.whole.key !== key) this.whole = { key, rows: device.rows(device.columns(axis, d0, d1, pixels)) };
    const { rows } = this.whole;
    const top = Math.max(device.peak.bytes, 1);
    context.fillStyle = colors.overview;
    for (let column = 0; column < pixels; column++) {
      const height = ((STRIP - 4) * device.total[rows[column]]) / top;
      context.fillRect(ROOM.left + column, STRIP - height, 1, height);
    }
    const place = (/** @type {number} */ x) => ROOM.left + (plotWidth * (x - d0)) / (d1 - d0);
    const [left, right] = this.x.map(place);
    if (right - left < plotWidth - 0.5) {
      context.fillStyle = colors.veil;
      context.fillRect(ROOM.left, 0, left - ROOM.left, STRIP);
      context.fillRect(right, 0, ROOM.left + plotWidth - right, STRIP);
      context.strokeStyle = colors.accent;
      context.strokeRect(left + 0.5, 0.5, Math.max(right - left - 1, 2), STRIP - 1);
    }
  }

  legend() {
    const { device } = this;
    const focused = [...this.chips.children].indexOf(/** @type {Element} */ (document.activeElement));
    const peak = device.wholePeak;
    const chips = ORDER.map((category, place) =>
      h(
        "button",
        {
          type: "button",
          class: "chip",
          title: `Show or hide (${place + 1}); Shift and click: only this`,
          aria: { pressed: device.shown[category] },
          on: { click: (/** @type {MouseEvent} */ event) => this.toggle(place, event.shiftKey) },
        },
        h("i", { class: "swatch", style: { background: COLORS[this.theme][category] } }),
        h("span", {}, NAMES[category]),
        h("span", { class: "soft" }, fine(device.levels[category][peak.row])),
      ),
    );
    for (const name of /** @type {const} */ (["allocated", "reserved"])) {
      if (!device[name]) continue;
      chips.push(
        h(
          "button",
          {
            type: "button",
            class: `chip line ${name}`,
            aria: { pressed: this.lines[name] },
            on: {
              click: () => {
                this.lines[name] = !this.lines[name];
                this.legend();
                this.again.ask();
              },
            },
          },
          h("i", { class: "stroke" }),
          h("span", {}, LINES[name]),
        ),
      );
    }
    this.chips.replaceChildren(...chips, h("span", { class: "soft" }, "at the peak"));
    if (focused >= 0) /** @type {HTMLElement|undefined} */ (this.chips.children[focused])?.focus();
  }

  // for others

  /** @param {string} kind */
  file(kind) {
    return `${
      this.given.name
        .replace(/\.html?$/, "")
        .replace(/[^\w.-]+/g, "_")
        .slice(0, 80) || "timeline"
    }.${kind}`;
  }

  /** @returns {Promise<Blob>} */
  pngBlob() {
    const { clientWidth: width, clientHeight: height } = this.frame;
    const canvas = h("canvas", { width: width * SCALE, height: (height + 2 * TITLE) * SCALE });
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const colors = ink(this.theme);
    const plot = h("canvas");
    plot.width = width * SCALE;
    plot.height = height * SCALE;
    const over = /** @type {CanvasRenderingContext2D} */ (plot.getContext("2d"));
    over.scale(SCALE, SCALE);
    paint(over, width, height, { ...this.seen(), cursor: this.cursor, pinned: true }, this.theme, SCALE);
    context.scale(SCALE, SCALE);
    context.fillStyle = colors.ground;
    context.fillRect(0, 0, width, height + 2 * TITLE);
    context.fillStyle = colors.text;
    context.textBaseline = "middle";
    context.font = `600 13px ${FONT}`;
    context.fillText(`${this.given.name} · ${this.device.name}`, 12, TITLE / 2, width - 24);
    context.drawImage(plot, 0, TITLE, width, height);
    context.font = `12px ${FONT}`;
    let x = ROOM.left;
    for (const category of ORDER) {
      if (!this.device.shown[category] || !this.device.highest[category].bytes) continue;
      context.fillStyle = COLORS[this.theme][category];
      context.fillRect(x, height + TITLE * 1.5 - 6, 12, 12);
      context.fillStyle = colors.text;
      context.fillText(NAMES[category], x + 17, height + TITLE * 1.5);
      x += context.measureText(NAMES[category]).width + 34;
    }
    return new Promise((settle, fail) =>
      canvas.toBlob((blob) => (blob ? settle(blob) : fail(new Error("no picture"))), "image/png"),
    );
  }

  async png() {
    download(this.file("png"), await this.pngBlob(), this.root);
  }

  csvText() {
    const { device } = this;
    const rows = Array.from({ length: device.count + 1 }, (_, row) => [
      row,
      device.when(row),
      ...device.levels.map((values) => values[row]),
      row && device.allocated ? device.allocated[row - 1] : null,
      row && device.reserved ? device.reserved[row - 1] : null,
    ]);
    const head = ["change", "ns", ...NAMES, "allocated", "reserved"];
    return toCsv(
      device.allocated ? head : head.slice(0, -2),
      device.allocated ? rows : rows.map((one) => one.slice(0, -2)),
    );
  }

  csv() {
    download(this.file("csv"), new Blob(["\ufeff", this.csvText()], { type: "text/csv" }), this.root);
  }
}
