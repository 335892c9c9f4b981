/** What a fake cluster answers, as a node would. */

/** What a node answers: a status, and a body. */
export interface Result {
  readonly status: number;
  readonly body?: object;
}

/** How a lease has ended. */
export type End = "released" | "expired" | "revoked" | "abandoned" | "timed-out";

/** To who asks for a lease that has ended. */
export function gone(end: End): Result {
  return end === "timed-out"
    ? problem("wait-timeout", 409, "the wait ended before the keys were free: use a new lease_id")
    : problem("lease-gone", 410, `the lease has ended (${end}): use a new lease_id`, { reason: end });
}

/** What a node answers if it does not do it. */
export function problem(name: string, status: number, detail: string, more: object = {}): Result {
  return { status, body: { type: `urn:ringfence:problem:${name}`, title: name, status, detail, ...more } };
}
