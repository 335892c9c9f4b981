package dev.ringfence;

import java.nio.charset.StandardCharsets;

/**
 * A request that any node can take.
 *
 * @param method the method
 * @param path the path
 * @param body JSON; empty for none
 * @param operation the request as an operation of a batch, as JSON; {@code null} if it is sent alone
 * @param waitMs how long it waits in the cluster's queue
 * @param way which connections it uses
 */
record Request(String method, String path, String body, String operation, long waitMs, Way way) {
  /** Whether it has a connection that others do not have to share. */
  enum Way {
    /** It shares. */
    SHARED,
    /** That of the renewals, which never stand behind anything else. */
    RENEWAL,
    /** One for a wait in the queue. */
    WAIT
  }

  static Request of(String method, String path, String body) {
    return new Request(method, path, body, null, 0, Way.SHARED);
  }

  /** Of how many bytes its answer is at most. A listing of many holders is long, and those of a batch take 8 MiB at most. */
  int longestAnswer() {
    return isReading() ? 64 << 20 : 9 << 20;
  }

  /** Whether it only reads what the cluster knows. */
  boolean isReading() {
    return method.equals("GET") && !path.equals(Server.LIVEZ);
  }

  /** Its bytes. Authority and credential were checked when they were set. */
  byte[] encode(String authority, String credential) {
    byte[] content = body.getBytes(StandardCharsets.UTF_8);
    StringBuilder head = new StringBuilder();
    head.append(method).append(' ').append(path).append(" HTTP/1.1\r\nhost: ").append(authority).append("\r\n");
    if (path.equals(Server.LIVEZ)) {
      // A node of which a thread has not run for so long does not live: that thread may have the request that waits.
      head.append("ringfence-within-ms: 1000\r\n");
    }
    if (credential != null) {
      head.append("authorization: Bearer ").append(credential).append("\r\n");
    }
    if (content.length > 0) {
      head.append("content-type: application/json\r\n");
    }
    if (content.length > 0 || !method.equals("GET")) {
      head.append("content-length: ").append(content.length).append("\r\n");
    }
    byte[] start = head.append("\r\n").toString().getBytes(StandardCharsets.US_ASCII);
    byte[] message = new byte[start.length + content.length];
    System.arraycopy(start, 0, message, 0, start.length);
    System.arraycopy(content, 0, message, start.length, content.length);
    return message;
  }
}
