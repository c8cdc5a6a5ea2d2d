/** Bundles and THIRD_PARTY_LICENSES contain the license of each package whose code is bundled. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const viewer = fileURLToPath(new URL("../../../ipygpumem/viewer", import.meta.url));
const { buildSync } = createRequire(join(viewer, "build.mjs"))("esbuild");
const replaced = ["d3-format", "d3-interpolate", "d3-transition"];

/** @param {string} entry */
function packages(entry) {
  const { metafile } = buildSync({
    absWorkingDir: viewer,
    bundle: true,
    entryPoints: [join("js", entry)],
    external: ["worker-text", ...replaced],
    format: "esm",
    loader: { ".css": "text" },
    logLevel: "error",
    metafile: true,
    outfile: "out.js",
    write: false,
  });
  const [output] = Object.values(metafile.outputs);
  const files = Object.entries(output.inputs).filter(([, { bytesInOutput }]) => bytesInOutput > 0);
  const folders = files.map(([path]) => path.match(/^.*node_modules\/(?:@[^/]+\/)?[^/]+/)?.[0]);
  return [...new Set(folders.filter(Boolean))].map((folder) => join(viewer, folder));
}

const bundles = {
  "page.js": ["snapshot/page.js", "snapshot/engine/worker.js"],
  "widget.js": ["snapshot/widget.js", "snapshot/engine/worker.js"],
  "categories.js": ["profile/page.js"],
  "monitor.js": ["monitor/widget.js"],
  "loader.js": ["kernel/loader.js"],
};

test("every bundled package is listed with its license", () => {
  const notices = readFileSync(join(viewer, "..", "..", "THIRD_PARTY_LICENSES"), "utf8");
  let count = 0;
  for (const [bundle, entries] of Object.entries(bundles)) {
    const banner = readFileSync(join(viewer, "static", bundle), "utf8").match(/^\/\*!(.*?)\*\//s)?.[1] ?? "";
    for (const folder of entries.flatMap(packages)) {
      const { name, version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
      const license = readFileSync(join(folder, "LICENSE"), "utf8").trim();
      for (const text of [banner, notices]) {
        assert.ok(text.includes(`${name} ${version}`), `${name} in ${bundle}`);
        assert.ok(text.includes(license), `license of ${name} in ${bundle}`);
      }
      count += 1;
    }
  }
  assert.ok(count > 10, "packages were found");
});
