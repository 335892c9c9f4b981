/** Turns, so that there are never more than so many of something at once. First come, first served. */

/** The right to do it, as soon as it is ready. */
export class Turn {
  isReady = false;
  #isOver = false;
  readonly #over: () => void;
  #tell: (() => void) | undefined;

  /** @internal */
  constructor(over: () => void) {
    this.#over = over;
  }

  /** Calls it once the turn is ready, and nothing that was given before. */
  whenReady(tell: () => void): void {
    this.#tell = tell;
    if (this.isReady) {
      tell();
    }
  }

  /** Whether nobody waits for it any more. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** @internal */
  begin(): void {
    this.isReady = true;
    this.#tell?.();
  }

  /** Gives it to the next. */
  end(): void {
    if (!this.#isOver) {
      this.#isOver = true;
      if (this.isReady) {
        this.#over();
      }
    }
  }
}

export class Turns {
  #free: number;
  #queue: Turn[] = [];

  constructor(most: number) {
    this.#free = most;
  }

  /** Asks for a turn. It has to be ended, also if it is not ready. */
  ask(): Turn {
    const turn = new Turn(() => {
      this.#free += 1;
      this.#next();
    });
    this.#queue.push(turn);
    this.#next();
    return turn;
  }

  #next(): void {
    while (this.#free > 0 && this.#queue.length > 0) {
      const turn = this.#queue.shift() as Turn;
      if (!turn.isOver) {
        this.#free -= 1;
        turn.begin();
      }
    }
  }
}
