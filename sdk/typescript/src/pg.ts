/**
 * The guard for PostgreSQL, with the client `pg`. The rule itself is in SQL, which `install` runs, once per
 * database; `SELECT ringfence.protect('accounts', 'accounts/', 'id')` then refuses writes without a claim.
 */
import { readFileSync } from "node:fs";
import type { Pool, PoolClient } from "pg";
import { StaleError } from "./errors.js";
import type { Lease } from "./lease.js";

/** What is needed of a `pg.Client`, `pg.PoolClient` or `pg.Pool`. */
export interface Queryable {
  // biome-ignore lint/suspicious/noExplicitAny: as in `pg`, so that its own types fit.
  query(text: string, values?: any[]): Promise<unknown>;
}

/** The SQLSTATE of a stale token. */
const STALE = "RF412";

/** Creates the schema `ringfence`, or updates it and keeps all numbers. The client must be one connection, not a pool. */
export async function install(client: Queryable): Promise<void> {
  const sql = readFileSync(new URL("postgres.sql", import.meta.url), "utf8");
  // A string of several statements is one transaction.
  await client.query(sql);
}

/** Tells the guard the lease's token: call it before the first read. Throws a `StaleError` if a newer holder was there. */
export async function touch(client: Queryable, lease: Lease, key?: string): Promise<void> {
  await show(client, "touch", lease, key);
}

/** Guards the later writes of the transaction that is open on this client. Throws a `StaleError` if a newer holder was there. */
export async function claim(client: Queryable, lease: Lease, key?: string): Promise<void> {
  await show(client, "claim", lease, key);
}

/**
 * Runs `work` in a transaction that begins with a claim, so that all its writes are guarded: they land before a newer holder reads, or not at
 * all. A read after the claim, in `work`, needs no touch. The key may be left out if the lease has only one.
 */
export async function guarded<T>(
  pool: Pool,
  lease: Lease,
  work: (client: PoolClient) => Promise<T>,
  key?: string,
): Promise<T> {
  lease.throwIfLost();
  const client = await pool.connect();
  // A connection that breaks shows in the next statement. Without a listener, it would end the process.
  const broken = () => {};
  client.on("error", broken);
  let isUsable = false;
  try {
    await client.query("BEGIN");
    await claim(client, lease, key);
    const result = await work(client);
    const { command } = await client.query("COMMIT");
    if (command !== "COMMIT") {
      // PostgreSQL reports that as a success.
      throw new Error("nothing was written: a statement of the transaction failed, and its error was not passed on");
    }
    isUsable = true;
    return result;
  } catch (error) {
    isUsable = await client.query("ROLLBACK").then(
      () => true,
      () => false,
    );
    throw stale(error);
  } finally {
    // One that may still be in a transaction is not used again.
    client.release(!isUsable);
    if (isUsable) {
      client.off("error", broken);
    }
  }
}

async function show(client: Queryable, name: "touch" | "claim", lease: Lease, key: string | undefined): Promise<void> {
  const headers = lease.headers(key);
  try {
    await client.query(`SELECT ringfence.${name}($1, $2, $3)`, [
      decodeURIComponent(headers["Ringfence-Key"]),
      headers["Ringfence-Token"],
      headers["Ringfence-Fence"],
    ]);
  } catch (error) {
    throw stale(error);
  }
}

function stale(error: unknown): unknown {
  return isStale(error) ? new StaleError((error as Error).message, { cause: error }) : error;
}

/** Whether it is the guard's refusal, perhaps within an error of a library that uses `pg`, as Drizzle or Prisma. */
function isStale(error: unknown, depth = 0): boolean {
  if (typeof error !== "object" || error === null || depth > 4) {
    return false;
  }
  const { code, originalCode, cause, meta, driverAdapterError } = error as Record<string, unknown>;
  return (
    [code, originalCode].includes(STALE) || [cause, meta, driverAdapterError].some((inner) => isStale(inner, depth + 1))
  );
}
