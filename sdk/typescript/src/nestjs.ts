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
 *     await storage(id, { headers: currentLease().headers(), signal: currentLease().signal });
 *   }
 * }
 * ```
 */
import { AsyncLocalStorage } from "node:async_hooks";
import { type DynamicModule, Inject, Module, type OnApplicationShutdown } from "@nestjs/common";
import { Client } from "./client.js";
import type { Lease } from "./lease.js";
import type { ClientOptions, Keys, LockOptions } from "./options.js";

/** Where `Fenced` has Nest put the client. */
const CLIENT = Symbol("ringfence");
const CURRENT = new AsyncLocalStorage<Lease>();

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

  /** Releases what is held, for at most 5 s. */
  async onApplicationShutdown(): Promise<void> {
    await this.#client.close();
  }
}
Module({})(RingfenceModule);
Inject(Client)(RingfenceModule, undefined, 0);

/**
 * Calls of the method work under a lease of their own: they wait their turn, and release. `keys` may follow from the arguments. A call whose lease is
 * lost fails with a `LostError` once the method has ended, unless that throws; `currentLease().signal` tells the method.
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
      return await client.using(wanted, options, (lease) => CURRENT.run(lease, () => method.apply(this, args)));
    };
    // What other decorators have said of the method.
    for (const name of Reflect.getMetadataKeys?.(method) ?? []) {
      Reflect.defineMetadata(name, Reflect.getMetadata(name, method), descriptor.value);
    }
  };
}

/** The lease of the innermost `Fenced` method that runs. */
export function currentLease(): Lease {
  const lease = CURRENT.getStore();
  if (lease === undefined) {
    throw new TypeError("no method with @Fenced runs");
  }
  return lease;
}
