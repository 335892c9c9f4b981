/**
 * The connections of a client: established, and the node's certificate verified, before a request gets one.
 *
 * A client has only so many for calls and waits, whatever happens: each has a place from before it is established until it is closed, also if
 * nobody waits for it any more. One that is idle makes room for another. Renewals and probes have connections of their own.
 */
import { Agent, type ClientRequest, type ClientRequestArgs } from "node:http";
import { isIP, type Socket } from "node:net";
import { connect as connectTls, type PeerCertificate, type SecureContext, type TLSSocket } from "node:tls";
import type { Target } from "./dial.js";
import type { Stop } from "./stop.js";
import { limit } from "./timers.js";
import { type Turn, Turns } from "./turns.js";

/** How long connecting may take. */
export const CONNECT_MS = 1_000;
/** How many connections a client has, beside those of renewals and probes. */
const MOST = 64;

/** How to encrypt connections. */
export interface Encryption {
  /** Makes it anew once its files have changed. */
  readonly context: () => SecureContext;
  /** Whether the client was given the authority that signs the nodes' certificates. */
  readonly hasOwnAuthority: boolean;
  readonly credential: string | undefined;
}

/** The places that the connections of a client have. */
export class Places {
  /** Those whose connections need one. */
  readonly all = new Set<Connections>();
  readonly #turns = new Turns(MOST);

  /** How many connections are about to give theirs up. */
  #leaving = 0;

  /** Whether a connection that is not in use is to give its place up. */
  get needRoom(): boolean {
    return this.#turns.waiting > this.#leaving;
  }

  /** This one does. */
  leaves(socket: Socket): void {
    this.#leaving += 1;
    socket.once("close", () => {
      this.#leaving -= 1;
    });
    socket.destroy();
  }

  /** Waits for a place, for at most this time, and not after the request is `gone`. */
  async take(withinMs: number, gone: Stop): Promise<Turn> {
    const turn = this.#turns.ask();
    if (turn.isReady) {
      return turn;
    }
    const idle = this.needRoom ? this.#idle() : undefined;
    if (idle !== undefined) {
      this.leaves(idle);
    }
    return await new Promise((resolve, reject) => {
      const fail = (error: unknown) => {
        clear();
        ignore();
        turn.end();
        reject(error);
      };
      const clear = limit(withinMs, () => fail(new NoPlace()));
      const ignore = gone.listen(fail);
      turn.whenReady(() => {
        clear();
        ignore();
        resolve(turn);
      });
    });
  }

  /** A connection that is not in use. One that is closed is still listed for a while. */
  #idle(): Socket | undefined {
    for (const { freeSockets } of this.all) {
      for (const socket of Object.values(freeSockets).flat()) {
        if (socket?.destroyed === false) {
          return socket;
        }
      }
    }
    return undefined;
  }
}

/** Why there is no connection, if the node has nothing to do with that. */
export class NoPlace extends Error {
  constructor() {
    super(`all ${MOST} connections of this client are in use`);
  }
}

/** What a request wants of a new connection. */
export interface Wanted {
  /** How long it waits for a place. */
  readonly withinMs: number;
  /** Stops once nobody waits for its response any more. */
  readonly gone: Stop;
  /** Called when the connection has a place, and connecting begins. */
  readonly begin: () => void;
}

/** The agent passes on the options of the request, `wanted` among them. */
export type ConnectionArgs = ClientRequestArgs & { readonly wanted: Wanted };

/** Connections to one node. A request gets one only once it is established, and the node's certificate verified. */
export class Connections extends Agent {
  readonly #target: Target;
  readonly #encryption: Encryption | undefined;
  readonly #places: Places | undefined;

  /** `places`: where each connection needs one, if so. */
  constructor(target: Target, encryption: Encryption | undefined, places?: Places) {
    super({ keepAlive: true, maxFreeSockets: MOST, scheduling: "lifo" });
    this.#target = target;
    this.#encryption = encryption;
    this.#places = places;
    places?.all.add(this);
  }

  override createConnection(
    { wanted }: ConnectionArgs,
    connected?: (error: Error | null, socket: Socket) => void,
  ): undefined {
    // Node always gives the callback. After an error it does not look at the socket.
    const fail = connected as ((error: Error) => void) | undefined;
    this.#connect(wanted).then((socket) => connected?.(null, socket), fail);
  }

  async #connect({ withinMs, gone, begin }: Wanted): Promise<Socket> {
    const place = await this.#places?.take(withinMs, gone);
    try {
      gone.throwIfStopped();
      begin();
      const raw = await this.#target.connect(CONNECT_MS);
      raw.once("close", () => place?.end());
      return this.#encryption === undefined ? raw : await shakeHands(raw, this.#target.host, this.#encryption);
    } catch (error) {
      place?.end();
      throw error;
    }
  }

  // Node asks whether it returns true, and closes the connection otherwise; its type says that it returns nothing.
  override keepSocketAlive(socket: Socket): boolean {
    if (this.#places?.needRoom) {
      this.#places.leaves(socket);
      return false;
    }
    const isKept = super.keepSocketAlive(socket) as unknown as boolean;
    if (isKept) {
      // A response that nobody asked for must not become that to the next request.
      socket.on("data", destroy);
    }
    return isKept;
  }

  override reuseSocket(socket: Socket, request: ClientRequest): void {
    socket.off("data", destroy);
    super.reuseSocket(socket, request);
  }
}

/** The TCP connection below each TLS connection: only that can be reset. */
const BELOW = new WeakMap<Socket, Socket>();

function shakeHands(raw: Socket, host: string, encryption: Encryption): Promise<Socket> {
  return new Promise((resolve, reject) => {
    let clear = () => {};
    const fail = (error: Error) => {
      clear();
      raw.destroy();
      reject(error);
    };
    raw.on("error", fail);
    let secured: TLSSocket;
    let shown: PeerCertificate | undefined;
    try {
      secured = connectTls({
        socket: raw,
        host,
        secureContext: encryption.context(),
        // Whatever the environment says.
        rejectUnauthorized: true,
        ALPNProtocols: ["http/1.1"],
        ...(isIP(host) === 0 ? { servername: host } : {}),
      });
    } catch (error) {
      fail(error as Error);
      return;
    }
    clear = limit(CONNECT_MS, () => {
      secured.destroy();
      fail(new Error(`no handshake of TLS within ${CONNECT_MS} ms`));
    });
    // Node verifies when it is told so, too, and then the certificate is gone.
    secured.prependOnceListener("secure", () => {
      shown = secured.getPeerCertificate();
    });
    secured.on("error", (error: NodeJS.ErrnoException) => {
      fail(isOfCertificate(error) ? new Refused(error, shown) : error);
    });
    secured.once("secureConnect", () => {
      clear();
      BELOW.set(secured, raw);
      resolve(secured);
    });
  });
}

function destroy(this: Socket): void {
  this.destroy();
}

/** Ends a connection whose response is not wanted any more. What the kernel has not delivered yet is taken back. */
export function reset(socket: Socket): void {
  (BELOW.get(socket) ?? socket).resetAndDestroy();
}

/** Whether a connection failed because the node's certificate is not trusted. */
export function isRefused(error: Error): boolean {
  return error instanceof Refused;
}

/** Why the node's certificate is not trusted. */
class Refused extends Error {
  constructor({ code, message }: NodeJS.ErrnoException, shown: PeerCertificate | undefined) {
    const one = (name: string | string[] | undefined) => [name ?? "?"].flat().join();
    const which =
      shown?.subject === undefined
        ? ""
        : ` (of ${one(shown.subject.CN ?? shown.subject.O)}, signed by ${one(shown.issuer.CN ?? shown.issuer.O)}, valid from ${shown.valid_from} to ${shown.valid_to})`;
    const hint = /SELF_SIGNED|ISSUER|VERIFY_LEAF/.test(code ?? "") ? ". `ca` names the file of its authority" : "";
    super(`the node's certificate${which} is refused: ${message}${hint}`);
  }
}

/** Whether a handshake failed because the node's certificate is not trusted, as OpenSSL or Node name that. */
function isOfCertificate({ code = "" }: NodeJS.ErrnoException): boolean {
  return /^(CERT_|UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|HOSTNAME_MISMATCH|INVALID_(CA|PURPOSE)|ERR_TLS_CERT_)/.test(code);
}
