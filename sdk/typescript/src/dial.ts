/**
 * TCP connections to a host by name.
 *
 * A name server may be slow, or hang, and a name may have addresses that lead nowhere. So a lookup is apart from connecting: it goes on
 * when its caller gives up, at most one per name, and the last good addresses are used at once while another lookup renews them. All
 * addresses are tried, 250 ms apart, without giving up the earlier ones (RFC 8305), the one that was of use last first.
 */
import { lookup } from "node:dns";
import { connect, isIP, type Socket } from "node:net";
import { limit } from "./timers.js";

/** How long the next address waits for the one before it. */
const STAGGER_MS = 250;
/** How long addresses are used without another lookup. */
const FRESH_MS = 1_000;

export class Target {
  readonly host: string;
  readonly port: number;
  #addresses: string[];
  #lookedUpAt = Number.NEGATIVE_INFINITY;
  #lookup: Promise<void> | undefined;
  /** The address that the last connection used. */
  #last: string | undefined;
  /** Addresses whose last connection brought nothing. */
  readonly #distrusted = new Set<string>();

  constructor(host: string, port: number) {
    this.host = host;
    this.port = port;
    this.#addresses = isIP(host) === 0 ? [] : [host];
  }

  /** Whether a connection needs no lookup first. */
  get isResolved(): boolean {
    return this.#addresses.length > 0;
  }

  /** Looks the name up, unless a lookup is under way or its addresses are fresh. Fails if there is no address then. */
  async resolve(): Promise<void> {
    if (isIP(this.host) !== 0 || performance.now() - this.#lookedUpAt < FRESH_MS) {
      return;
    }
    this.#lookup ??= new Promise<void>((resolve, reject) => {
      lookup(this.host, { all: true, verbatim: true }, (error, found) => {
        this.#lookup = undefined;
        if (error === null && found.length > 0) {
          this.#lookedUpAt = performance.now();
          this.#addresses = found.map(({ address }) => address);
        }
        if (this.isResolved) {
          resolve();
        } else {
          reject(new Error(`${this.host} was not resolved: ${error?.message ?? "it has no address"}`));
        }
      });
    });
    await this.#lookup;
  }

  /** The last connection brought nothing: other addresses are tried first next time, since the process at its address may hang. */
  distrust(): void {
    if (this.#last !== undefined) {
      this.#distrusted.add(this.#last);
      this.#last = undefined;
    }
    if (this.#addresses.every((address) => this.#distrusted.has(address))) {
      this.#distrusted.clear();
    }
  }

  /** A connection to the first address that accepts one, within this time. */
  connect(withinMs: number): Promise<Socket> {
    // Ends whenever it ends. It tells the next connection.
    this.resolve().catch(() => undefined);
    const rank = (address: string) => (address === this.#last ? 0 : this.#distrusted.has(address) ? 2 : 1);
    const addresses = [...this.#addresses].sort((a, b) => rank(a) - rank(b));
    if (addresses.length === 0) {
      return Promise.reject(new Error(`${this.host} is not resolved yet`));
    }
    return race(addresses, this.port, withinMs).then(([socket, address]) => {
      this.#last = address;
      return socket;
    });
  }
}

function race(addresses: readonly string[], port: number, withinMs: number): Promise<[Socket, string]> {
  return new Promise((resolve, reject) => {
    const sockets = new Set<Socket>();
    let next = 0;
    let stagger: NodeJS.Timeout | undefined;
    const end = (winner?: Socket) => {
      clear();
      clearTimeout(stagger);
      for (const socket of sockets) {
        if (socket !== winner) {
          socket.destroy();
        }
      }
      sockets.clear();
    };
    const clear = limit(withinMs, () => {
      end();
      reject(new Error(`not connected to ${addresses.join(", ")} within ${Math.round(withinMs)} ms`));
    });
    const begin = () => {
      clearTimeout(stagger);
      const address = addresses[next];
      if (address === undefined) {
        return;
      }
      next += 1;
      const socket = connect({ host: address, port, noDelay: true, keepAlive: true, keepAliveInitialDelay: 1_000 });
      sockets.add(socket);
      socket.once("connect", () => {
        if (sockets.has(socket)) {
          end(socket);
          resolve([socket, address]);
        }
      });
      // It stays, so that no error is ever without a listener.
      socket.on("error", (error) => {
        if (!sockets.delete(socket)) {
          return;
        }
        if (sockets.size === 0 && next === addresses.length) {
          end();
          reject(error);
        } else {
          begin();
        }
      });
      stagger = setTimeout(begin, STAGGER_MS);
    };
    begin();
  });
}
