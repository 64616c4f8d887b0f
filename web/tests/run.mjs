// Runs what is pure with Node's own test runner: bundles each test with esbuild, which vite brings.
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const out = mkdtempSync(join(tmpdir(), "virga-web-"));
try {
  const names = readdirSync(here).filter((n) => n.endsWith(".test.ts"));
  await build({
    entryPoints: names.map((n) => join(here, n)), outdir: out, bundle: true, platform: "node", format: "esm", outExtension: { ".js": ".mjs" },
    jsx: "automatic", jsxImportSource: "preact", logLevel: "warning",
  });
  const done = spawnSync(process.execPath, ["--test", ...names.map((n) => join(out, n.replace(/ts$/, "mjs")))], { stdio: "inherit" });
  process.exitCode = done.status ?? 1;
} finally {
  rmSync(out, { recursive: true, force: true });
}
