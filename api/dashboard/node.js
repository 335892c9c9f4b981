// How the node that serves this page is, and through it the cluster: asked every two seconds, whatever is looked at.

import { access } from "./access.js";
import { call, pause, reason } from "./api.js";

const EVERY_MS = 2000;
const WITHIN_MS = 4000;

/** The node, which tells `change` when there is news. */
export class Node extends EventTarget {
  /** What it answered last to `GET /v1/cluster`. */
  view = null;
  /** Whether it answers. */
  answers = true;
  /** Why it refused the last read, if it did. */
  refusal = null;
  #now_ms = 0;
  #looked_ms = 0;

  /** Asks for ever, but not while nobody looks. */
  async run() {
    for (;;) {
      if (!document.hidden) await this.ask();
      await pause(EVERY_MS);
    }
  }

  async ask() {
    const observes = access.mayWithCluster("observe");
    const answer = await call("GET", observes ? "v1/cluster" : "readyz", { within_ms: WITHIN_MS });
    this.now();
    if (!observes) {
      this.view = null;
      this.answers = answer.status !== 0;
      this.refusal = this.answers && answer.status !== 200 ? reason(answer) : null;
      this.dispatchEvent(new Event("change"));
      return;
    }
    if (answer.status === 200) {
      // Another cluster has taken the place of the one that was: nothing that this page knows is of it.
      if (this.view && this.view.cluster_id !== answer.body.cluster_id) location.reload();
      this.view = answer.body;
    }
    this.answers = answer.status !== 0;
    // A node that has not joined a cluster yet refuses everything.
    if (answer.status !== 200 && this.answers) this.refusal = reason(answer);
    else if (this.refusal && (await call("GET", "readyz", { within_ms: WITHIN_MS })).status === 200) this.refusal = null;
    this.dispatchEvent(new Event("change"));
  }

  /**
   * Reads what a path gives, at first as it stands in the cluster. While that cannot be read, `isFirst` takes what this
   * node has itself, without times: old is better than nothing.
   */
  async read(path, isFirst, signal) {
    if (!isFirst || this.goesOn) {
      const answer = await call("GET", path, { signal });
      this.#note(answer);
      if (!isFirst || answer.status < 500) return answer;
    }
    return call("GET", `${path}${path.includes("?") ? "&" : "?"}consistency=local`, { signal });
  }

  /** Takes note of how a read through the cluster went. */
  #note(answer) {
    const refusal = answer.status >= 500 ? reason(answer) : null;
    if (answer.status === 0 || refusal === this.refusal) return;
    this.now();
    this.refusal = refusal;
    this.dispatchEvent(new Event("change"));
  }

  /** Whether the cluster, seen from here, goes on: what it does not know it cannot count down. */
  get goesOn() {
    return this.answers && this.refusal === null && this.view?.leader !== null;
  }

  /** The clock by which times are counted down: it stands still while the cluster's does. */
  now() {
    const looked_ms = performance.now();
    if (this.goesOn) this.#now_ms += looked_ms - this.#looked_ms;
    this.#looked_ms = looked_ms;
    return this.#now_ms;
  }

  /** The other members, with the URLs of their own pages where they are known. */
  get others() {
    const { members = {}, node_id } = this.view ?? {};
    return Object.entries(members).filter(([id]) => Number(id) !== node_id).map(([id, { url }]) => ({ id, url: web(url) }));
  }
}

/** A URL that may be followed: what a member says of itself is not trusted to be one. */
export function web(url) {
  return url && /^https?:\/\//.test(url) ? url : null;
}
