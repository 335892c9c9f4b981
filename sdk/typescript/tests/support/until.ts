/** Waits for conditions. */

/** Far more than anything takes on a busy machine. */
export const SOON_MS = 60_000;

/** The first result of `look` that is not `undefined` or `false`. Fails if there is none within a minute. */
export async function until<T>(
  what: string,
  look: () => T | undefined | false | Promise<T | undefined | false>,
): Promise<T> {
  const end = performance.now() + SOON_MS;
  for (;;) {
    const found = await look();
    if (found !== undefined && found !== false) {
      return found;
    }
    if (performance.now() > end) {
      throw new Error(`not within a minute: ${what}`);
    }
    await pause(10);
  }
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** The error that `promise` is rejected with. */
export async function failure<T extends Error>(
  promise: Promise<unknown>,
  kind: abstract new (...args: never[]) => T,
): Promise<T> {
  try {
    await promise;
  } catch (error) {
    if (error instanceof kind) {
      return error;
    }
    throw error;
  }
  throw new Error(`it did not fail with ${kind.name}`);
}
