/** Which notebook cell an event belongs to: by time, and by the file names in its stack. As `ipygpumem.snapshot.model.cells`. */

import { remember } from "../../data/collections.js";
import { Spans } from "./spans.js";

/** @typedef {{number: number|null, filename: string, start_us: number, end_us: number, success: boolean|null}} Cell */

export const OUTSIDE = "(no cell)";
const NAMED = 3;
const IPYTHON = /^<ipython-input-(\d+)-[0-9a-f]+>$/;
const IPYKERNEL = /^.*[/\\]ipykernel_\d+[/\\](\d+)\.py$/;

/** @param {Cell} cell */
export function cellLabel(cell) {
  return cell.number === null ? cell.filename || "(a cell)" : `In[${cell.number}]`;
}

export class Cells {
  /** @param {Cell[]} cells by their beginning @param {Record<string, number>} [numbers] of cells that ran before, by file name */
  constructor(cells, numbers = {}) {
    this.cells = cells;
    this.numbers = new Map(Object.entries(numbers));
    /** @type {Map<string, number[]>} */
    this.runs = new Map();
    for (const [number, cell] of cells.entries()) {
      if (cell.filename) remember(this.runs, cell.filename, () => []).push(number);
    }
    this.all = cells.map((_, number) => number);
    /** @type {Map<number[], Spans>} */
    this.spans = new Map();
  }

  /** @param {Iterable<number>} numbers */
  joined(numbers) {
    const labels = [...new Set([...numbers].map((number) => cellLabel(this.cells[number])))];
    return labels.length <= NAMED ? labels.join(" or ") : `${labels[0]} … ${labels.at(-1)}`;
  }

  /** The label of the cell that a file name stands for; undefined for other files. @param {string} file */
  runsOf(file) {
    const runs = this.runs.get(file);
    if (runs) return this.joined(runs);
    const number = this.numbers.get(file);
    if (number !== undefined) return `In[${number}]`;
    const old = IPYTHON.exec(file);
    if (old) return `In[${old[1]}]`;
    const kernel = IPYKERNEL.exec(file);
    return kernel ? `cell ${kernel[1]}` : undefined;
  }

  /** As `runsOf`, but only the runs under way at these times, if there is one for each. @param {string} file @param {number[]} times */
  runsAt(file, times) {
    const runs = this.runs.get(file);
    if (!runs || runs.length <= 1) return this.runsOf(file);
    const found = new Set(times.map((time) => this.running(runs, time)));
    return found.has(-1) || !found.size ? this.runsOf(file) : this.joined([...found].sort((a, b) => a - b));
  }

  /** The youngest of some runs at a time; -1 for none. @param {number[]} numbers @param {number} time */
  running(numbers, time) {
    if (time < 0) return -1;
    const spans = remember(this.spans, numbers, () => {
      const chosen = numbers.map((number) => this.cells[number]);
      return new Spans(
        chosen.map((cell) => cell.start_us),
        chosen.map((cell) => cell.end_us),
      );
    });
    return numbers[spans.at(time)] ?? -1;
  }

  /**
   * The label of the cell of an event.
   * @param {number} time -1: unknown @param {string[]} files those in its stack, the outermost first
   */
  label(time, files) {
    let found = -1;
    for (const file of files) {
      const runs = this.runs.get(file);
      if (runs) found = Math.max(found, this.running(runs, time));
    }
    if (found < 0) found = this.running(this.all, time);
    if (found >= 0) return cellLabel(this.cells[found]);
    for (const file of files) {
      const label = this.runsOf(file);
      if (label) return label;
    }
    return OUTSIDE;
  }
}
