/**
 * What is under way, in the order in which it began. Whatever is added can be taken out again, at no cost.
 *
 * A `Set` or a `Map` will not do where calls come and go. It makes a new table every few changes, and each table refers to the next one. So the first
 * table that has become old keeps all later ones, with all that was in them, until the next full garbage collection.
 */

/** Where something is in a bag. */
export class Link<T> {
  readonly value: T;
  /** @internal */
  before: Link<T> | undefined;
  /** @internal */
  after: Link<T> | undefined;
  #bag: Bag<T> | undefined;

  /** @internal */
  constructor(bag: Bag<T>, value: T, before: Link<T> | undefined) {
    this.value = value;
    this.#bag = bag;
    this.before = before;
  }

  /** Takes the value out of the bag. A repeat does nothing. */
  remove(): void {
    const bag = this.#bag;
    this.#bag = undefined;
    bag?.unlink(this);
  }
}

export class Bag<T> {
  #first: Link<T> | undefined;
  #last: Link<T> | undefined;
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** The first that was added. */
  get first(): Link<T> | undefined {
    return this.#first;
  }

  add(value: T): Link<T> {
    const link = new Link(this, value, this.#last);
    if (this.#last === undefined) {
      this.#first = link;
    } else {
      this.#last.after = link;
    }
    this.#last = link;
    this.#size += 1;
    return link;
  }

  /** What is in it now. */
  values(): T[] {
    const values: T[] = [];
    for (let link = this.#first; link !== undefined; link = link.after) {
      values.push(link.value);
    }
    return values;
  }

  /** @internal */
  unlink(link: Link<T>): void {
    const { before, after } = link;
    if (before === undefined) {
      this.#first = after;
    } else {
      before.after = after;
    }
    if (after === undefined) {
      this.#last = before;
    } else {
      after.before = before;
    }
    // A link that was taken out must not keep others in memory.
    link.before = undefined;
    link.after = undefined;
    this.#size -= 1;
  }
}
