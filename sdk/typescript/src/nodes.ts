/**
 * Which node to ask next.
 *
 * Every node takes every request, but followers forward it. So the client asks the node that the last response named as the leader, and
 * otherwise the one that responded last. It avoids a node that failed for a while: twice as long each time that it does not answer at all.
 *
 * A URL may lead to another cluster: a tunnel or a port mapping leads elsewhere. Two clusters grant the same key at once. So a client belongs
 * for ever to the cluster of its first definite response, and the response of another cluster is none. A node that gave one, or whose URL was
 * learned, which may lead nowhere, is used once it has *met* the client: it has answered a probe, and not for another cluster.
 */
import type { Clock } from "./clock.js";
import { type Encryption, Places } from "./connections.js";
import { InvalidError } from "./errors.js";
import { addressOf, Failure, Server } from "./server.js";
import { Turns } from "./turns.js";

/** How long a node that failed is avoided. Others may name it as the leader for about a second after its death. */
const AVOIDED_MS = 3_000;
/** How often that time doubles while the node does not answer. */
const DOUBLINGS = 5;
/** How long a call waits until the addresses of a node are known. */
const LOOKUP_MS = 15_000;
/** The most nodes that are remembered beyond the configured ones: a cluster has no more. */
const MAX_LEARNED = 16;

export class Node {
  readonly server: Server;
  readonly isConfigured: boolean;
  failedAt = Number.NEGATIVE_INFINITY;
  /** How many times in a row it did not answer. */
  silences = 0;
  /** Whether it has answered a probe since it was learned and failed, or answered for another cluster. */
  isMet: boolean;
  /** A probe that is under way. */
  meeting: Promise<void> | undefined;
  /** Whether its last outcome was definite. */
  isProven = false;

  constructor(server: Server, isConfigured: boolean) {
    this.server = server;
    this.isConfigured = isConfigured;
    this.isMet = isConfigured;
  }

  get isHealthy(): boolean {
    const doublings = Math.min(Math.max(this.silences - 1, 0), DOUBLINGS);
    return performance.now() - this.failedAt > AVOIDED_MS * 2 ** doublings;
  }

  get isUsable(): boolean {
    return this.isMet && this.isHealthy && this.server.target.isResolved;
  }

  /** Forgets its failures. */
  recovered(): void {
    this.failedAt = Number.NEGATIVE_INFINITY;
    this.silences = 0;
    this.isMet = true;
  }
}

export class Nodes {
  /** The configured nodes, then those learned from responses. */
  readonly #nodes: Node[];
  readonly #configured: number;
  readonly #encryption: Encryption | undefined;
  readonly #clock: Clock;
  #preferred: Node;
  #leader: Node | undefined;
  /** The leader's URL in the last response, and its node. */
  #named: readonly [string, Node] | undefined;
  /** The id of the client's cluster. */
  #cluster: string | undefined;
  /** Calls that are sent alone, and waits in the queue: with two requests of a batch at each of four nodes, they find a place for a connection. */
  readonly alone = new Turns(24);
  readonly waits = new Turns(32);
  readonly #places = new Places();

  constructor(urls: readonly string[], encryption: Encryption | undefined, clock: Clock) {
    this.#encryption = encryption;
    this.#clock = clock;
    this.#nodes = [];
    urls.forEach((url, index) => {
      const parsed = parseUrl(url, `urls[${index}]`, encryption !== undefined);
      if (this.#find(addressOf(parsed)) === undefined) {
        this.#add(parsed, true);
      }
    });
    const [first] = this.#nodes;
    if (first === undefined) {
      throw new InvalidError("urls", "a client needs the URL of at least one node");
    }
    this.#configured = this.#nodes.length;
    this.#preferred = first;
  }

  /** How many nodes are tried in turn. */
  get count(): number {
    return this.#configured;
  }

  get configured(): readonly Node[] {
    return this.#nodes.slice(0, this.#configured);
  }

  /** The node to ask: the preferred one unless it failed lately, else the configured one that failed longest ago. */
  get best(): Node {
    return this.#preferred.isUsable ? this.#preferred : this.#failedLongestAgo();
  }

  /** Whether another node is asked if the best one fails. */
  get hasAnother(): boolean {
    return this.#configured > 1 || this.best !== this.#nodes[0];
  }

  hasUsableBesides(node: Node): boolean {
    return this.#nodes.some((other) => other !== node && other.isUsable);
  }

  /** Waits until a node needs no lookup before a connection; `undefined` if one needs none now. If lookups fail, the next attempt says why. */
  resolve(): Promise<void> | undefined {
    return this.best.server.target.isResolved ? undefined : this.#resolve();
  }

  async #resolve(): Promise<void> {
    const lookups = this.#nodes.map((node) => node.server.target.resolve());
    let timer: NodeJS.Timeout | undefined;
    const timeout = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, LOOKUP_MS);
    });
    await Promise.race([Promise.any(lookups).catch(() => undefined), timeout]);
    clearTimeout(timer);
  }

  /**
   * Checks for which cluster a node has responded. If it is another than the client's, the response is none, and the failure says why. The
   * first response that is definite decides which cluster that is.
   */
  checkCluster(node: Node, cluster: string | undefined, isDefinite: boolean): Failure | undefined {
    if (cluster === undefined || cluster === this.#cluster) {
      return undefined;
    }
    if (this.#cluster === undefined) {
      this.#cluster = isDefinite ? cluster : undefined;
      return undefined;
    }
    node.isMet = false;
    const own = `this client belongs to cluster ${this.#cluster}: if that was replaced, make a new client`;
    return new Failure(false, `${node.server} answers for cluster ${cluster}, ${own}`);
  }

  /** Records a definite response, and the leader's URL in it. The leader, else this node, is preferred from now on. */
  responded(node: Node, leaderUrl: string | undefined): void {
    node.recovered();
    node.isProven = true;
    this.#leader = leaderUrl === undefined ? undefined : this.#learn(leaderUrl);
    const leader = this.#leader;
    this.#preferred = leader?.isMet ? leader : node;
    if (leader !== undefined && !leader.isMet && leader.isHealthy) {
      // Until it answers.
      leader.failedAt = performance.now();
      leader.silences += 1;
      // A leader that cannot be reached from here is not asked.
      this.meet(leader).catch(() => undefined);
    }
  }

  /** Records that a node gave no definite response. `silentSince`: when it was asked, if it gave none at all. */
  failed(node: Node, silentSince: number | undefined): void {
    // All that were sent before the first of them failed show one and the same outage.
    if (silentSince === undefined) {
      node.silences = 0;
    } else if (node.failedAt < silentSince) {
      node.silences += 1;
    }
    node.failedAt = performance.now();
    node.isMet &&= node.isConfigured;
    node.isProven = false;
  }

  /** Asks a node for a sign of life of the client's cluster. All that wait for one share it. */
  meet(node: Node): Promise<void> {
    node.meeting ??= this.#meet(node).finally(() => {
      node.meeting = undefined;
    });
    return node.meeting;
  }

  async #meet(node: Node): Promise<void> {
    const { cluster } = await node.server.probe();
    const stranger = this.checkCluster(node, cluster, false);
    if (stranger !== undefined) {
      throw stranger;
    }
    node.recovered();
    if (node === this.#leader) {
      this.#preferred = node;
    }
  }

  closeIdle(): void {
    for (const node of this.#nodes) {
      node.server.closeIdle();
    }
  }

  #failedLongestAgo(): Node {
    const rank = (node: Node) => [Number(!node.server.target.isResolved), node.failedAt] as const;
    return this.configured.reduce((best, node) => {
      const [a, b] = [rank(best), rank(node)];
      return b[0] < a[0] || (b[0] === a[0] && b[1] < a[1]) ? node : best;
    });
  }

  #find(address: string): Node | undefined {
    return this.#nodes.find((node) => node.server.address === address);
  }

  /**
   * The node at this URL, which may be new. With https, a new one is trusted only if the client was given the authority: any site has a
   * certificate that this system trusts.
   */
  #learn(text: string): Node | undefined {
    if (this.#named?.[0] === text) {
      return this.#named[1];
    }
    const node = this.#found(text);
    this.#named = node === undefined ? undefined : [text, node];
    return node;
  }

  #found(text: string): Node | undefined {
    const own = this.#encryption === undefined ? "http://" : "https://";
    let url: URL;
    try {
      url = parseUrl(text.replace(/^https?:\/\//, own), "", this.#encryption !== undefined);
    } catch {
      return undefined;
    }
    const known = this.#find(addressOf(url));
    const mayLearn = text.startsWith(own) && this.#encryption?.hasOwnAuthority !== false;
    if (known !== undefined || !mayLearn || this.#nodes.length >= this.#configured + MAX_LEARNED) {
      return known;
    }
    return this.#add(url, false);
  }

  #add(url: URL, isConfigured: boolean): Node {
    const node = new Node(new Server(url, this.#encryption, this.#clock, this.#places), isConfigured);
    // A call whose own time is over does not report a silent node, so the pulse does.
    node.server.pulse.onSilent = (since) => {
      if (node.isHealthy && this.hasUsableBesides(node)) {
        this.failed(node, since);
      }
    };
    this.#nodes.push(node);
    return node;
  }
}

function parseUrl(text: string, field: string, isEncrypted: boolean): URL {
  const shown = JSON.stringify(text);
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw new InvalidError(field, `${shown} is no URL`);
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") {
    throw new InvalidError(field, `${shown} does not begin with https:// or http://`);
  }
  if ((url.protocol === "https:") !== isEncrypted) {
    throw new InvalidError(
      field,
      isEncrypted
        ? `${shown} is plain: with TLS, all URLs begin with https://`
        : `${shown}: other URLs are plain, and all must be, or none`,
    );
  }
  if (url.username !== "" || url.password !== "" || url.pathname !== "/" || url.search !== "" || url.hash !== "") {
    throw new InvalidError(field, "a node's URL is of the form https://host:port");
  }
  return url;
}
