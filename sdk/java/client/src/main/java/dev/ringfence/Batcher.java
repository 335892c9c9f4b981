package dev.ringfence;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;

/**
 * Calls to one node that begin together share requests ({@code POST /v1/batch}), of which at most two are under way: what comes
 * meanwhile is in the next.
 *
 * <p>Nobody waits in a batch: an acquire that has to wait gets a 202, and waits with a request of its own; one that is alone may wait
 * briefly in its own request, but never with the last permit.
 *
 * <p>Each call gets the response that it would have got alone. If a batch gets none, none of its calls does. If a node refuses it as a
 * whole, for example as it does not know a field, each call is sent alone. What a proxy answers is in doubt for each call, which is
 * repeated. A call that is given up leaves the others alone; only when all are given up, the request is.
 */
final class Batcher {
  /** What one request may have: a node takes 1,000 operations and 1 MiB. Each character takes 3 bytes at most. */
  private static final int MAX_BATCH = 1_000;

  private static final int MAX_CHARACTERS = 160 << 10;

  private final Server server;
  private final Workers workers;
  private final Deque<Call> queue = new ArrayDeque<>();
  private int permits = 2;
  private boolean isWaiting;

  Batcher(Server server, Workers workers) {
    this.server = server;
    this.workers = workers;
  }

  private static final class Call {
    final Request request;
    final long nanos;
    final BooleanSupplier hasAnother;
    /** Ends with its response; with none, if it has to be sent alone. */
    final CompletableFuture<Optional<Response>> told = new CompletableFuture<>();
    /** The request that this call shares with others, once it is in one. */
    volatile Shared shared;

    Call(Request request, long nanos, BooleanSupplier hasAnother) {
      this.request = request;
      this.nanos = nanos;
      this.hasAnother = hasAnother;
    }
  }

  /** A request that is under way for these calls. */
  private final class Shared implements Runnable {
    private final List<Call> calls = new ArrayList<>();
    private final AtomicInteger count = new AtomicInteger();
    private final Patience patience = Patience.endless();
    private boolean waits;

    /** One of its calls was given up: ends the request if that was the last. */
    void left() {
      if (count.decrementAndGet() == 0) {
        patience.stop(new ClosedException());
      }
    }

    @Override
    public void run() {
      // Also if there is no memory for an answer: else its calls would wait for ever.
      NoAnswer failure = new NoAnswer.Broken(server.url + ": the request has failed");
      boolean isGivenUp = false;
      try {
        take(this);
        if (!calls.isEmpty()) {
          send();
        }
        failure = null;
      } catch (NoAnswer error) {
        failure = error;
      } catch (InterruptedException | ClosedException error) {
        failure = new NoAnswer.Broken("the request was given up");
        isGivenUp = true;
      } finally {
        ended(this, failure, isGivenUp);
      }
    }

    private void send() throws NoAnswer, InterruptedException {
      boolean isAlone = calls.size() == 1 && (waits || calls.get(0).request.waitMs() == 0);
      if (isAlone) {
        Call call = calls.get(0);
        call.told.complete(Optional.of(server.send(call.request, call.nanos, call.hasAnother, patience)));
        return;
      }
      String operations = calls.stream().map(call -> call.request.operation()).collect(Collectors.joining(","));
      long nanos = calls.stream().mapToLong(call -> call.nanos - call.request.waitMs() * Checks.MS).max().orElse(0);
      Request request = Request.of("POST", "/v1/batch", "{\"operations\":[" + operations + "]}");
      Response response = server.send(request, nanos, calls.get(0).hasAnother, patience);
      List<Optional<Response>> parts = split(response, calls.size());
      for (int i = 0; i < parts.size(); i++) {
        calls.get(i).told.complete(parts.get(i));
      }
    }
  }

  /** Sends it, perhaps with others. Returns nothing if nothing was done, and it has to be sent alone. */
  Optional<Response> send(Request request, long nanos, BooleanSupplier hasAnother, Patience patience)
      throws NoAnswer, InterruptedException {
    Call call = new Call(request, nanos, hasAnother);
    boolean isTold = false;
    synchronized (queue) {
      queue.add(call);
    }
    flush();
    try {
      while (!patience.await(call.told, nanos)) {
        // Its request, or the one before it, is bounded.
      }
      isTold = true;
    } finally {
      if (!isTold) {
        giveUp(call);
      }
    }
    try {
      return call.told.join();
    } catch (CompletionException error) {
      throw error.getCause() instanceof NoAnswer known ? known : new NoAnswer.Broken(error.toString());
    }
  }

  private void giveUp(Call call) {
    Shared shared;
    synchronized (queue) {
      queue.remove(call);
      shared = call.shared;
    }
    if (shared != null) {
      shared.left();
    }
  }

  /** Has a thread send what is in the queue by then. */
  private void flush() {
    Shared shared = null;
    synchronized (queue) {
      if (permits > 0 && !queue.isEmpty()) {
        permits--;
        shared = new Shared();
      }
    }
    if (shared != null && !workers.begin(shared)) {
      ended(shared, new NoAnswer.NotSent(server.url + ": the client is closed, or has no room for another thread"), false);
    }
  }

  /** Gives a request the calls that fit into it. */
  private void take(Shared shared) {
    synchronized (queue) {
      int size = 0;
      while (!queue.isEmpty() && shared.calls.size() < MAX_BATCH) {
        size += queue.peek().request.operation().length() + 1;
        if (size > MAX_CHARACTERS && !shared.calls.isEmpty()) {
          break;
        }
        Call call = queue.poll();
        call.shared = shared;
        shared.calls.add(call);
      }
      shared.count.set(shared.calls.size());
      boolean mayWait = shared.calls.size() == 1 && shared.calls.get(0).request.waitMs() > 0;
      shared.waits = mayWait && !isWaiting;
      isWaiting |= shared.waits;
    }
    // What did not fit.
    flush();
  }

  private void ended(Shared shared, NoAnswer failure, boolean isGivenUp) {
    List<Call> failed = new ArrayList<>(shared.calls);
    List<Call> unsent = List.of();
    synchronized (queue) {
      permits++;
      isWaiting &= !shared.waits;
      if (failure != null && !isGivenUp) {
        // They do not wait for the same again, and go elsewhere at once.
        unsent = List.copyOf(queue);
        queue.clear();
      }
    }
    if (failure != null) {
      failed.forEach(call -> call.told.completeExceptionally(failure));
      NoAnswer other =
          failure instanceof NoAnswer.NotSent ? failure : new NoAnswer.NotSent(failure.getMessage());
      unsent.forEach(call -> call.told.completeExceptionally(other));
    }
    flush();
  }

  /** The response to each of so many operations. */
  private static List<Optional<Response>> split(Response response, int count) throws NoAnswer.Broken {
    int status = response.status();
    List<Optional<Response>> parts = new ArrayList<>();
    if (status > 200 && status < 300) {
      // To an operation alone it could say that it was done.
      throw new NoAnswer.Broken("a " + status + " to a batch");
    }
    if (status != 200) {
      boolean isRefused = status >= 400 && status < 500 && status != 429 && response.problem() != null;
      for (int i = 0; i < count; i++) {
        parts.add(isRefused ? Optional.empty() : Optional.of(response));
      }
      return parts;
    }
    try {
      for (Response part : response.results(count)) {
        // The others' results left no room for those, which were not done.
        parts.add(part.status() == 413 ? Optional.empty() : Optional.of(part));
      }
      return parts;
    } catch (Json.Malformed error) {
      throw new NoAnswer.Broken("unreadable response to a batch: " + error.getMessage());
    }
  }
}
