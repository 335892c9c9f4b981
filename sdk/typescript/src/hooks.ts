/** One interface for whoever counts, logs or traces what becomes of leases. */
import type { LossReason } from "./errors.js";
import { named, textOf, type Warn } from "./warn.js";

/** A lease, as hooks see it. Its id is a secret. */
export interface LeaseView {
  readonly keys: readonly string[];
  readonly token: number;
}

/** What a client tells of its leases. Each function is called by itself: one that fails stops nothing, and is a warning. */
export interface Hooks {
  /** An acquire has stood in the queue, for so many milliseconds, whatever came of it. */
  waited?(keys: readonly string[], ms: number): void;
  /** A lease was granted, so many milliseconds after it was asked for. */
  granted?(lease: LeaseView, ms: number): void;
  /** A lease was renewed. */
  renewed?(lease: LeaseView): void;
  /** A lease could not be renewed for now. */
  failed?(lease: LeaseView, why: string): void;
  /** A lease is lost. Its signal has aborted before. */
  lost?(lease: LeaseView, reason: LossReason): void;
  /** A lease was released: by its holder, by `close`, or since its handle was dropped. */
  released?(lease: LeaseView): void;
}

/** Calls a hook. It throws nothing. */
export type Tell = <Name extends keyof Hooks>(name: Name, ...args: Parameters<Required<Hooks>[Name]>) => void;

/** Calls these hooks. */
export function teller(hooks: Hooks, warn: Warn): Tell {
  return (name, ...args) => {
    const failed = (error: unknown) => {
      const [subject] = args;
      const keys = Array.isArray(subject) ? subject : (subject as LeaseView).keys;
      warn("RINGFENCE_CALLBACK", `the hook \`${name}\` has failed for ${named(keys)}: ${textOf(error)}`);
    };
    try {
      const hook = hooks[name] as ((...args: unknown[]) => unknown) | undefined;
      const result = hook?.apply(hooks, args);
      // It may be an async function all the same.
      if (result instanceof Promise) {
        result.catch(failed);
      }
    } catch (error) {
      failed(error);
    }
  };
}
