/** The monitor: a card for each device, with its figures of now, and one window of time for all. */

import { duration, size } from "../data/units.js";
import { eachFrame, fit, h } from "../ui/dom.js";
import { themeOf, watchTheme } from "../ui/theme.js";
import { ceiling, clock, draw, highest, stacked } from "./chart.js";
import { PARTS } from "./history.js";
import style from "./style.css";
import theme from "../ui/theme.css";

const LEFT = 62;
const CARD_HEIGHT = 168;
const SPANS = [60, 300, 900, 3600];
const STALE = 5;
const SHORTEST = 30;
const WORDS = { allocated: "allocated", cached: "cache", outside: "outside PyTorch", others: "elsewhere" };

const LIGHT = {
  ground: "#ffffff",
  text: "#1f2630",
  soft: "#5f6b7a",
  grid: "rgba(31, 38, 48, 0.08)",
  border: "#b9c2cc",
  capacity: "#9a2a3c",
  bands: ["#dce8f4", "#e9e2f3", "#dcefe8", "#f5e9d6"],
  failed: "#f4d2cd",
  running: "#cfe3f7",
  areas: ["#5b93e6", "#a9c9f5", "#eeb04f", "#b4bcc7"],
  edge: "rgba(24, 32, 44, 0.55)",
  cursor: "rgba(24, 32, 44, 0.6)",
};
const DARK = {
  ground: "#15181d",
  text: "#e4e8ee",
  soft: "#9ca7b5",
  grid: "rgba(228, 232, 238, 0.1)",
  border: "#454d58",
  capacity: "#f08a98",
  bands: ["#233a52", "#362e4a", "#1f4038", "#453a24"],
  failed: "#582f2b",
  running: "#24507c",
  areas: ["#3f77cc", "#2d4f80", "#b97c1f", "#5c6674"],
  edge: "rgba(236, 240, 246, 0.6)",
  cursor: "rgba(236, 240, 246, 0.7)",
};

/**
 * @typedef {{name: string, card: HTMLElement, canvas: HTMLCanvasElement, head: HTMLElement, figures: HTMLElement,
 *   tops: (number|null)[][]}} Card
 */

export class Panel {
  /** @param {HTMLElement} element @param {import("./history.js").Course} course @param {AbortSignal} signal */
  constructor(element, course, signal) {
    this.course = course;
    this.span = SPANS[1];
    this.whole = false;
    /** The right end of the window while it is paused. @type {number|null} */
    this.paused = null;
    /** @type {number|null} */
    this.cursor = null;
    this.arrived = 0;
    this.closed = "";
    /** @type {Map<string, Card>} */
    this.cards = new Map();
    this.frame = eachFrame(() => this.#draw());
    const shadow = element.shadowRoot ?? element.attachShadow({ mode: "open" });
    this.status = h("span", { class: "status", role: "status" });
    this.pause = h("button", { type: "button", aria: { keyshortcuts: "Space" }, on: { click: () => this.toggle() } });
    this.spans = h(
      "select",
      { on: { change: () => this.setSpan(Number(this.spans.value)) } },
      ...SPANS.map((one) => h("option", { value: one }, one < 3600 ? `${one / 60} min` : "1 h")),
    );
    this.scale = h("input", {
      type: "checkbox",
      on: {
        change: () => {
          this.whole = this.scale.checked;
          this.frame.ask();
        },
      },
    });
    this.place = h("div", { class: "cards" });
    this.root = h(
      "div",
      { class: "monitor", on: { keydown: (/** @type {KeyboardEvent} */ event) => this.#key(event) } },
      h(
        "div",
        { class: "bar" },
        h("strong", {}, "Memory"),
        this.status,
        h("span", { class: "space" }),
        h("label", {}, this.scale, "whole card"),
        h("label", {}, "last", this.spans),
        this.pause,
      ),
      this.place,
    );
    shadow.replaceChildren(h("style", {}, theme, style), this.root);
    this.theme(element);
    watchTheme(element, () => this.theme(element), signal);
    const seen = new ResizeObserver(() => this.frame.ask());
    seen.observe(this.root);
    const ticking = setInterval(() => this.#tell(), 1000);
    signal.addEventListener("abort", () => {
      seen.disconnect();
      clearInterval(ticking);
      this.frame.stop();
    });
    this.spans.value = String(this.span);
    this.#tell();
  }

  /** @param {HTMLElement} element */
  theme(element) {
    const theme = themeOf(element, "auto");
    this.root.dataset.theme = theme;
    this.colors = theme === "dark" ? DARK : LIGHT;
    for (const card of this.cards.values()) card.figures.replaceChildren();
    this.frame.ask();
  }

  /** Something new is in the course. */
  news() {
    this.arrived = performance.now();
    this.frame.ask();
    this.#tell();
  }

  /** @param {string} why */
  end(why) {
    this.closed = why;
    this.#tell();
  }

  toggle() {
    this.paused = this.paused === null ? this.course.newest : null;
    this.#tell();
    this.frame.ask();
  }

  /** @param {number} span */
  setSpan(span) {
    this.span = span;
    this.spans.value = String(span);
    this.frame.ask();
  }

  /** The window of time. */
  window() {
    const end = this.paused ?? this.course.newest;
    // as long as there is little, it has all the room
    const first = Math.min(this.course.time[0] ?? end, end - SHORTEST);
    return { begin: Math.max(end - this.span, first), end };
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const control = event.composedPath()[0] instanceof HTMLSelectElement;
    const button = event.composedPath()[0] instanceof HTMLButtonElement;
    if (event.ctrlKey || event.metaKey || event.altKey || control) return;
    const place = SPANS.indexOf(this.span);
    const step = this.span / 60;
    const { begin, end } = this.window();
    /** @type {Record<string, () => void>} */
    const actions = {
      " ": () => this.toggle(),
      "+": () => this.setSpan(SPANS[Math.max(place - 1, 0)]),
      "-": () => this.setSpan(SPANS[Math.min(place + 1, SPANS.length - 1)]),
      ArrowLeft: () => this.#point(Math.max((this.cursor ?? end) - step, begin)),
      ArrowRight: () => this.#point(Math.min((this.cursor ?? end) + step, end)),
      PageUp: () => this.#turn(-0.5),
      PageDown: () => this.#turn(0.5),
      Escape: () => this.#point(null),
    };
    const action = actions[event.key];
    if (!action || (button && event.key === " ")) return;
    event.preventDefault();
    event.stopPropagation(); // a notebook has shortcuts of its own
    action();
  }

  /** Look at another time: that pauses. @param {number} windows */
  #turn(windows) {
    if (!this.course.time.length) return;
    const wanted = this.window().end + windows * this.span;
    this.paused = wanted >= this.course.newest && windows > 0 ? null : Math.max(wanted, this.course.time[0]);
    this.#tell();
    this.frame.ask();
  }

  /** @param {number|null} time */
  #point(time) {
    this.cursor = time;
    this.frame.ask();
  }

  #tell() {
    const silent = (performance.now() - this.arrived) / 1000;
    const late = this.arrived > 0 && silent > STALE + 3 * this.course.every;
    let text = "following";
    if (this.closed) text = this.closed;
    else if (!this.arrived) text = "waiting for the kernel";
    else if (late) text = `no news for ${duration(Math.round(silent) * 1e6)}: the kernel is gone, or stopped`;
    else if (this.paused !== null) text = `paused at ${clock(this.paused)}`;
    if (this.status.textContent !== text) this.status.textContent = text;
    this.root.dataset.state = this.closed || late ? "gone" : this.paused !== null ? "paused" : "on";
    const words = this.paused === null ? "Pause" : "Go on";
    if (this.pause.textContent !== words) this.pause.textContent = words;
  }

  #draw() {
    const { course } = this;
    const names = course.devices.size ? [...course.devices.keys()] : course.time.length ? ["host"] : [];
    for (const [name, card] of this.cards) {
      if (names.includes(name)) continue;
      card.card.remove();
      this.cards.delete(name);
    }
    for (const name of names) if (!this.cards.has(name)) this.cards.set(name, this.#card(name));
    for (const card of this.cards.values()) this.#show(card);
  }

  /** @param {string} name @returns {Card} */
  #card(name) {
    const canvas = h("canvas", { tabindex: 0, role: "img" });
    const head = h("div", { class: "head" });
    const figures = h("ul", { class: "figures" });
    const card = h("section", { aria: { label: name } }, head, figures, canvas);
    const move = (/** @type {PointerEvent} */ event) => {
      const box = canvas.getBoundingClientRect();
      const { begin, end } = this.window();
      const part = (event.clientX - box.left - LEFT) / (box.width - LEFT);
      this.#point(part >= 0 && part <= 1 ? begin + part * (end - begin) : null);
    };
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerleave", () => this.#point(null));
    this.place.append(card);
    return { name, card, canvas, head, figures, tops: [] };
  }

  /** The stack of a card: rows from below. @param {string} name @returns {{words: string[], rows: (number|null)[][], colors: string[]}} */
  #stack(name) {
    const device = this.course.devices.get(name);
    const areas = (this.colors ?? LIGHT).areas;
    if (!device) return { words: ["resident (this process)"], rows: [this.course.rss], colors: [areas[0]] };
    const known = PARTS.map((part, place) => ({ part, place })).filter(({ part }) =>
      device.columns[part].some((one) => one !== null),
    );
    const own = device.own[device.own.length - 1] ?? true;
    return {
      words: known.map(({ part }) => (part === "outside" && !own ? "outside PyTorch, of any process" : WORDS[part])),
      rows: known.map(({ part }) => device.columns[part]),
      colors: known.map(({ place }) => areas[place]),
    };
  }

  /** @param {Card} card */
  #show(card) {
    const { course } = this;
    const { words, rows, colors } = this.#stack(card.name);
    const width = Math.max(card.card.clientWidth, 200);
    const { begin, end } = this.window();
    const device = course.devices.get(card.name);
    const capacity = device ? last(device.columns.capacity) : course.total;
    const at = course.at(this.cursor ?? end);
    this.#head(card, capacity, at);
    this.#figures(card, words, rows, colors, at);
    const context = fit(card.canvas, width, CARD_HEIGHT);
    if (!rows.length) return;
    const tops = stacked(rows);
    const most = highest(tops[tops.length - 1], course.at(begin), Math.max(course.at(end), 0));
    draw(context, { begin, end, width, height: CARD_HEIGHT, top: 0, left: LEFT }, course, tops, {
      ceiling: ceiling(most, capacity, this.whole),
      capacity,
      colors: { ...(this.colors ?? LIGHT), areas: colors },
      cursor: this.cursor,
    });
    card.canvas.setAttribute("aria-label", `${card.name}: ${card.figures.innerText.replaceAll("\n", " ")}`);
  }

  /** @param {Card} card @param {number|null} capacity @param {number} at */
  #head(card, capacity, at) {
    const { course } = this;
    const device = course.devices.get(card.name);
    const used = device ? (device.columns.used[at] ?? null) : (course.rss[at] ?? null);
    const title = card.name === "host" ? "host memory" : card.name;
    const label = course.labels[card.name];
    let words = "";
    if (used !== null && capacity !== null) {
      words = device
        ? `${size(used)} of ${size(capacity)} used, ${size(capacity - used)} free`
        : `of ${size(capacity)}`;
    }
    const when = this.cursor === null ? "" : clock(course.time[at] ?? this.cursor);
    card.head.replaceChildren(
      h("b", {}, title),
      label ? h("span", { class: "soft" }, label) : "",
      h("span", { class: "space" }),
      h("span", { class: "when" }, when),
      h("span", {}, words),
    );
  }

  /** @param {Card} card @param {string[]} words @param {(number|null)[][]} rows @param {string[]} colors @param {number} at */
  #figures(card, words, rows, colors, at) {
    if (card.figures.children.length !== words.length) {
      card.figures.replaceChildren(
        ...words.map((_, i) =>
          h("li", {}, h("i", { style: { background: colors[i] } }), h("span", {}), h("b", { class: "number" })),
        ),
      );
    }
    for (const [i, item] of [...card.figures.children].entries()) {
      const value = rows[i][at] ?? null;
      /** @type {HTMLElement} */ (item.children[1]).textContent = words[i];
      /** @type {HTMLElement} */ (item.children[2]).textContent = value === null ? "unknown" : size(value);
    }
  }
}

/** @param {(number|null)[]} values */
function last(values) {
  return values.findLast((one) => one !== null) ?? null;
}
