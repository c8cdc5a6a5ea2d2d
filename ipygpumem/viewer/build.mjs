// Bundles js/ into static/, with the license notices of the bundled packages, which THIRD_PARTY_LICENSES contains as well.
// `node build.mjs --out FOLDER` writes to another folder, so that a test can compare the files.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";
import { zlibSync } from "fflate";

const here = dirname(fileURLToPath(import.meta.url));
const option = process.argv.indexOf("--out");
const out = option > 0 ? process.argv[option + 1] : join(here, "static");
const notices = join(option > 0 ? out : join(here, "..", ".."), "THIRD_PARTY_LICENSES");

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
  metafile: true,
  minify: true,
  target: "es2022",
  write: false,
};

/** @param {import("esbuild").BuildOptions} options */
async function bundle(options) {
  const { metafile, outputFiles } = /** @type {any} */ (await build({ ...common, ...options }));
  // The text "</script" would end the script element of a page
  const code = outputFiles[0].text.replaceAll("</script", "<\\/script");
  return { code, inputs: Object.keys(metafile.inputs) };
}

/** Returns the license texts of the packages in `inputs`, each preceded by the packages to which it applies.
 * @param {string[]} inputs */
function licenses(inputs) {
  /** @type {Map<string, string[]>} */
  const names = new Map();
  const folders = inputs.map((path) => path.match(/^.*node_modules\/(@[^/]+\/)?[^/]+/)?.[0] ?? "");
  for (const folder of [...new Set(folders)].filter(Boolean).sort()) {
    const file = /** @type {string} */ (readdirSync(join(here, folder)).find((name) => /^licen[cs]e/i.test(name)));
    const text = readFileSync(join(here, folder, file), "utf8").trim();
    const { name, version } = JSON.parse(readFileSync(join(here, folder, "package.json"), "utf8"));
    names.set(text, [...(names.get(text) ?? []), `${name} ${version}`]);
  }
  return [...names].map(([text, packages]) => `${packages.join(", ")}:\n\n${text}\n`).join("\n");
}

// The engine is embedded in the bundle as a compressed string, so that it can run as a worker, or as a module, where no
// file can be loaded. It is compressed by fflate, because the output of Node's zlib depends on its version.
const worker = await bundle({
  entryPoints: ["js/snapshot/engine/worker.js"],
  format: "iife",
  globalName: "ipygpumem",
});
const compressed = Buffer.from(zlibSync(Buffer.from(worker.code), { level: 9 })).toString("base64");
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
const all = [...worker.inputs];
for (const [name, entry, format] of bundles) {
  const { code, inputs } = await bundle({ entryPoints: [entry], format, plugins: [texts] });
  if (inputs.includes("worker-text:worker-text")) inputs.push(...worker.inputs);
  const notice = licenses(inputs);
  writeFileSync(join(out, name), notice ? `/*!\n${notice}*/\n${code}` : code);
  all.push(...inputs);
}
writeFileSync(notices, `The files in ipygpumem/viewer/static contain code from these packages.\n\n${licenses(all)}`);
