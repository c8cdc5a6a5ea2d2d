/** All call stacks of a snapshot as one tree, with the outermost calls at its root. */

import { Numbers } from "../../data/collections.js";
import { oneLine } from "../../data/units.js";
import { read } from "./trace.js";

/** @typedef {{file: string, line: number, name: string, own: boolean}} Frame */

export class Stacks {
  /** @param {import("./trace.js").Columns} columns @param {[string, number, string][]} frames */
  constructor(columns, frames) {
    const own = read(columns, "stacks/own", Uint8Array);
    /** @type {Frame[]} */
    this.frames = frames.map(([file, line, name], number) => ({ file, line, name, own: own[number] === 1 }));
    this.nodeFrame = read(columns, "stacks/node_frame", Int32Array);
    this.nodeParent = read(columns, "stacks/node_parent", Int32Array);
    this.leaf = read(columns, "stacks/leaf", Int32Array);
    /** The innermost frame of the user's own code of each stack, -1 if there is none. */
    this.userFrame = read(columns, "stacks/user_frame", Int32Array);
    this.length = this.leaf.length;
    /** @type {{names: string[], ofFrame: Int32Array, walks: Int32Array}|undefined} walks: the last one that visited a file */
    this.fileTable = undefined;
    this.walk = 0;
  }

  /** The numbers of a stack's frames, innermost first. @param {number} stack */
  numbers(stack) {
    const numbers = [];
    for (let node = stack >= 0 ? this.leaf[stack] : -1; node >= 0; node = this.nodeParent[node])
      numbers.push(this.nodeFrame[node]);
    return numbers;
  }

  /** The innermost frame of the user's own code, else the innermost frame. @param {number} stack @returns {Frame|undefined} */
  mainFrame(stack) {
    if (stack < 0) return undefined;
    const own = this.userFrame[stack];
    return this.frames[own >= 0 ? own : this.nodeFrame[this.leaf[stack]]];
  }

  /** Distinct file names, and the number of each frame's file. */
  get files() {
    if (!this.fileTable) {
      const names = new Numbers();
      const ofFrame = Int32Array.from(this.frames, ({ file }) => names.number(file));
      this.fileTable = { names: names.texts, ofFrame, walks: new Int32Array(names.texts.length) };
    }
    return this.fileTable;
  }

  /** The numbers of the distinct files of a stack, the outermost first. @param {number} stack */
  filesOf(stack) {
    const { ofFrame, walks } = this.files;
    const walk = ++this.walk;
    const files = [];
    for (const frame of this.numbers(stack).reverse()) {
      const file = ofFrame[frame];
      if (walks[file] !== walk) files.push(file);
      walks[file] = walk;
    }
    return files;
  }

  /**
   * 1 for each stack with a frame that satisfies a condition.
   * @param {(frame: Frame) => boolean} condition
   */
  matching(condition) {
    const frame = Uint8Array.from(this.frames, (candidate) => (condition(candidate) ? 1 : 0));
    const node = new Uint8Array(this.nodeFrame.length);
    for (let i = 0; i < node.length; i++) {
      const parent = this.nodeParent[i];
      node[i] = frame[this.nodeFrame[i]] | (parent >= 0 ? node[parent] : 0);
    }
    return Uint8Array.from(this.leaf, (leaf) => (leaf >= 0 ? node[leaf] : 0));
  }
}

/** The last two parts of a file's name. @param {string} file */
export function shortPath(file) {
  return oneLine(file.replaceAll("\\", "/").split("/").slice(-2).join("/"));
}
