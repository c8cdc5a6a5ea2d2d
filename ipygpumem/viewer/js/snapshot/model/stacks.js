/** All call stacks of a file as one tree, from the outermost call down. */

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
    /** The innermost frame of the user's own code of each stack; -1 where there is none. */
    this.userFrame = read(columns, "stacks/user_frame", Int32Array);
    this.length = this.leaf.length;
  }

  /** Numbers of a stack's frames, innermost first. @param {number} stack */
  numbers(stack) {
    const found = [];
    for (let node = stack >= 0 ? this.leaf[stack] : -1; node >= 0; node = this.nodeParent[node]) {
      found.push(this.nodeFrame[node]);
    }
    return found;
  }

  /** Files in a stack, the outermost first, each once. @param {number} stack */
  files(stack) {
    return [
      ...new Set(
        this.numbers(stack)
          .reverse()
          .map((number) => this.frames[number].file),
      ),
    ];
  }

  /**
   * Which stacks hold a frame that passes a test; 1 for those that do.
   * @param {(frame: Frame) => boolean} passes
   */
  having(passes) {
    const frame = Uint8Array.from(this.frames, (one) => (passes(one) ? 1 : 0));
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
