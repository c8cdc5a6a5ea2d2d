// Bundles js/ into static/. `node build.mjs --out FOLDER` writes elsewhere, so that a test can compare byte for byte.
import { mkdirSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";
import { zlibSync } from "fflate";

const here = dirname(fileURLToPath(import.meta.url));
const at = process.argv.indexOf("--out");
const out = at > 0 ? process.argv[at + 1] : join(here, "static");

const common = {
  absWorkingDir: here,
  // Nothing moves by itself here, no colours are interpolated and no numbers written: what d3 brings for that is a sixth
  // of the bundle
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
  // A classic script ends at the letters "</script", wherever they stand
  return /** @type {any} */ (result).outputFiles[0].text.replaceAll("</script", "<\\/script");
}

// The engine's whole text is a constant of the bundle, packed (by fflate: Node's own zlib packs differently from version to
// version, and the bundles are compared byte for byte): a blob of it runs where no file can be loaded, as a worker (a
// classic one: a page from a disk may not start others) or, where there are none, as a module of the page.
const worker = await bundle({ entryPoints: ["js/snapshot/engine/worker.js"], format: "iife", globalName: "ipygpumem" });
const packed = Buffer.from(zlibSync(Buffer.from(worker), { level: 9 })).toString("base64");
const inline = {
  name: "texts",
  /** @param {import("esbuild").PluginBuild} builder */
  setup(builder) {
    builder.onResolve({ filter: /^worker-text$/ }, () => ({ path: "worker-text", namespace: "worker-text" }));
    builder.onLoad({ filter: /\.css$/ }, async ({ path }) => {
      const css = await transform(await readFile(path, "utf8"), { loader: "css", minify: true, target: "es2022" });
      return { contents: css.code, loader: "text" };
    });
    builder.onLoad({ filter: /.*/, namespace: "worker-text" }, () => ({ contents: packed, loader: "text" }));
  },
};

mkdirSync(out, { recursive: true });
writeFileSync(
  join(out, "page.js"),
  await bundle({ entryPoints: ["js/snapshot/page.js"], format: "iife", plugins: [inline] }),
);
writeFileSync(
  join(out, "widget.js"),
  await bundle({ entryPoints: ["js/snapshot/widget.js"], format: "esm", plugins: [inline] }),
);
writeFileSync(join(out, "loader.js"), await bundle({ entryPoints: ["js/kernel/loader.js"], format: "esm" }));
writeFileSync(
  join(out, "categories.js"),
  await bundle({ entryPoints: ["js/profile/page.js"], format: "iife", plugins: [inline] }),
);
writeFileSync(
  join(out, "monitor.js"),
  await bundle({ entryPoints: ["js/monitor/widget.js"], format: "esm", plugins: [inline] }),
);
