// Builds the console into the folder that brokers serve it from, or into the folder that is named: `node build.mjs [FOLDER]`.
import { readFile, writeFile } from "node:fs/promises";
import { dirname, join, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const outdir = process.argv[2] ?? join(here, "../minikafka/rest/assets");

const built = await build({
  absWorkingDir: here,
  // charts.js is loaded when a view has a chart; the broker replaces its name by one with a hash.
  entryPoints: { console: "src/main.tsx", charts: "src/charts.ts", style: "src/console.css" },
  outdir,
  bundle: true,
  external: ["./charts.js"],
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  minify: true,
  legalComments: "none",
  charset: "utf8",
  metafile: true,
  logLevel: "warning",
});

// The licenses of what the built files contain.
const packages = new Set(Object.keys(built.metafile.inputs).filter((path) => path.startsWith("node_modules/"))
  .map((path) => path.split("/").slice(1, path.includes("/@") ? 3 : 2).join("/")));
const parts = ["The files of this folder contain code of these packages. The sources are in web/ of minikafka's repository."];
for (const name of [...packages].sort()) {
  const folder = join(here, "node_modules", name.replaceAll("/", sep));
  const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const text = await readFile(join(folder, "LICENSE"), "utf8");
  parts.push(`${name} ${version} (${license})\n\n${text.trim()}`);
}
await writeFile(join(outdir, "LICENSES.txt"), `${parts.join(`\n\n${"-".repeat(80)}\n\n`)}\n`);
