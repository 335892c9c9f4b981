/**
 * A module of NestJS, and methods that work under a lease.
 *
 * ```ts
 * @Module({ imports: [RingfenceModule.forRoot({ urls: ["http://localhost:7401"] })], providers: [Reports] })
 * class AppModule {}
 *
 * @Injectable()
 * class Reports {
 *   @Fenced((id: string) => `reports/${id}`)
 *   async write(id: string) {
 *     await storage(id, { headers: currentLease().headers(), signal: currentSignal() });
 *   }
 * }
 * ```
 *
 * When the application ends, calls that run are told by their signal, and keep their leases until they have ended, for at most 5 s. Then the client
 * is closed. A call may still work while somebody else gets its key: then only the token protects what it writes. Nest tells of a signal, such as
 * SIGTERM, only after `app.enableShutdownHooks()`.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import { type DynamicModule, Inject, Module, type OnApplicationShutdown } from "@nestjs/common";
import { Client, stoppable } from "./client.js";
import { ClosedError } from "./errors.js";
import type { Lease } from "./lease.js";
import type { ClientOptions, Keys, LockOptions } from "./options.js";

/** Where `Fenced` has Nest put the client. */
const CLIENT = Symbol("ringfence");
const CURRENT = new AsyncLocalStorage<Running>();
/** How long the end of an application waits for calls that run. */
const ENDS_WITHIN_MS = 5_000;

/** A call of a `Fenced` method. */
interface Running {
  /** Nothing once it has ended: what it has left behind has no lease. */
  work: { readonly lease: Lease; readonly signal: AbortSignal } | undefined;
}

/** The calls of `Fenced` methods with a client, and what ends them. */
interface Calls {
  readonly running: Set<Promise<unknown>>;
  readonly stop: AbortController;
}

const CALLS = new WeakMap<Client, Calls>();

function callsOf(client: Client): Calls {
  const calls = CALLS.get(client) ?? { running: new Set(), stop: new AbortController() };
  CALLS.set(client, calls);
  return calls;
}

/** Provides one `Client` for the whole application. It is closed when the application is, after the servers. */
export class RingfenceModule implements OnApplicationShutdown {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** A client with these options, or one that was made. */
  static forRoot(options: ClientOptions | Client): DynamicModule {
    const useFactory = () => (options instanceof Client ? options : new Client(options));
    return {
      module: RingfenceModule,
      global: true,
      providers: [{ provide: Client, useFactory }],
      exports: [Client],
    };
  }

  /** Tells the calls that run, and waits for them for at most 5 s. Then it releases what is held, for at most 5 s. */
  async onApplicationShutdown(): Promise<void> {
    const { running, stop } = callsOf(this.#client);
    stop.abort(new ClosedError());
    let timer: NodeJS.Timeout | undefined;
    const end = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, ENDS_WITHIN_MS);
    });
    await Promise.race([Promise.allSettled(running), end]);
    clearTimeout(timer);
    await this.#client.close();
  }
}
Module({})(RingfenceModule);
Inject(Client)(RingfenceModule, undefined, 0);

/**
 * Calls of the method work under a lease of their own: they wait their turn, and release. `keys` may follow from the arguments. A call whose lease is
 * lost fails with a `LostError` once the method has ended, unless that throws; `currentSignal()` tells the method.
 */
// biome-ignore lint/suspicious/noExplicitAny: whatever the method takes.
export function Fenced<Args extends any[]>(keys: Keys | ((...args: Args) => Keys), options: LockOptions = {}) {
  return <T>(
    target: object,
    _: string | symbol,
    descriptor: TypedPropertyDescriptor<(...args: Args) => Promise<T>>,
  ): void => {
    const method = descriptor.value;
    if (method === undefined) {
      throw new TypeError("@Fenced is for methods");
    }
    Inject(Client)(target, CLIENT);
    descriptor.value = async function (this: { [CLIENT]?: Client }, ...args: Args): Promise<T> {
      const client = this[CLIENT];
      if (client === undefined) {
        throw new TypeError("@Fenced needs the RingfenceModule, and an object that Nest has made");
      }
      const wanted = typeof keys === "function" ? keys(...args) : keys;
      const { running, stop } = callsOf(client);
      const signal = options.signal === undefined ? stop.signal : AbortSignal.any([options.signal, stop.signal]);
      const work = (lease: Lease) =>
        stoppable(lease, (lease, signal) => run(lease, signal, () => method.apply(this, args)), stop.signal);
      const call = client.using(wanted, { ...options, signal }, work);
      running.add(call);
      try {
        return await call;
      } finally {
        running.delete(call);
      }
    };
    Object.defineProperty(descriptor.value, "name", { value: method.name, configurable: true });
    // What other decorators have said of the method.
    for (const name of Reflect.getMetadataKeys?.(method) ?? []) {
      Reflect.defineMetadata(name, Reflect.getMetadata(name, method), descriptor.value);
    }
  };
}

async function run<T>(lease: Lease, signal: AbortSignal, method: () => Promise<T>): Promise<T> {
  const running: Running = { work: { lease, signal } };
  try {
    return await CURRENT.run(running, method);
  } finally {
    running.work = undefined;
  }
}

/** The lease of the innermost `Fenced` method that runs. */
export function currentLease(): Lease {
  return current().lease;
}

/** Aborts when that lease is lost, and when the application ends. */
export function currentSignal(): AbortSignal {
  return current().signal;
}

function current() {
  const work = CURRENT.getStore()?.work;
  if (work === undefined) {
    throw new TypeError("no method with @Fenced runs");
  }
  return work;
}
