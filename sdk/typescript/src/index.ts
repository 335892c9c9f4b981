/**
 * The client of Ringfence: leases with fencing tokens, renewed for you, and your work told in time that one is lost.
 *
 * ```ts
 * const client = new Client({ urls: ["http://10.0.0.1:7400", "http://10.0.0.2:7400"] });
 * await client.using("accounts/42", { ttl: 15_000 }, async (lease, signal) => {
 *   await fetch(storage, { method: "PUT", headers: lease.headers(), body, signal });
 * });
 * await client.close();
 * ```
 *
 * @module
 */
export { Client, type Closed, type LeadOptions, type Work } from "./client.js";
export type { Clock } from "./clock.js";
export {
  ClosedError,
  type ErrorKind,
  HeldError,
  InvalidError,
  type LossReason,
  LostError,
  RejectedError,
  RingfenceError,
  StaleError,
  TimedOutError,
  UnauthorizedError,
  UnavailableError,
  UnknownError,
} from "./errors.js";
export type { Hooks, LeaseView } from "./hooks.js";
export type { FencingHeaders, Lease } from "./lease.js";
export type { State } from "./lifetime.js";
export type { CallOptions, Claim, ClientOptions, Keys, LockOptions } from "./options.js";
export type { WarningCode } from "./warn.js";
export type { Holder, Problem } from "./wire.js";
