/** Turns, so that there are never more than so many of something at once. First come, first served. */
import { Bag } from "./bag.js";

/** The right to do it, as soon as it is ready. */
export class Turn {
  isReady = false;
  #isOver = false;
  readonly #over: () => void;
  #tell: (() => void) | undefined;
  #tellFailed: ((error: Error) => void) | undefined;

  /** @internal */
  constructor(over: () => void) {
    this.#over = over;
  }

  /** Calls it once the turn is ready, and nothing that was given before. `failed`: what those whose turn it was before came to. */
  whenReady(tell: () => void, failed?: (error: Error) => void): void {
    this.#tell = tell;
    this.#tellFailed = failed;
    if (this.isReady) {
      tell();
    }
  }

  /** @internal */
  begin(): void {
    this.isReady = true;
    this.#tell?.();
  }

  /** @internal */
  fail(error: Error): void {
    this.#tellFailed?.(error);
  }

  /** Gives it to the next, or no longer waits for it. */
  end(): void {
    if (!this.#isOver) {
      this.#isOver = true;
      this.#over();
    }
  }
}

export class Turns {
  #free: number;
  /** Those that wait, and no others. */
  readonly #queue = new Bag<Turn>();

  constructor(most: number) {
    this.#free = most;
  }

  /** Asks for a turn. It has to be ended, also if it is not ready. */
  ask(): Turn {
    const turn: Turn = new Turn(() => {
      if (turn.isReady) {
        this.#free += 1;
        this.#next();
      } else {
        link.remove();
      }
    });
    const link = this.#queue.add(turn);
    this.#next();
    return turn;
  }

  /** Tells all that wait that it is of no use now. */
  fail(error: Error): void {
    for (const turn of this.#queue.values()) {
      turn.fail(error);
    }
  }

  /** How many wait. */
  get waiting(): number {
    return this.#queue.size;
  }

  #next(): void {
    while (this.#free > 0 && this.#queue.first !== undefined) {
      const { first } = this.#queue;
      first.remove();
      this.#free -= 1;
      first.value.begin();
    }
  }
}
