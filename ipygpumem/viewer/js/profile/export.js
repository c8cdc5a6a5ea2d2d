/** The chart as a PNG and the profile as a CSV table. */

import { toCsv } from "../data/csv.js";
import { context2d, pngOf, setText } from "../ui/canvas.js";
import { download } from "../ui/dom.js";
import { chartColors } from "../ui/theme.js";
import { COLORS, drawChart, MARGIN } from "./chart.js";
import { CATEGORIES, COUNTERS, ORDER } from "./model.js";

const BAND = 34; // height of the title above the chart, and of the legend below it

/** @param {import("./view.js").ProfileView} view */
export async function exportPng(view) {
  const { clientWidth: width, clientHeight: height } = view.frame;
  const { theme, source, state } = view;
  const { device } = state;
  const colors = chartColors(theme);
  const blob = await pngOf(width, height + 2 * BAND, (context, scale) => {
    const chart = document.createElement("canvas");
    chart.width = width * scale;
    chart.height = height * scale;
    const inner = context2d(chart);
    inner.scale(scale, scale);
    drawChart(inner, width, height, { ...state.chartState(), cursor: state.cursor, pinned: true }, theme, scale);
    context.fillStyle = colors.background;
    context.fillRect(0, 0, width, height + 2 * BAND);
    setText(context, colors.text, "left", "600 13px");
    context.fillText(`${source.name} · ${device.name}`, 12, BAND / 2, width - 24);
    context.drawImage(chart, 0, BAND, width, height);
    let x = MARGIN.left;
    const y = height + BAND * 1.5;
    for (const category of ORDER) {
      if (!device.shown[category] || !device.highest[category].bytes) continue;
      context.fillStyle = COLORS[theme][category];
      context.fillRect(x, y - 6, 12, 12);
      setText(context, colors.text, "left", "12px");
      context.fillText(CATEGORIES[category], x + 17, y);
      x += context.measureText(CATEGORIES[category]).width + 34;
    }
  });
  download(source.name, "png", blob, view.root);
}

/** @param {import("./view.js").ProfileView} view */
export function exportCsv({ state: { device }, source, root }) {
  const counters = COUNTERS.filter((name) => device.counters[name]);
  const rows = Array.from({ length: device.count + 1 }, (_, row) => [
    row,
    device.timeOf(row),
    ...device.levels.map((values) => values[row]),
    ...counters.map((name) => (row ? device.counter(name, row) : null)),
  ]);
  // The byte order mark marks the file as UTF-8 for spreadsheets
  download(source.name, "csv", ["\ufeff", toCsv([["change", "ns", ...CATEGORIES, ...counters], ...rows])], root);
}
