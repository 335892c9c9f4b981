/** Runs what the README says. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Cluster } from "./support/cluster.js";

const run = promisify(execFile);
const SDK = fileURLToPath(new URL("../..", import.meta.url));

function blocks(text: string, language: string): string[] {
  return [...text.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\`$`, "gms"))].map(([, block]) => block ?? "");
}

test("the README's commands install the package, and its examples print what they say", async () => {
  await using cluster = await Cluster.start();
  const readme = readFileSync(join(SDK, "README.md"), "utf8");
  const dir = mkdtempSync(join(tmpdir(), "ringfence-ts-"));
  try {
    // The clone is this one, with its dependencies installed.
    const [install = ""] = blocks(readme, "sh");
    assert.ok(install.includes("npm ci && npm pack"));
    const script = install
      .replace("npm ci && npm pack", `npm pack --silent --ignore-scripts --pack-destination ${dir} "${SDK}"`)
      .replace("ringfence/sdk/typescript &&", ". &&")
      .replace("./ringfence/sdk/typescript/", "--offline --no-audit --no-fund ./");
    writeFileSync(join(dir, "package.json"), "{}");
    await run("sh", ["-ec", script], { cwd: dir });

    const example = blocks(readme, "js").join("\n");
    const urls = ["7401", "7402", "7403"].map((port) => `http://localhost:${port}`);
    const own = urls.reduce((text, url, n) => text.replace(url, cluster.urls[n] ?? ""), example);
    assert.ok(!own.includes("localhost"));
    writeFileSync(join(dir, "example.mjs"), own);
    const { stdout, stderr } = await run(process.execPath, ["example.mjs"], { cwd: dir });
    const expected = [...example.matchAll(/^\/\/> (.*)$/gm)].map(([, line]) => line);
    assert.deepEqual(stdout.trimEnd().split("\n"), expected);
    assert.equal(stderr, "");
    // What the package brings along.
    await run(
      process.execPath,
      [
        "--input-type=module",
        "-e",
        'import { readFileSync } from "node:fs"; readFileSync("node_modules/ringfence/dist/src/postgres.sql")',
      ],
      { cwd: dir },
    );
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});

test("what a resolver without `exports` finds, as that of CommonJS in TypeScript 5, is the same", () => {
  const { main, types, typesVersions, exports } = JSON.parse(readFileSync(join(SDK, "package.json"), "utf8"));
  assert.deepEqual([types, main], [exports["."].types, exports["."].default]);
  for (const [path, files] of Object.entries<{ types: string }>(exports).slice(1)) {
    assert.deepEqual(typesVersions["*"][path.replace("./", "")], [files.types], path);
  }
});
