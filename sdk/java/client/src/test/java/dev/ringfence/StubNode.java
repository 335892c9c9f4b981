package dev.ringfence;

import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** What answers as no node does. It grants each lease alone, with token 7 on the key {@code k}. */
public final class StubNode implements AutoCloseable {
  private static final Pattern ID = Pattern.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}");
  private static final Pattern LENGTH = Pattern.compile("content-length: (\\d+)");

  /** What is done with a request. */
  @FunctionalInterface
  public interface Handler {
    void handle(String method, String path, String body, OutputStream out) throws Exception;
  }

  private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
  private final Handler handler;

  public StubNode(Handler handler) throws IOException {
    this.handler = handler;
    begin(this::listen);
  }

  public String url() {
    return "http://127.0.0.1:" + listener.getLocalPort();
  }

  public static void say(OutputStream out, int status, String body) throws IOException {
    String length = status == 204 ? "" : "content-length: " + body.length() + "\r\n";
    out.write(("HTTP/1.1 " + status + " x\r\nringfence-cluster: stub\r\n" + length + "\r\n" + body).getBytes(StandardCharsets.ISO_8859_1));
    out.flush();
  }

  /** The grant of the first id in this text. */
  public static String grant(String text, long ttlMs) {
    return grants(text, ttlMs).get(0);
  }

  /** The results of all operations, by the ids in this text. */
  static String results(String text, int status, long ttlMs) {
    return grants(text, ttlMs).stream()
        .map(grant -> "{\"status\":" + status + ",\"body\":" + grant + "}")
        .collect(Collectors.joining(",", "{\"results\":[", "]}"));
  }

  static List<String> ids(String text) {
    return ID.matcher(text).results().map(MatchResult::group).toList();
  }

  private static List<String> grants(String text, long ttlMs) {
    String rest = "\",\"state\":\"granted\",\"token\":7,\"ttl_ms\":" + ttlMs + ",\"expires_in_ms\":" + ttlMs;
    return ids(text).stream()
        .map(id -> "{\"lease_id\":\"" + id + rest + ",\"keys\":[{\"key\":\"k\",\"fence\":7}]}")
        .toList();
  }

  private void listen() {
    try {
      while (true) {
        Socket socket = listener.accept();
        begin(() -> serve(socket));
      }
    } catch (IOException closed) {
      // It is over.
    }
  }

  private void serve(Socket socket) {
    try (socket) {
      InputStream in = new BufferedInputStream(socket.getInputStream());
      while (true) {
        StringBuilder head = new StringBuilder();
        while (head.indexOf("\r\n\r\n") < 0) {
          int next = in.read();
          if (next < 0) {
            return;
          }
          head.append((char) next);
        }
        Matcher length = LENGTH.matcher(head);
        byte[] body = in.readNBytes(length.find() ? Integer.parseInt(length.group(1)) : 0);
        String[] first = head.toString().split(" ", 3);
        handler.handle(first[0], first[1], new String(body, StandardCharsets.UTF_8), socket.getOutputStream());
      }
    } catch (Exception ended) {
      // The client has gone, or is to see the end of its connection.
    }
  }

  private static void begin(Runnable work) {
    Thread thread = new Thread(work, "stub-node");
    thread.setDaemon(true);
    thread.start();
  }

  @Override
  public void close() throws IOException {
    listener.close();
  }
}
