/** The guard in a real PostgreSQL, with the client `pg`. */
import assert from "node:assert/strict";
import { test } from "node:test";
import pg from "pg";
import { InvalidError, StaleError } from "../src/index.js";
import { guarded, install, touch } from "../src/pg.js";
import { Cluster } from "./support/cluster.js";
import { Postgres } from "./support/postgres.js";
import { failure } from "./support/until.js";

test("a stale writer is rejected, and so is one that claims nothing", async () => {
  await using cluster = await Cluster.start(1);
  await using client = cluster.client();
  await using postgres = await Postgres.start();
  const { pool } = postgres;
  const connection = await pool.connect();
  await install(connection);
  await install(connection);
  connection.release();
  await pool.query("CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)");
  await pool.query("INSERT INTO accounts VALUES (42, 100)");
  await pool.query("SELECT ringfence.protect('accounts', 'accounts/', 'id')");
  const balance = async () => (await pool.query("SELECT balance FROM accounts WHERE id = 42")).rows[0].balance;
  const add = (lease: Parameters<typeof guarded>[1], amount: number) =>
    guarded(pool, lease, (tx) => tx.query("UPDATE accounts SET balance = balance + $1 WHERE id = 42", [amount]));

  const paused = await client.acquire("accounts/42");
  await touch(pool, paused);
  await add(paused, 1);
  // It does not know that its lease ends, as a paused process would not.
  const body = JSON.stringify({ key: "accounts/42", token: paused.token });
  await fetch(`${cluster.urls[0]}/v1/revoke`, { method: "POST", body });
  const next = await client.acquire("accounts/42");
  await touch(pool, next);
  assert.equal(await balance(), 101);
  assert.equal(paused.state, "held");
  const stale = await failure(add(paused, 50), StaleError);
  assert.match(stale.message, /stale token/);
  await failure(touch(pool, paused), StaleError);
  await add(next, 10);
  assert.equal(await balance(), 111);

  await assert.rejects(pool.query("UPDATE accounts SET balance = 0"), { code: "RF428" });
  const wrong = new Error("the work failed");
  const work = guarded(pool, next, async (tx) => {
    await tx.query("UPDATE accounts SET balance = 0 WHERE id = 42");
    throw wrong;
  });
  assert.equal(await failure(work, Error), wrong);
  assert.equal(await balance(), 111, "it was rolled back");
  const swallowed = guarded(pool, next, (tx) => tx.query("UPDATE accounts SET balance = 'x'").catch(() => undefined));
  await assert.rejects(swallowed, /nothing was written/);
  // A connection that broke in a transaction is not used again, and ends no process.
  const broken = guarded(pool, next, async (tx) => {
    const { rows } = await tx.query("UPDATE accounts SET balance = 0 WHERE id = 42 RETURNING pg_backend_pid() AS pid");
    const ended = new Promise((resolve) => tx.once("end", resolve));
    await pool.query("SELECT pg_terminate_backend($1)", [rows[0].pid]);
    await ended;
  });
  await assert.rejects(broken);
  assert.equal(await balance(), 111);
  await next.release();
});

test("a program that knows of no token writes by the options of its connection", async () => {
  await using cluster = await Cluster.start(1);
  await using client = cluster.client();
  await using postgres = await Postgres.start();
  const connection = await postgres.pool.connect();
  await install(connection);
  connection.release();
  await postgres.pool.query("CREATE TABLE parts (id text PRIMARY KEY, n int NOT NULL)");
  await postgres.pool.query("SELECT ringfence.protect('parts', 'parts/', 'id', by_connection => true)");
  const { PGHOST: host, PGUSER: user, PGDATABASE: database } = postgres.environment;
  const insert = "INSERT INTO parts VALUES ('a, ''=%b', $1) ON CONFLICT (id) DO UPDATE SET n = $1";
  const lease = await client.acquire(["parts/a, '=%b", "parts/ä"]);
  const paused = new pg.Client({ host, user, database, options: lease.postgresOptions() });
  await paused.connect();
  await paused.query("CALL ringfence.touch_all()");
  await paused.query(insert, [1]);
  await paused.query("BEGIN");
  await paused.query(insert, [2]);
  await paused.query("COMMIT");
  const earlier = new pg.Pool({ host, user, database, options: lease.postgresOptions() });
  await earlier.query(insert, [3]);
  await lease.release();
  const newer = await client.acquire(["parts/ä", "parts/a, '=%b"]);
  const next = new pg.Pool({ host, user, database, options: newer.postgresOptions() });
  await next.query("CALL ringfence.touch_all()");
  for (const late of [paused, earlier]) {
    await assert.rejects(late.query(insert, [4]), { code: "RF412" });
  }
  await assert.rejects(postgres.pool.query(insert, [4]), { code: "RF428" });
  await next.query(insert, [5]);
  for (const db of [paused, earlier, next]) {
    await db.end();
  }
  const oldest = await client.acquire("parts/s", { shared: true });
  const younger = await client.acquire("parts/s", { shared: true });
  assert.ok(oldest.postgresOptions().endsWith(`=${oldest.token}`));
  assert.throws(() => younger.postgresOptions(), InvalidError);
});
