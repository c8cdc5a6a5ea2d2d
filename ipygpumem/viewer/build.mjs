// Bundles js/ into static/. `node build.mjs --out FOLDER` writes to another folder, so that a test can compare the bundles.
import { mkdirSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";
import { zlibSync } from "fflate";

const here = dirname(fileURLToPath(import.meta.url));
const option = process.argv.indexOf("--out");
const out = option > 0 ? process.argv[option + 1] : join(here, "static");

const common = {
  absWorkingDir: here,
  // Nothing is animated, no colors are interpolated, and numbers are formatted by our own code. The parts of d3 for these
  // would be a sixth of the bundle
  alias: {
    "d3-format": "./js/d3/format.js",
    "d3-interpolate": "./js/d3/interpolate.js",
    "d3-transition": "./js/d3/transition.js",
  },
  bundle: true,
  charset: "ascii",
  legalComments: "none",
  logLevel: "warning",
  minify: true,
  target: "es2022",
  write: false,
};

/** @param {import("esbuild").BuildOptions} options */
async function bundle(options) {
  const result = await build({ ...common, ...options });
  // The text "</script" would end the script element of a page
  return /** @type {any} */ (result).outputFiles[0].text.replaceAll("</script", "<\\/script");
}

// The engine is embedded in the bundle as a compressed string, so that it can run as a worker, or as a module, where no
// file can be loaded. It is compressed by fflate, because the output of Node's zlib depends on its version.
const worker = await bundle({
  entryPoints: ["js/snapshot/engine/worker.js"],
  format: "iife",
  globalName: "ipygpumem",
});
const compressed = Buffer.from(zlibSync(Buffer.from(worker), { level: 9 })).toString("base64");
const texts = {
  name: "texts",
  /** @param {import("esbuild").PluginBuild} builder */
  setup(builder) {
    builder.onResolve({ filter: /^worker-text$/ }, () => ({ path: "worker-text", namespace: "worker-text" }));
    builder.onLoad({ filter: /\.css$/ }, async ({ path }) => {
      const css = await transform(await readFile(path, "utf8"), { loader: "css", minify: true, target: "es2022" });
      return { contents: css.code, loader: "text" };
    });
    builder.onLoad({ filter: /.*/, namespace: "worker-text" }, () => ({ contents: compressed, loader: "text" }));
  },
};

/** @type {[string, string, "iife"|"esm"][]} */
const bundles = [
  ["page.js", "js/snapshot/page.js", "iife"],
  ["widget.js", "js/snapshot/widget.js", "esm"],
  ["loader.js", "js/kernel/loader.js", "esm"],
  ["categories.js", "js/profile/page.js", "iife"],
  ["monitor.js", "js/monitor/widget.js", "esm"],
];
mkdirSync(out, { recursive: true });
for (const [name, entry, format] of bundles)
  writeFileSync(join(out, name), await bundle({ entryPoints: [entry], format, plugins: [texts] }));
