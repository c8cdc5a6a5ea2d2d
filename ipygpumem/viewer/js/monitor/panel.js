/** The monitor: a card for each device, and one period of time for all of them. */

import { duration } from "../data/units.js";
import { button, checkbox, headRow, select } from "../ui/controls.js";
import { frameScheduler, h, handleKey, listen } from "../ui/dom.js";
import theme from "../ui/theme.css";
import { themeOf, watchTheme } from "../ui/theme.js";
import { Card } from "./card.js";
import { clockTime } from "./chart.js";
import style from "./style.css";

const SPANS = [60, 300, 900, 3600];
const SHORTEST = 30; // minimum length of the time axis in seconds
const STALE = 5; // seconds without a reading, in addition to three intervals, before the kernel is reported as unresponsive

export class Panel {
  /** @param {HTMLElement} element @param {import("./history.js").History} history @param {AbortSignal} signal */
  constructor(element, history, signal) {
    this.host = element;
    this.history = history;
    /** Seconds that the charts show. */
    this.span = SPANS[1];
    /** The end of the period while the charts are paused. @type {number|null} */
    this.paused = null;
    /** @type {number|null} */
    this.cursor = null;
    /** When the newest reading arrived, in milliseconds of the page's clock. */
    this.arrived = 0;
    this.closed = "";
    /** @type {Map<string, Card>} */
    this.cards = new Map();
    this.schedule = frameScheduler(() => this.#draw());
    const shadow = element.shadowRoot ?? element.attachShadow({ mode: "open" });
    this.status = h("span", { class: "status", role: "status" });
    this.pause = button("Pause", () => this.togglePause(), { aria: { keyshortcuts: "Space" } });
    this.spans = select(
      "Last",
      SPANS.map((seconds) => [String(seconds), seconds < 3600 ? `${seconds / 60} min` : "1 h"]),
      (seconds) => this.setSpan(Number(seconds)),
    );
    this.whole = checkbox("Whole device", () => this.schedule.request());
    this.grid = h("div", { class: "cards" });
    const controls = [this.whole.element, this.spans.element, this.pause];
    const bar = headRow([h("strong", {}, "Memory"), this.status], controls, "bar");
    this.root = h("div", { class: "monitor" }, bar, this.grid);
    listen(this.root, { keydown: (event) => this.#key(event) });
    shadow.replaceChildren(h("style", {}, theme, style), this.root);
    this.updateTheme();
    watchTheme(element, () => this.updateTheme(), signal);
    const observer = new ResizeObserver(() => this.schedule.request());
    observer.observe(this.root);
    const timer = setInterval(() => this.#showStatus(), 1000);
    signal.addEventListener("abort", () => {
      observer.disconnect();
      clearInterval(timer);
      this.schedule.cancel();
    });
    this.spans.value(String(this.span));
    this.#showStatus();
  }

  updateTheme() {
    this.theme = themeOf(this.host, "auto");
    this.root.dataset.theme = this.theme;
    this.schedule.request();
  }

  /** Show a new reading. */
  update() {
    this.arrived = performance.now();
    this.schedule.request();
    this.#showStatus();
  }

  /** @param {string} reason */
  close(reason) {
    this.closed = reason;
    this.#showStatus();
  }

  togglePause() {
    this.#pauseAt(this.paused === null ? this.history.newest : null);
  }

  /** @param {number|null} time the end of the period; null: the newest reading */
  #pauseAt(time) {
    this.paused = time;
    this.#showStatus();
    this.schedule.request();
  }

  /** @param {number} seconds */
  setSpan(seconds) {
    this.span = seconds;
    this.spans.value(String(seconds));
    this.schedule.request();
  }

  /** The period that the charts show, in seconds since the Unix epoch. */
  period() {
    const end = this.paused ?? this.history.newest;
    // The first few readings fill the width
    const first = Math.min(this.history.time[0] ?? end, end - SHORTEST);
    return { begin: Math.max(end - this.span, first), end };
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const target = event.composedPath()[0];
    if (target instanceof HTMLSelectElement || (event.key === " " && !(target instanceof HTMLCanvasElement))) return;
    const index = SPANS.indexOf(this.span);
    const step = this.span / 60;
    const { begin, end } = this.period();
    handleKey(event, {
      " ": () => this.togglePause(),
      "+": () => this.setSpan(SPANS[Math.max(index - 1, 0)]),
      "-": () => this.setSpan(SPANS[Math.min(index + 1, SPANS.length - 1)]),
      ArrowLeft: () => this.#point(Math.max((this.cursor ?? end) - step, begin)),
      ArrowRight: () => this.#point(Math.min((this.cursor ?? end) + step, end)),
      PageUp: () => this.#shift(-0.5),
      PageDown: () => this.#shift(0.5),
      Escape: () => this.#point(null),
    });
  }

  /** Show another period, and pause there. @param {number} share of the period */
  #shift(share) {
    const { time, newest } = this.history;
    if (!time.length) return;
    const end = this.period().end + share * this.span;
    this.#pauseAt(share > 0 && end >= newest ? null : Math.max(end, time[0]));
  }

  /** @param {number|null} time */
  #point(time) {
    this.cursor = time;
    this.schedule.request();
  }

  #showStatus() {
    const silent = (performance.now() - this.arrived) / 1000;
    const late = this.arrived > 0 && silent > STALE + 3 * this.history.every;
    let text = "live";
    if (this.closed) text = this.closed;
    else if (!this.arrived) text = "waiting for the kernel";
    else if (late)
      text = `no reading for ${duration(Math.round(silent) * 1e6)}: the kernel is not running or does not respond`;
    else if (this.paused !== null) text = `paused at ${clockTime(this.paused)}`;
    this.root.dataset.state = this.closed || late ? "gone" : this.paused !== null ? "paused" : "live";
    setText(this.status, text);
    setText(this.pause, this.paused === null ? "Pause" : "Resume");
  }

  #draw() {
    const { history, cards } = this;
    const names = history.devices.size ? [...history.devices.keys()] : history.time.length ? ["host"] : [];
    for (const [name, card] of cards) {
      if (names.includes(name)) continue;
      card.element.remove();
      cards.delete(name);
    }
    const state = {
      ...this.period(),
      cursor: this.cursor,
      whole: this.whole.field.checked,
      theme: this.theme ?? "light",
    };
    for (const name of names) {
      let card = cards.get(name);
      if (!card) {
        card = new Card(
          name,
          (time) => this.#point(time),
          () => this.period(),
        );
        cards.set(name, card);
        this.grid.append(card.element);
      }
      card.draw(history, state);
    }
  }
}

/** Set text only if it differs: screen readers announce every change. @param {HTMLElement} element @param {string} text */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
