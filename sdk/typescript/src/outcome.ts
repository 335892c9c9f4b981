/**
 * The outcome of one attempt. Nothing else interprets responses.
 *
 *     response                                       outcome     what follows
 *     2xx that reads as expected                     done        the end
 *     4xx with a `type` of Ringfence                 refused     the end
 *     429                                            limited     not done; the same node, once it says
 *     503 `unavailable`; nothing was sent            not done    repeat elsewhere
 *     504; a 3xx; a 4xx or 5xx that no node wrote;   ambiguous   repeat elsewhere
 *     an unreadable 2xx; no complete response
 */
import type { LossReason } from "./errors.js";
import type { Failure, Response } from "./server.js";
import { type Problem, readProblem } from "./wire.js";

export type Outcome<T> =
  | { readonly is: "done"; readonly value: T; readonly response: Response }
  | { readonly is: "refused"; readonly problem: Problem }
  | { readonly is: "limited"; readonly problem: Problem; readonly retryAfterMs: number }
  | { readonly is: "not-done"; readonly why: string }
  | { readonly is: "ambiguous"; readonly why: string };

/** How long to wait after a 429 that does not say. */
const RETRY_AFTER_MS = 1_000;
/** What no node asks for. */
const LONGEST_RETRY_AFTER_MS = 60_000;

/** `read` reads the body of a 2xx, and throws if it is not as expected. */
export function outcomeOf<T>(response: Response, read: (json: unknown, status: number) => T): Outcome<T> {
  const { status } = response;
  let json: unknown;
  try {
    json = response.json ?? (response.body === "" ? undefined : JSON.parse(response.body));
    if (status >= 200 && status < 300) {
      return { is: "done", value: read(json, status), response };
    }
  } catch (error) {
    return { is: "ambiguous", why: `unreadable ${status}: ${(error as Error).message}` };
  }
  const problem = readProblem(json, status);
  if (problem === undefined) {
    return { is: "ambiguous", why: `a ${status} that no node wrote` };
  }
  if (status === 429) {
    const retryAfterMs = Math.min(response.retryAfterMs ?? RETRY_AFTER_MS, LONGEST_RETRY_AFTER_MS);
    return { is: "limited", problem, retryAfterMs };
  }
  if (problem.name === "unavailable") {
    return { is: "not-done", why: problem.detail };
  }
  return status >= 400 && status < 500 ? { is: "refused", problem } : { is: "ambiguous", why: problem.detail };
}

/** The outcome if there was no response. */
export function outcomeWithout<T>(failure: Failure): Outcome<T> {
  return { is: failure.wasSent ? "ambiguous" : "not-done", why: failure.message };
}

/** Whether a problem says that something was not allowed, whatever it was. */
export function isDenial(problem: Problem): boolean {
  return problem.name === "unauthenticated" || problem.name === "forbidden";
}

/** The loss that a refusal reports, if it reports one. */
export function lossOf(problem: Problem): LossReason | undefined {
  switch (problem.name) {
    case "unknown-lease":
      return "forgotten";
    case "lease-gone":
      switch (problem.reason) {
        case "released":
        case "expired":
        case "revoked":
        case "abandoned":
          return problem.reason;
        default:
          return "forgotten";
      }
    default:
      return undefined;
  }
}
