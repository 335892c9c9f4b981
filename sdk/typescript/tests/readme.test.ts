/** Runs what the README and guards.md say: each example alone, as it stands there. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { install } from "../src/pg.js";
import { Cluster } from "./support/cluster.js";
import { Played } from "./support/played.js";
import { Postgres } from "./support/postgres.js";
import { Redis } from "./support/redis.js";
import { failure } from "./support/until.js";

const run = promisify(execFile);
const SDK = fileURLToPath(new URL("../..", import.meta.url));
const EXAMPLES = join(SDK, "dist", "examples");
const TSC = [
  "--module",
  "nodenext",
  "--target",
  "es2022",
  "--strict",
  "--skipLibCheck",
  "--types",
  "node",
  "--ignoreConfig",
];

function read(name: string): string {
  return readFileSync(join(SDK, name), "utf8");
}

function blocks(text: string, language: string): string[] {
  return [...text.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\`$`, "gms"))].map(([, block]) => block ?? "");
}

/** An example for these services, which are elsewhere here. */
function placed(example: string, cluster: Cluster, redis?: Redis): string {
  const urls = ["7401", "7402", "7403"].map((port) => `http://localhost:${port}`);
  const own = urls.reduce((text, url, n) => text.replace(url, cluster.urls[n] ?? ""), example);
  const placed = own.replace('host: "localhost"', `host: "${redis?.host}"`);
  assert.ok(!placed.includes("localhost"), placed);
  return placed;
}

/** What an example has to print. */
function expected(example: string): string {
  return [...example.matchAll(/^ *\/\/> (.*)$/gm)].map(([, line]) => `${line}\n`).join("");
}

test("the README's commands install the package", async () => {
  await using cluster = await Cluster.start();
  const readme = read("README.md");
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
    const [example = ""] = blocks(readme, "js");
    writeFileSync(join(dir, "example.mjs"), placed(example, cluster));
    const { stdout, stderr } = await run(process.execPath, ["example.mjs"], { cwd: dir });
    assert.deepEqual([stdout, stderr], [expected(example), ""]);
    // What the package brings along.
    for (const file of ["dist/src/postgres.sql", "LICENSE", "README.md"]) {
      assert.ok(readFileSync(join(dir, "node_modules", "ringfence", file)).length > 0);
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});

/** Runs an example as a program of its own, which has to say what it says that it prints. */
async function runs(name: string, example: string, language: string, env: Record<string, string>): Promise<void> {
  const file = join(EXAMPLES, `${name}.${language === "ts" ? "mts" : "mjs"}`);
  writeFileSync(file, example);
  if (language === "ts") {
    const decorators = ["--experimentalDecorators", "--emitDecoratorMetadata"];
    await run(process.execPath, [join(SDK, "node_modules/typescript/bin/tsc"), ...TSC, ...decorators, file]);
  }
  const options = { cwd: EXAMPLES, env: { ...process.env, ...env } };
  const { stdout, stderr } = await run(process.execPath, [file.replace(/mts$/, "mjs")], options);
  if (!example.includes('"node:test"')) {
    assert.deepEqual([stdout, stderr], [expected(example), ""]);
  }
}

/** Makes the client of Prisma. The engine that Prisma would download for it is for migrations. */
async function generate(): Promise<void> {
  const schema = join(EXAMPLES, "schema.prisma");
  writeFileSync(schema, blocks(read("guards.md"), "prisma").join(""));
  const env = { ...process.env, PRISMA_SCHEMA_ENGINE_BINARY: process.execPath, CHECKPOINT_DISABLE: "1" };
  await run(join(SDK, "node_modules", ".bin", "prisma"), ["generate", "--schema", schema], { env });
}

/** The libraries that an example is about. */
function subject(example: string): string {
  return /(?<=from ")(?!node:|ringfence")[^"]+/.exec(example)?.[0] ?? "the client alone";
}

describe("each example of the README runs alone, as it stands there", () => {
  const services: { cluster?: Cluster; redis?: Redis; postgres?: Postgres } = {};
  before(async () => {
    mkdirSync(EXAMPLES, { recursive: true });
    services.cluster = await Cluster.start(3);
    services.redis = await Redis.start();
    services.postgres = await Postgres.start();
  });
  after(async () => {
    for (const service of Object.values(services)) {
      await service[Symbol.asyncDispose]();
    }
  });
  for (const language of ["js", "ts"]) {
    for (const [index, example] of blocks(read("README.md"), language).entries()) {
      test(`${language} ${index + 1}: ${subject(example)}`, async () => {
        const { cluster, redis, postgres } = services as Required<typeof services>;
        await runs(`readme-${language}-${index}`, placed(example, cluster, redis), language, postgres.environment);
      });
    }
  }
});

describe("each example of the guard runs alone, and one that is stale is rejected", () => {
  mkdirSync(EXAMPLES, { recursive: true });
  for (const [index, example] of blocks(read("guards.md"), "js").entries()) {
    test(subject(example), async () => {
      await using cluster = await Cluster.start(1);
      await using redis = await Redis.start();
      await using postgres = await Postgres.start();
      const { pool, environment } = postgres;
      const connection = await pool.connect();
      await install(connection);
      connection.release();
      await pool.query("CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)");
      await pool.query("INSERT INTO accounts VALUES (42, 100)");
      await pool.query("SELECT ringfence.protect('accounts', 'accounts/', 'id')");
      const own = placed(example, cluster, redis);
      if (own.includes("@prisma/client")) {
        await generate();
      }
      await runs(`guards-${index}`, own, "js", environment);
      // As if a newer holder had been there.
      await pool.query("SELECT ringfence.reset('accounts/42', 9007199254740991)");
      for (const stale of [own, own.replace(/^.*touch\(guard.*\n/m, "")]) {
        const error = await failure(runs(`guards-${index}-stale`, stale, "js", environment), Error);
        assert.match(error.message, /StaleError: .*stale token: of accounts\/42/s);
      }
      assert.equal((await pool.query("SELECT balance FROM accounts")).rows[0].balance, 105);
    });
  }
});

test("proxies are ignored", async () => {
  await using cluster = await Cluster.start(3);
  await using proxy = await Played.start(() => undefined);
  const [example = ""] = blocks(read("README.md"), "js");
  const names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"].flatMap((name) => [name, name.toLowerCase()]);
  const env = { ...Object.fromEntries(names.map((name) => [name, proxy.url])), NO_PROXY: "", NODE_USE_ENV_PROXY: "1" };
  await runs("proxies", placed(example, cluster), "js", env);
  assert.equal(proxy.connections, 0);
});

test("with the SDK of OpenTelemetry, the example for it makes spans", async () => {
  await using cluster = await Cluster.start(1);
  const example = blocks(read("README.md"), "js").find((text) => text.includes("@opentelemetry/api")) ?? "";
  mkdirSync(EXAMPLES, { recursive: true });
  const begin = `
    import { trace as api } from "@opentelemetry/api";
    import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
    const exporter = new InMemorySpanExporter();
    api.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));`;
  const end = `
    for (const { name, attributes, status } of exporter.getFinishedSpans()) {
      console.log(name, attributes["ringfence.keys"].join(), attributes["ringfence.token"] > 0, status.code);
    }`;
  const file = join(EXAMPLES, "opentelemetry.mjs");
  writeFileSync(file, begin + example.replace("http://localhost:7401", cluster.urls[0] ?? "") + end);
  const { stdout } = await run(process.execPath, [file]);
  assert.equal(stdout, "lease acquire accounts/42 true 0\nlease hold accounts/42 true 0\n");
});

test("what a resolver without `exports` finds, as that of CommonJS in TypeScript 5, is the same", () => {
  const { main, types, typesVersions, exports } = JSON.parse(read("package.json"));
  assert.deepEqual([types, main], [exports["."].types, exports["."].default]);
  for (const [path, files] of Object.entries<{ types: string }>(exports).slice(1)) {
    assert.deepEqual(typesVersions["*"][path.replace("./", "")], [files.types], path);
  }
});
