// Which keys are wished for, and in which order they are shown.

/** The orders, and how they are called. */
export const ORDERS = { key: "by name", waiters: "most waiters first", held: "held longest first" };

/** Whether not all keys are wished for. */
export function isNarrow({ find, contended }) {
  return find !== "" || contended;
}

/** Whether a key is, by what stands in it or its holders and waiters: as the node decides (`find`, `contended`). */
export function isWished({ key, holders, waiters, more_waiters = 0 }, { find, contended }) {
  if (contended && waiters.length + more_waiters === 0) return false;
  return key.includes(find) || [...holders, ...waiters].some(({ holder, by }) => holder?.includes(find) || by?.includes(find));
}

/** The keys of a table in an order. */
export class Selection {
  /** As of the last `update`. */
  keys = [];
  #table;
  #sort;
  /** Where each key stands; `null` where it is as in the table. */
  #places = null;

  constructor(table, sort) {
    this.#table = table;
    this.#sort = sort;
  }

  /** Whether all that there is to show is known. */
  get complete() {
    return this.#table.complete;
  }

  /** After the table has changed. */
  update() {
    this.keys = this.#table.keys;
    if (this.#sort === "key") return;
    const entries = this.keys.map((key) => this.#table.entry(key));
    // Tokens only rise: the smallest is of the lease that began first. What nobody holds comes last.
    entries.sort(this.#sort === "waiters" ? (one, other) => waiting(other) - waiting(one) : (one, other) => oldest(one) - oldest(other));
    this.keys = entries.map((entry) => entry.key);
    this.#places = new Map(this.keys.map((key, place) => [key, place]));
  }

  at(index) {
    return this.#table.entry(this.keys[index]);
  }

  /** Where `key` stands; where it does not, -1 or where it would. */
  place(key) {
    return this.#places ? this.#places.get(key) ?? -1 : this.#table.place(key);
  }
}

function waiting({ waiters, more_waiters = 0 }) {
  return waiters.length + more_waiters;
}

function oldest({ holders }) {
  return holders[0]?.token ?? Number.MAX_SAFE_INTEGER;
}
