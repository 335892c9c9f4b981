// The view of one key: who holds it, who waits, what happened to it lately.

import { access } from "./access.js";
import { keyPath, pause, reason, until } from "./api.js";
import { bar, dated, draw } from "./bar.js";
import { el, facts, put, table } from "./dom.js";
import { label, mode } from "./key_list.js";
import { others, revoke } from "./revoke.js";
import { count, span, several, time, visible } from "./text.js";
import { follow } from "./watch.js";

const EVERY_MS = 2000;
/** How many revisions back the page first looks for changes of this key. */
const LOOK_BACK = 16_384;
/** The last revision at which a watch was refused, and the one from which the node had all changes then. Those between may be skipped. */
let refused = { revision: 0, oldest: null };
/** Changes that are shown. */
const MOST = 100;

/** The label that a holder or waiter gave itself, and the principal that it is. */
function named({ holder, by }) {
  return el("div", {},
    el("span", { class: holder ? "label" : "label unnamed", text: label(holder) }),
    by ? el("div", { class: "note by", text: `by ${by}`, title: "The principal that the nodes have authenticated" }) : null);
}

export class KeyView {
  watches = true;

  constructor(page, key) {
    this.page = page;
    this.key = key;
    this.title = visible(key);
    this.view = null;
    this.answered_ms = 0;
    this.bars = [];
    this.history = [];
    this.heading = el("h1", { class: "key-name", text: visible(key), tabindex: "-1" });
    this.state = el("div", { class: "state" }, el("p", { text: "Reading the key …" }));
    this.list = el("div", { class: "history" });
    this.element = el("section", { class: "one-key" },
      el("p", { class: "path" }, el("a", { href: "#/locks", text: "Locks" }), ...ancestors(key)),
      this.heading, this.state,
      el("h2", { text: "Recent history" }), this.list);
    this.#tell();
    until(page.signal, () => follow({
      prefix: key,
      load: (gone, oldest) => this.#load(gone, oldest),
      changed: (changes) => this.#changed(changes),
      live: (is) => this.#live(is),
      signal: page.signal,
    }));
    until(page.signal, async () => {
      for (;;) {
        this.wake = new AbortController();
        await pause(EVERY_MS, AbortSignal.any([page.signal, this.wake.signal])).catch(() => page.signal.throwIfAborted());
        if (!document.hidden) await this.#read();
      }
    });
  }

  get isShowing() {
    return this.view !== null;
  }

  focus() {
    this.heading.focus({ preventScroll: true });
  }

  tick(now_ms) {
    for (const { bar, holder } of this.bars) draw(bar, holder, now_ms);
    for (const { element, waited_ms } of this.waits ?? []) put(element, time(waited_ms + now_ms - this.answered_ms));
  }

  async #load(gone, oldest) {
    if (!await this.#read(!this.view)) return null;
    this.history = [];
    this.loaded = this.view.revision;
    if (gone > 0) refused = { revision: this.after, oldest };
    const back = Math.max(1, this.view.revision - Math.floor(LOOK_BACK / 4 ** gone));
    // A busy node may drop the oldest before it is asked for. Then the page asks for less each time.
    const isOldest = gone === 1 || (gone === 0 && back <= refused.revision);
    this.after = (isOldest ? refused.oldest : null) ?? back;
    return this.after;
  }

  async #read(isFirst = false) {
    if (!access.may("read", this.key)) {
      this.state.replaceChildren(el("p", { class: "failure", text: `${access.isAnonymous ? "Sign in: without, you may not" : "You may not"} read this key.` }));
      return false;
    }
    const answer = await this.page.node.read(keyPath(this.key), isFirst, this.page.signal);
    if (answer.status !== 200) {
      if (!this.view) this.state.replaceChildren(el("p", { class: "failure", text: reason(answer) }));
      return false;
    }
    if (this.view && answer.body.revision < this.view.revision) return true;
    this.answered_ms = this.page.node.now();
    this.view = { ...answer.body, holders: dated(answer.body.holders, this.answered_ms) };
    this.#draw();
    return true;
  }

  #changed(changes) {
    const ours = changes.filter((change) => change.keys.some(({ key }) => key === this.key));
    if (!ours.length) return;
    const now = new Date();
    const told = ours.map((change) => ({ ...change, seen: change.revision > this.loaded ? now : null }));
    this.history = [...told.reverse(), ...this.history].slice(0, MOST);
    this.#tell();
    if (told[0].revision > this.view.revision) this.wake?.abort();
  }

  #live(is) {
    this.isLive = is;
    this.page.live(is);
    this.#tell();
  }

  /** Draws holders and queue, if they are others than before: whoever is about to press a button keeps it. */
  #draw() {
    const { fence, holders, waiters, more_holders: moreHolders = 0, more_waiters: moreWaiters = 0 } = this.view;
    const shape = JSON.stringify([
      fence, moreHolders, moreWaiters, holders.map(({ token, ttl_ms, metadata }) => [token, ttl_ms, metadata]), waiters.map(({ by, holder, mode }) => [by, holder, mode]),
    ]);
    if (shape === this.shape) {
      holders.forEach((holder, place) => { this.bars[place].holder = holder; });
      waiters.forEach(({ waited_ms }, place) => { this.waits[place].waited_ms = waited_ms; });
      return;
    }
    this.shape = shape;
    this.bars = holders.map((holder) => ({ bar: bar(), holder }));
    this.waits = waiters.map(({ waited_ms }) => ({ element: el("span"), waited_ms }));
    const focused = this.state.contains(document.activeElement) ? document.activeElement.dataset.token : null;
    this.state.replaceChildren(
      facts(
        ["Fence", el("span", { class: "number", text: String(fence) }), "The lowest token that may still be alive"],
        ["Held by", holders.length ? several(holders.length + moreHolders, "lease") : "nobody"],
        ["Waiting", count(waiters.length + moreWaiters)],
      ),
      el("p", { class: "note", text: `Every token below ${fence} is dead for good: storage may reject it without asking.` }),
      el("h2", { text: "Holders" }),
      holders.length ? el("div", {}, this.#holders(holders), rest(moreHolders)) : el("p", { class: "none", text: "Nobody holds this key." }),
      el("h2", { text: "Queue" }),
      waiters.length ? this.#waiters(waiters, moreWaiters) : el("p", { class: "none", text: "Nobody waits for it." }),
    );
    this.tick(this.page.node.now());
    if (focused) (this.state.querySelector(`button[data-token="${focused}"]`) ?? this.heading).focus();
  }

  #holders(holders) {
    return table("Holders", [
      { name: "Holder" }, { name: "Token", class: "number" }, { name: "Mode" }, { name: "Time left" },
      { name: "Time-to-live", class: "number" }, { name: "Other keys", title: "Of the same lease: they end together" }, { name: "Metadata" },
      { name: "", class: "act" },
    ], holders.map((holder, place) => [
      named(holder),
      String(holder.token),
      mode(holder),
      this.bars[place].bar.element,
      span(holder.ttl_ms),
      others(holder) ?? el("span", { class: "unnamed", text: "none" }),
      metadata(holder.metadata),
      el("button", {
        type: "button", class: "danger", text: "Revoke …", "data-token": String(holder.token),
        disabled: !access.may("revoke", this.key), title: access.may("revoke", this.key) ? null : "This needs the right revoke on all keys of the lease",
        "aria-label": `Revoke the lease with token ${holder.token}`,
        onclick: () => revoke(this.key, holder, {
          left: (left) => draw(left, this.view.holders.find(({ token }) => token === holder.token) ?? null, this.page.node.now()),
          done: () => this.wake?.abort(),
          signal: this.page.signal,
        }),
      }),
    ]));
  }

  #waiters(waiters, more) {
    const shown = waiters.slice(0, MOST);
    const rows = shown.map((waiter, place) => [
      String(place + 1),
      named(waiter),
      mode(waiter),
      this.waits[place].element,
    ]);
    const columns = [{ name: "Place", class: "number" }, { name: "Holder" }, { name: "Mode" }, { name: "Has waited", class: "number" }];
    return el("div", {}, table("Queue", columns, rows), rest(waiters.length - shown.length + more));
  }

  #tell() {
    if (this.history.length === 0) {
      this.list.replaceChildren(el("p", { class: "none", text: this.isLive ?
        "Nothing happened to this key among the latest changes of the cluster." :
        "It comes with the watch, which is not connected." }));
      return;
    }
    this.list.replaceChildren(table("Recent history", [
      { name: "Change", class: "number", title: "The revision" }, { name: "What" }, { name: "Holder" },
      { name: "Token", class: "number" }, { name: "Fence after it", class: "number" }, { name: "Seen here", class: "number" },
    ], this.history.map((change) => [
      String(change.revision),
      change.reason && change.reason !== change.name ? `${change.name} (${change.reason})` : change.name,
      named(change),
      change.token ? String(change.token) : "–",
      String(change.keys.find(({ key }) => key === this.key)?.fence ?? change.fence ?? "–"),
      change.seen ? change.seen.toLocaleTimeString("en-GB") : "earlier",
    ])));
  }
}

/** Links to the lists of what stands beside a key. */
function ancestors(key) {
  const parts = key.split("/").slice(0, -1);
  return parts.flatMap((part, place) => {
    const prefix = parts.slice(0, place + 1).join("/") + "/";
    return [" / ", el("a", { href: `#/locks?prefix=${encodeURIComponent(prefix)}`, text: visible(part) })];
  });
}

/** That there are others, which the node has only counted. */
function rest(others) {
  return others > 0 ? el("p", { class: "note", text: `and ${count(others)} more` }) : null;
}

function metadata(entries) {
  const pairs = Object.entries(entries ?? {});
  if (!pairs.length) return el("span", { class: "unnamed", text: "none" });
  return el("ul", { class: "metadata" }, ...pairs.map(([name, value]) =>
    el("li", {}, el("span", { class: "unnamed", text: visible(name) + " " }), visible(value))));
}
