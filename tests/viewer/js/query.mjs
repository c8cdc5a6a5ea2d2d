/** Runs requests on encoded files: `node query.mjs FILE... < requests.json` prints the responses as JSON. */

import { readFileSync } from "node:fs";
import { Engine } from "../../../ipygpumem/viewer/js/snapshot/engine/engine.js";

const engine = new Engine();
const files = [];
for (const path of process.argv.slice(2)) {
  const { buffer, byteOffset, length } = readFileSync(path);
  files.push(await engine.open({ name: path, bytes: buffer.slice(byteOffset, byteOffset + length) }));
}
const answers = [];
for (const [name, request] of JSON.parse(readFileSync(0, "utf8"))) {
  await engine.ready(name, request);
  answers.push(engine[name]({ source: 0, device: 0, ...request }));
}
const plain = (_, value) =>
  typeof value === "bigint" ? String(value) : ArrayBuffer.isView(value) ? [...value] : value;
process.stdout.write(JSON.stringify({ files, answers }, plain));
