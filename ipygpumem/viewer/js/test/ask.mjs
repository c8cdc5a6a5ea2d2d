/** Puts questions to the model about an encoded file: `node ask.mjs FILE... < questions.json`, answers as JSON. */

import { readFileSync } from "node:fs";
import { Engine } from "../engine.js";

const engine = new Engine();
const files = [];
for (const path of process.argv.slice(2)) {
  const { buffer, byteOffset, length } = readFileSync(path);
  files.push(await engine.open({ name: path, bytes: buffer.slice(byteOffset, byteOffset + length) }));
}
const answers = JSON.parse(readFileSync(0, "utf8")).map(([name, request]) => {
  try {
    return engine[name]({ source: 0, device: 0, ...request });
  } catch (problem) {
    return { problem: String(problem) };
  }
});
const plain = (_, value) =>
  typeof value === "bigint" ? String(value) : ArrayBuffer.isView(value) ? [...value] : value;
process.stdout.write(JSON.stringify({ files, answers }, plain));
