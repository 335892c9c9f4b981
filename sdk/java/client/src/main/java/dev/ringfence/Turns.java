package dev.ringfence;

import java.util.LinkedHashSet;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

/** Turns, so that there are never more than so many of something at once. First come, first served. */
final class Turns {
  private final Set<Turn> queue = new LinkedHashSet<>();
  private int free;

  Turns(int most) {
    free = most;
  }

  /** The right to do it, as soon as it is {@code ready}. Has to be ended, also if it is not. */
  final class Turn {
    final CompletableFuture<Void> ready = new CompletableFuture<>();
    private boolean isOver;

    /** Gives it to the next, or no longer waits for it. */
    void end() {
      synchronized (Turns.this) {
        if (isOver) {
          return;
        }
        isOver = true;
        if (!queue.remove(this)) {
          free++;
        }
      }
      next();
    }
  }

  /** Whether somebody waits for a turn. */
  synchronized boolean isWanted() {
    return !queue.isEmpty();
  }

  /** Asks for a turn. */
  Turn ask() {
    Turn turn = new Turn();
    synchronized (this) {
      queue.add(turn);
    }
    next();
    return turn;
  }

  private void next() {
    while (true) {
      Turn turn;
      synchronized (this) {
        if (free == 0 || queue.isEmpty()) {
          return;
        }
        turn = queue.iterator().next();
        queue.remove(turn);
        free--;
      }
      turn.ready.complete(null);
    }
  }
}
