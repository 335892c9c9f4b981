// The keys that are held or waited for, in the order of the node, as they were read and changed since.
//
// A listing is read in pages. Where each page began is kept, so that just what stands on the screen can be read again:
// what a page says replaces all that was known between its ends, but for what a watch has told meanwhile. The table is
// known up to some key, or to the end of the listing, and never has more than so many keys: the first.

import { dated } from "./bar.js";

/** How long a key that became free stays in the list, where somebody looks at it. */
const FAREWELL_MS = 3000;

/** Where the first page begins. */
export const START = { last: "", cursor: null };

export class KeyTable {
  /** All keys, sorted. */
  keys = [];
  #most;
  #isWished;
  #entries = new Map();
  /** The places where pages begin: after `last`, by `cursor`. */
  #marks = [START];
  /** Up to which key the listing is known; `null`: to its end. */
  #to = "";
  /** The newest revision that a watch told of. */
  #told = 0;
  #leaving = new Set();

  /** At most so many keys, and only those that are wished for: of others a watch tells, too. */
  constructor(most, isWished = () => true) {
    this.#most = most;
    this.#isWished = isWished;
  }

  /** Whether the listing is known to its end. */
  get complete() {
    return this.#to === null;
  }

  /** What is known of a key of the table. */
  entry(key) {
    return this.#entries.get(key);
  }

  /** Where `key` stands, or would. */
  place(key) {
    let [low, high] = [0, this.keys.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (order(this.keys[middle], key) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The last place before `key` where a page can begin. */
  mark(key) {
    return this.#marks.findLast((mark) => mark.last === "" || order(mark.last, key) < 0);
  }

  /**
   * Takes the page that began at `mark`. Gives the mark of the next, or `null`. `isSeen` tells of which keys the end is
   * to be shown.
   */
  take(mark, page, now_ms, isSeen) {
    const last = page.next === null ? null : lastOf(page.next);
    const [from, to] = [mark.last === "" ? 0 : this.#above(mark.last), last === null ? this.keys.length : this.#above(last)];
    // All of a page is of one view; where it has no keys, of one that is no older than the first page's.
    const revision = page.keys[0]?.revision ?? page.revision;
    const isGone = (key) => revision < this.#told && !this.#isBeyond(key) && !this.#entries.has(key);
    const views = page.keys.filter((view) => !isGone(view.key));
    const named = new Set(views.map((view) => view.key));
    const kept = this.keys.slice(from, to).filter((key) => {
      if (named.has(key)) return false;
      const entry = this.#entries.get(key);
      if (entry.ended || entry.told > revision) return true;
      if (isSeen(key)) this.#end(entry, "ended", now_ms);
      else this.#entries.delete(key);
      return Boolean(entry.ended);
    });
    for (const view of views) this.#read(view, now_ms);
    const keys = [...views.map((view) => view.key), ...kept];
    if (kept.length) keys.sort(order);
    this.keys = [...this.keys.slice(0, from), ...keys, ...this.keys.slice(to)];

    const between = (other) =>
      other.last === "" || order(other.last, mark.last) <= 0 || (last !== null && order(other.last, last) > 0);
    this.#marks = this.#marks.filter(between);
    const next = last === null ? null : { last, cursor: page.next };
    if (next) {
      this.#marks.splice(this.#marks.findLastIndex((other) => other.last === "" || order(other.last, last) < 0) + 1, 0, next);
    }
    if (last === null || this.#isBeyond(last)) this.#to = last;
    this.#bound();
    return next;
  }

  /** Lets go of all that stands after `last`. */
  cut(last) {
    for (const key of this.keys.splice(this.#above(last))) {
      this.#leaving.delete(this.#entries.get(key));
      this.#entries.delete(key);
    }
    this.#marks = this.#marks.filter((mark) => order(mark.last, last) <= 0);
    if (!this.#isBeyond(last)) this.#to = last;
  }

  /** Takes a change that a watch told. Gives whether it changed a key in the list. */
  apply(change, now_ms, isSeen) {
    let touched = false;
    this.#told = Math.max(this.#told, change.revision);
    for (const { key, mode, limit = null, fence } of change.keys) {
      let entry = this.#entries.get(key);
      if (!entry) {
        if (this.#isBeyond(key) || (change.name !== "granted" && change.name !== "queued")) continue;
        entry = { key, fence, revision: 0, told: 0, holders: [], more_holders: 0, waiters: [], more_waiters: 0, born_ms: now_ms, ended: null };
        this.#entries.set(key, entry);
        this.keys.splice(this.place(key), 0, key);
      }
      if (change.revision <= entry.revision) continue;
      touched = true;
      Object.assign(entry, { revision: change.revision, told: change.revision, fence: fence ?? entry.fence, ended: null });
      this.#leaving.delete(entry);
      const { token, holder = null } = change;
      const leaves = entry.waiters.findIndex((waiter) => waiter.holder === holder);
      // The answer lists only the first of very many. One that joins later is counted with the rest.
      const leave = () => {
        if (leaves >= 0) entry.waiters = entry.waiters.toSpliced(leaves, 1);
        else if (entry.more_waiters > 0) entry.more_waiters -= 1;
      };
      switch (change.name) {
        case "granted":
          leave();
          if (entry.more_holders > 0) entry.more_holders += 1;
          else entry.holders = [...entry.holders, { token, holder, mode, limit, ttl_ms: null, ends_ms: null, metadata: {} }];
          break;
        case "queued":
          if (entry.more_waiters > 0) entry.more_waiters += 1;
          else entry.waiters = [...entry.waiters, { holder, mode, waited_ms: 0 }];
          break;
        case "left":
          leave();
          break;
        default: {
          const others = entry.holders.filter((other) => other.token !== token);
          if (others.length === entry.holders.length && entry.more_holders > 0) entry.more_holders -= 1;
          entry.holders = others;
        }
      }
      if (everybody(entry) === 0) this.#leave(entry, change.name, now_ms, isSeen);
      else if (!this.#isWished(entry)) this.#remove(entry);
    }
    this.#bound();
    return touched;
  }

  /** Lets go of the keys that were free for long enough. Gives whether there were any. */
  sweep(now_ms) {
    let swept = false;
    for (const entry of this.#leaving) {
      if (now_ms - entry.ended.at_ms < FAREWELL_MS) continue;
      this.#remove(entry);
      swept = true;
    }
    return swept;
  }

  #isBeyond(key) {
    return this.#to !== null && order(key, this.#to) > 0;
  }

  #bound() {
    if (this.keys.length > this.#most) this.cut(this.keys[this.#most - 1]);
  }

  #above(key) {
    const place = this.place(key);
    return this.keys[place] === key ? place + 1 : place;
  }

  #read(view, now_ms) {
    const known = this.#entries.get(view.key);
    // What a watch told may be newer than a page that was under way.
    if (known && known.revision > view.revision) return;
    const entry = known ?? { told: 0, born_ms: this.complete ? now_ms : -Infinity };
    this.#leaving.delete(entry);
    Object.assign(entry, view, { holders: dated(view.holders, now_ms), ended: null });
    this.#entries.set(view.key, entry);
  }

  #leave(entry, how, now_ms, isSeen) {
    if (isSeen(entry.key)) this.#end(entry, how, now_ms);
    else this.#remove(entry);
  }

  #end(entry, how, at_ms) {
    Object.assign(entry, { ended: { how, at_ms }, holders: [], waiters: [] });
    this.#leaving.add(entry);
  }

  #remove(entry) {
    this.#leaving.delete(entry);
    this.#entries.delete(entry.key);
    const place = this.place(entry.key);
    if (this.keys[place] === entry.key) this.keys.splice(place, 1);
  }
}

/**
 * The order of the node, which is that of UTF-8: characters beyond the first 65,536 come after all others, and not, as
 * the halves that JavaScript compares, before some.
 */
export function order(one, other) {
  const length = Math.min(one.length, other.length);
  for (let place = 0; place < length; place++) {
    const [a, b] = [one.charCodeAt(place), other.charCodeAt(place)];
    if (a !== b) return rank(a) - rank(b);
  }
  return one.length - other.length;
}

/** The last key that a page is about: where keys are searched for, it may not have been found. A cursor is `REVISION.KEY-IN-HEXADECIMAL`. */
function lastOf(cursor) {
  const pairs = cursor.slice(cursor.indexOf(".") + 1).match(/../g);
  return new TextDecoder().decode(Uint8Array.from(pairs, (pair) => parseInt(pair, 16)));
}

/** How many hold a key or wait for it. */
function everybody({ holders, more_holders = 0, waiters, more_waiters = 0 }) {
  return holders.length + more_holders + waiters.length + more_waiters;
}

function rank(unit) {
  return unit < 0xd800 ? unit : unit < 0xe000 ? unit + 0x2000 : unit - 0x800;
}
