package dev.ringfence;

import java.io.IOException;
import java.nio.channels.SocketChannel;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/** One request on its way, and its response. It runs on a thread of its own, and ends when it is aborted. */
final class Exchange implements Runnable {
  /** What comes of it; a failure is a {@link NoAnswer}. */
  final CompletableFuture<Response> result = new CompletableFuture<>();

  /** When it was sent, and when the head of the response came; -1 before. */
  volatile long sentAt = -1;

  volatile long headAt = -1;
  private final Server server;
  final Request request;
  /** What is open on its behalf. */
  private final Set<SocketChannel> open = ConcurrentHashMap.newKeySet();

  private volatile boolean isAborted;

  Exchange(Server server, Request request) {
    this.server = server;
    this.request = request;
  }

  /** Ends it at once: its connection is closed, and what was not sent is not sent any more. */
  void abort() {
    isAborted = true;
    open.forEach(Connection::abort);
    result.completeExceptionally(failure("given up"));
  }

  /** Has a channel closed when this is aborted. */
  void opens(SocketChannel channel) throws IOException {
    open.add(channel);
    if (isAborted) {
      Connection.abort(channel);
      throw new IOException("given up");
    }
  }

  /** It is of no use to this any more. */
  void closes(SocketChannel channel) {
    open.remove(channel);
  }

  @Override
  public void run() {
    boolean isReused = false;
    Connection connection = null;
    try {
      if (!isAborted) {
        connection = server.idle(request.way(), this);
        isReused = connection != null;
        if (!isReused) {
          connection = server.connect(this);
        }
        result.complete(carry(connection));
      }
    } catch (NoAnswer error) {
      fail(error);
    } catch (IOException error) {
      server.failed();
      boolean isRefusal = !isReused && Tls.isRefusal(error);
      fail(
          isRefusal
              ? new NoAnswer.Untrusted(server.url + " refuses this client's certificate: " + error.getMessage())
              : failure(error.getMessage()));
    } catch (Throwable error) {
      fail(failure(error.toString()));
    } finally {
      server.ended(this);
    }
  }

  private Response carry(Connection connection) throws IOException {
    byte[] message = server.encode(request);
    Moment sent = server.now();
    sentAt = Clock.nanos();
    connection.write(message);
    Response response = connection.read(sent, request.longestAnswer(), () -> headAt = Clock.nanos());
    // From now on, an abort has nothing to close.
    open.clear();
    server.keep(connection, response, request.way(), isAborted);
    return response;
  }

  private NoAnswer failure(String why) {
    String text = server.url + ": " + why;
    return sentAt < 0 ? new NoAnswer.NotSent(text) : new NoAnswer.Broken(text);
  }

  private void fail(NoAnswer error) {
    open.forEach(Connection::abort);
    result.completeExceptionally(error);
  }
}
