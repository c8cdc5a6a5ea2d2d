/** Runs requests on encoded files, like `[["a.gpm"], [["states", {...}]]]` on a line, and prints the responses as JSON. */

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Engine } from "../../../ipygpumem/viewer/js/snapshot/engine/engine.js";

const plain = (_, value) =>
  typeof value === "bigint" ? String(value) : ArrayBuffer.isView(value) ? [...value] : value;

for await (const line of createInterface({ input: process.stdin })) {
  const [paths, requests] = JSON.parse(line);
  const engine = new Engine();
  const files = [];
  for (const path of paths) {
    const { buffer, byteOffset, length } = readFileSync(path);
    files.push(await engine.open({ name: path, bytes: buffer.slice(byteOffset, byteOffset + length) }));
  }
  const answers = [];
  for (const [name, request] of requests) {
    await engine.ready(name, request);
    answers.push(engine[name]({ source: 0, device: 0, ...request }));
  }
  process.stdout.write(`${JSON.stringify({ files, answers }, plain)}\n`);
}
