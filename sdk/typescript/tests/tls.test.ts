/** TLS, certificates and credentials. */
import assert from "node:assert/strict";
import { generateKeyPairSync, X509Certificate } from "node:crypto";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Client, InvalidError, UnauthorizedError, UnavailableError } from "../src/index.js";
import { Adapter } from "./support/adapter.js";
import { Cluster } from "./support/cluster.js";
import { grant, Played, response } from "./support/played.js";
import { ringfence, runs } from "./support/program.js";
import { failure, until } from "./support/until.js";

const dir = mkdtempSync(join(tmpdir(), "ringfence-ts-"));
const at = (name: string) => join(dir, name);
const SERVER = () => ({ cert: readFileSync(at("node-1.pem")), key: readFileSync(at("node-1.key")) });

before(() => {
  runs(ringfence(), ["cert", "authorities"], dir);
  runs(ringfence(), ["cert", "client", "--name", "billing"], dir);
  mkdirSync(at("other"));
  runs(ringfence(), ["cert", "authorities"], at("other"));
  runs(ringfence(), ["cert", "client", "--name", "billing"], at("other"));
});
after(() => rmSync(dir, { recursive: true, force: true }));

/** One node with TLS, and more options. */
async function start(...options: string[]): Promise<Cluster> {
  const own = ["--tls-certificate", at("node-1.pem"), "--tls-key", at("node-1.key"), ...options];
  const cluster = new Cluster(1, () => own, "https");
  runs(
    ringfence(),
    ["cert", "node", "--force", "--id", "1", "--hosts", `${new URL(cluster.urls[0] ?? "").hostname},127.0.0.1`],
    dir,
  );
  for (const { program } of cluster.nodes) {
    program.start();
  }
  return cluster;
}

/** A lease from a node that is starting. */
function acquires(client: Client) {
  return until("the node is ready", () =>
    client.acquire("billing/1", { wait: 0 }).catch((error) => {
      if (error instanceof UnavailableError) {
        return undefined;
      }
      throw error;
    }),
  );
}

test("a certificate shows who the client is, and one that replaces it is used if it can be", async () => {
  await using cluster = await start("--tls-client-authority", at("authority.pem"));
  const [ca, cert, key] = [at("authority.pem"), at("own.pem"), at("own.key")];
  const take = (from: string) => {
    copyFileSync(join(from, "client-billing.pem"), cert);
    copyFileSync(join(from, "client-billing.key"), key);
  };
  take(dir);
  await using client = cluster.client({ ca, cert, key });
  await (await acquires(client)).release();
  take(at("other"));
  await using later = cluster.client({ ca, cert, key });
  await failure(later.acquire("billing/1", { wait: 0 }), UnavailableError);
  take(dir);
  await (await later.acquire("billing/1")).release();
  await using nobody = cluster.client({ ca });
  const error = await failure(nobody.acquire("billing/1", { wait: 0 }), UnavailableError);
  assert.match(error.message, /certificate/i, "nothing was done, and it says why");
  await using last = cluster.client({ ca, cert, key });
  writeFileSync(key, "half a fi");
  await (await last.acquire("billing/1")).release();
});

test("files that OpenSSL would take and no handshake could use are named", () => {
  runs(ringfence(), ["cert", "client", "--name", "wages"], dir);
  const [ca, cert, key] = [at("authority.pem"), at("client-billing.pem"), at("client-billing.key")];
  const file = (name: string, content: string | Buffer) => {
    writeFileSync(at(name), content);
    return at(name);
  };
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const encrypted = privateKey.export({ type: "pkcs8", format: "pem", cipher: "aes-256-cbc", passphrase: "secret" });
  const broken = readFileSync(ca, "latin1").replace(/\n.{20}/, "\n////////////////////");
  const cases: [object, string, string][] = [
    [{ ca: file("empty.pem", "") }, "ca", "empty.pem"],
    [{ ca: key }, "ca", "client-billing.key"],
    [{ ca: file("der.pem", new X509Certificate(readFileSync(ca)).raw) }, "ca", "der.pem"],
    [{ ca: file("broken.pem", readFileSync(ca, "latin1") + broken) }, "ca", "certificate 2"],
    [{ ca, cert: key, key }, "cert", "client-billing.key"],
    [{ ca, cert, key: cert }, "key", "client-billing.pem"],
    [{ ca, cert, key: at("client-wages.key") }, "key", "client-wages.key"],
    [{ ca, cert, key: file("public.key", publicKey.export({ type: "spki", format: "pem" })) }, "key", "public.key"],
    [{ ca, cert, key: file("encrypted.key", encrypted) }, "key", "encrypted.key"],
  ];
  for (const [files, field, named] of cases) {
    assert.throws(
      () => new Client({ urls: ["https://localhost:1"], ...files }),
      (error) => error instanceof InvalidError && error.field === field && error.message.includes(named),
      named,
    );
  }
  const bundle = file("bundle.pem", `text before\r\n${readFileSync(at("other/authority.pem"))}\r\n${readFileSync(ca)}`);
  new Client({ urls: ["https://localhost:1"], ca: bundle, cert, key });
});

test("a certificate that is not trusted is named at once, and no node is asked again", async () => {
  runs(ringfence(), ["cert", "node", "--force", "--id", "1", "--hosts", "127.0.0.1"], dir);
  await using one = await Played.start(() => undefined, SERVER());
  await using other = await Played.start(() => undefined, SERVER());
  const urls = [one.url, other.url];
  const named = urls.map((url) => url.replace("127.0.0.1", "localhost"));
  const cases: [string[], string, RegExp][] = [
    [
      urls,
      at("other/authority.pem"),
      /certificate \(of ringfence node 1, signed by ringfence, valid from .* is refused: .*`ca`/,
    ],
    [named, at("authority.pem"), /certificate \(of .* is refused: .*localhost/],
  ];
  for (const [urls, ca, expected] of cases) {
    const before = one.connections + other.connections;
    await using client = new Client({ urls, ca });
    assert.match((await failure(client.acquire("a"), UnavailableError)).message, expected);
    await failure(client.adopt("0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10"), UnavailableError);
    await until("two calls have asked each node once", () => one.connections + other.connections - before === 4);
  }
  assert.deepEqual([...one.received, ...other.received], []);
});

test("a credential shows who the client is", async () => {
  const digest = runs(ringfence(), ["access", "credential", "--file", at("billing.credential")], dir).trim();
  writeFileSync(
    at("access.toml"),
    `[principals.billing]\ncredentials = ["${digest}"]\nallow = [{ keys = "billing/", may = ["acquire"] }]\n`,
  );
  await using cluster = await start("--access", at("access.toml"));
  const ca = at("authority.pem");
  const credential = readFileSync(at("billing.credential"), "utf8").trim();
  await using client = cluster.client({ ca, credential });
  await (await acquires(client)).release();
  await failure(client.acquire("wages/1", { wait: 0 }), UnauthorizedError);
  await using nobody = cluster.client({ ca });
  await failure(nobody.acquire("billing/1", { wait: 0 }), UnauthorizedError);
});

test("a credential goes to verified nodes only, whatever the environment says", async () => {
  runs(ringfence(), ["cert", "node", "--force", "--id", "1", "--hosts", "127.0.0.1"], dir);
  await using played = await Played.start(() => undefined, SERVER());
  await using adapter = new Adapter({ NODE_TLS_REJECT_UNAUTHORIZED: "0" });
  await adapter.ok("open", { client: "C", urls: [played.url], credential: "secret", clock: "real" });
  const { error } = await adapter.call("try", { client: "C", lease: "L", keys: ["a"], ttl_ms: 15_000 });
  assert.equal(error.kind, "Unavailable");
  assert.match(error.message, /certificate/);
  assert.deepEqual(played.received, []);
  await using trusting = new Client({ urls: [played.url], ca: at("authority.pem"), credential: "secret" });
  await (await trusting.acquire("a")).release();
  assert.match(played.of("PUT")[0]?.headers ?? "", /authorization: Bearer secret/i);
  const named = new Client({
    urls: [played.url.replace("127.0.0.1", "localhost")],
    ca: at("authority.pem"),
    credential: "secret",
  });
  assert.match(
    (await failure(named.acquire("a", { wait: 0 }), UnavailableError)).message,
    /localhost/,
    "it is for another host",
  );
});

test("a leader that only an answer names is trusted only by the authority that the client was given", async () => {
  runs(ringfence(), ["cert", "node", "--force", "--id", "1", "--hosts", "127.0.0.1"], dir);
  await using leader = await Played.start(() => undefined, SERVER());
  const names = { "ringfence-leader": leader.url };
  await using follower = await Played.start(
    (request) => (request.method === "PUT" ? response(201, grant(request), names) : undefined),
    SERVER(),
  );
  const urls = [follower.url];
  await using adapter = new Adapter({ NODE_EXTRA_CA_CERTS: at("authority.pem") });
  await adapter.ok("open", { client: "C", urls, credential: "secret", clock: "real" });
  for (const lease of ["L", "M", "N"]) {
    await adapter.ok("try", { client: "C", lease, keys: [lease], ttl_ms: 15_000 });
  }
  assert.equal(leader.connections, 0, "any site has a certificate that this system trusts");
  await using client = new Client({ urls, ca: at("authority.pem"), credential: "secret" });
  const lease = await client.acquire("a");
  await until("the leader was met", () => leader.received.length > 0);
  await lease.release();
});

test("an abandoned request over TLS takes its connection along", async () => {
  runs(ringfence(), ["cert", "node", "--force", "--id", "1", "--hosts", "127.0.0.1"], dir);
  await using played = await Played.start(({ method }) => (method === "PUT" ? () => {} : undefined), SERVER());
  await using client = new Client({ urls: [played.url], ca: at("authority.pem") });
  const controller = new AbortController();
  const acquire = failure(client.acquire("a", { signal: controller.signal }), DOMException);
  const put = await played.nth("PUT", 0);
  controller.abort();
  await acquire;
  await until("it is closed", () => put.socket.destroyed);
  await played.nth("DELETE", 0);
});
