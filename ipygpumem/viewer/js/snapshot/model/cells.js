/** Finds the notebook cell of an event by time and by the file names in its stack, as `ipygpumem.snapshot.model.cells` does. */

import { getOrCreate, TextMap } from "../../data/collections.js";
import { NO_CELL } from "../options.js";
import { Spans } from "./spans.js";

/** @typedef {{number: number|null, filename: string, start_us: number, end_us: number, success: boolean|null}} Cell
 * @typedef {{label: string, runs: number[]|undefined}} CellFile the label for all runs of a cell, and their numbers, if known */

const MAX_LABELS = 3;
const IPYTHON = /^<ipython-input-(\d+)-[0-9a-f]+>$/;
const IPYKERNEL = /^.*[/\\]ipykernel_\d+[/\\](\d+)\.py$/;

/** @param {Cell} cell */
export function cellLabel(cell) {
  return cell.number === null ? cell.filename || "(unnamed cell)" : `In[${cell.number}]`;
}

export class Cells {
  /** @param {Cell[]} cells ordered by start @param {Record<string, number>} [numbers] of cells that ran before the recording, by file name */
  constructor(cells, numbers = {}) {
    this.cells = cells;
    this.numbers = new TextMap(Object.entries(numbers));
    /** @type {TextMap<number[]>} */
    this.runs = new TextMap();
    for (const [number, cell] of cells.entries()) {
      if (cell.filename) getOrCreate(this.runs, cell.filename, () => []).push(number);
    }
    /** The label for all runs of a file. @type {TextMap<string>} */
    this.labels = new TextMap();
    this.all = cells.map((_, number) => number);
    /** @type {Map<number[], Spans>} */
    this.spans = new Map();
  }

  /** @param {Iterable<number>} numbers */
  joinLabels(numbers) {
    const labels = [...new Set([...numbers].map((number) => cellLabel(this.cells[number])))];
    return labels.length <= MAX_LABELS ? labels.join(" or ") : `${labels[0]} … ${labels.at(-1)}`;
  }

  /** The label of the cell that a file name belongs to; undefined for other files. @param {string} file */
  labelOf(file) {
    const runs = this.runs.get(file);
    if (runs) return getOrCreate(this.labels, file, () => this.joinLabels(runs));
    const number = this.numbers.get(file);
    if (number !== undefined) return `In[${number}]`;
    const ipython = IPYTHON.exec(file);
    if (ipython) return `In[${ipython[1]}]`;
    const kernel = IPYKERNEL.exec(file);
    return kernel ? `cell ${kernel[1]}` : undefined;
  }

  /** Like `labelOf`, but only with the runs in progress at some times, if there is one at each. @param {string} file @param {number[]} times */
  labelAt(file, times) {
    const runs = this.runs.get(file);
    if (!runs || runs.length <= 1) return this.labelOf(file);
    const running = new Set(times.map((time) => this.running(runs, time)));
    if (running.has(-1) || !running.size) return this.labelOf(file);
    return this.joinLabels([...running].sort((a, b) => a - b));
  }

  /** The last of some runs that was in progress at a time; -1 if none was. @param {number[]} numbers @param {number} time */
  running(numbers, time) {
    if (time < 0) return -1;
    const spans = getOrCreate(this.spans, numbers, () => {
      const chosen = numbers.map((number) => this.cells[number]);
      return new Spans(
        chosen.map((cell) => cell.start_us),
        chosen.map((cell) => cell.end_us),
      );
    });
    return numbers[spans.at(time)] ?? -1;
  }

  /** The cell that a file name belongs to, with its runs; null for other files. @param {string} file @returns {CellFile|null} */
  find(file) {
    const label = this.labelOf(file);
    return label ? { label, runs: this.runs.get(file) } : null;
  }

  /** The label of the cell of an event. @param {number} time -1: unknown @param {CellFile[]} files the cells in its stack, the outermost first */
  label(time, files) {
    let run = -1;
    for (const { runs } of files) if (runs) run = Math.max(run, this.running(runs, time));
    if (run < 0) run = this.running(this.all, time);
    if (run >= 0) return cellLabel(this.cells[run]);
    return files[0]?.label ?? NO_CELL;
  }
}
