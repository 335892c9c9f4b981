/** What a program is told that no call of it can be told. */

/**
 * What a warning is about. `RINGFENCE_RENEWAL`: the cluster refuses to renew leases. `RINGFENCE_DROPPED`: a lease was dropped without a release.
 * `RINGFENCE_LEAD`: the work of a leader failed after its lease was lost, or a campaign failed for now. `RINGFENCE_CLOSE`: what was not released
 * when the client was closed. `RINGFENCE_FILES`: files of TLS that changed cannot be used. `RINGFENCE_CALLBACK`: a function that the client
 * was given has failed. `RINGFENCE_QUEUE`: an acquire has been in the queue for some seconds.
 */
export type WarningCode =
  | "RINGFENCE_RENEWAL"
  | "RINGFENCE_DROPPED"
  | "RINGFENCE_LEAD"
  | "RINGFENCE_CLOSE"
  | "RINGFENCE_FILES"
  | "RINGFENCE_CALLBACK"
  | "RINGFENCE_QUEUE";

/** Tells a warning. It throws nothing. */
export type Warn = (code: WarningCode, message: string) => void;

/** Warns through `own`, or else as Node does. */
export function warner(own: ((code: WarningCode, message: string) => void) | undefined): Warn {
  const usual: Warn = (code, message) => process.emitWarning(message, { type: "RingfenceWarning", code });
  if (own === undefined) {
    return usual;
  }
  return (code, message) => {
    try {
      own(code, message);
    } catch (error) {
      usual(code, message);
      usual("RINGFENCE_CALLBACK", `onWarning has failed: ${textOf(error)}`);
    }
  };
}

/** What to say of anything that was thrown. */
export function textOf(error: unknown): string {
  return error instanceof Error ? `${error.name}: ${error.message}` : String(error);
}

/** Names keys, which somebody else may have chosen: no control character reaches a terminal. */
export function named(keys: readonly string[]): string {
  const shown = keys.slice(0, 3).map((key) => JSON.stringify(key));
  return keys.length > 3 ? `${shown.join(", ")} and ${keys.length - 3} more` : shown.join(", ");
}
