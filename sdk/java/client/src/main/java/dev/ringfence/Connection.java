package dev.ringfence;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;

/**
 * HTTP/1.1 over one connection. It is stricter than common HTTP clients: a response whose end is not certain is no response, as its
 * request may have been done.
 */
final class Connection {
  private static final int MAX_HEAD = 64 << 10;
  /** Nodes close idle connections after 75 s. */
  private static final long IDLE_FOR = 20_000 * Checks.MS;

  private final SocketChannel channel;
  private final InputStream in;
  private final OutputStream out;
  private long idleSince;

  /** {@code socket} is that of the channel, or one for TLS above it. */
  Connection(SocketChannel channel, Socket socket) throws IOException {
    this.channel = channel;
    this.in = new BufferedInputStream(socket.getInputStream());
    this.out = socket.getOutputStream();
  }

  /** Whether nothing has arrived on the idle connection, not even its end. */
  boolean isUsable() {
    if (Clock.nanos() - idleSince > IDLE_FOR) {
      return false;
    }
    try {
      channel.configureBlocking(false);
      boolean isSilent = channel.read(ByteBuffer.allocate(1)) == 0;
      channel.configureBlocking(true);
      return isSilent;
    } catch (IOException error) {
      return false;
    }
  }

  SocketChannel channel() {
    return channel;
  }

  /** It carries nothing for now. */
  void rest() {
    idleSince = Clock.nanos();
  }

  void write(byte[] message) throws IOException {
    out.write(message);
    out.flush();
  }

  /** Closes an idle connection. */
  void close() {
    try {
      channel.close();
    } catch (IOException ignored) {
      // It is of no use any more.
    }
  }

  /**
   * Closes it at once. The kernel sends nothing any more: an abandoned request could otherwise arrive more than a minute later, when
   * the cluster has forgotten that its lease was released. (Java cannot set {@code TCP_USER_TIMEOUT}.)
   */
  static void abort(SocketChannel channel) {
    try (channel) {
      channel.setOption(StandardSocketOptions.SO_LINGER, 0);
    } catch (IOException ignored) {
      // It is closed already.
    }
  }

  /** Reads a whole response, with a body of so many bytes at most. {@code onHead} is called once its head has arrived. */
  Response read(Moment sent, int most, Runnable onHead) throws IOException {
    int left = MAX_HEAD;
    while (true) {
      String first = line(left);
      left -= first.length();
      Map<String, String> headers = new HashMap<>();
      for (String line = line(left); !line.isEmpty(); line = line(left)) {
        left -= line.length();
        header(headers, line);
      }
      if (!first.matches("HTTP/1\\.[01] [1-5][0-9][0-9]( .*)?")) {
        throw new IOException("no status line");
      }
      int status = Integer.parseInt(first.substring(9, 12));
      if (status >= 200) {
        onHead.run();
        String body = new String(body(status, headers, most), StandardCharsets.UTF_8);
        if (in.available() > 0) {
          throw new IOException("bytes after the response");
        }
        return new Response(sent, status, headers, body, null);
      }
      // An interim response; the response follows.
    }
  }

  private static void header(Map<String, String> headers, String line) throws IOException {
    int colon = line.indexOf(':');
    String name = colon < 0 ? "" : line.substring(0, colon).toLowerCase(Locale.ROOT);
    if (name.isEmpty() || !name.equals(name.strip())) {
      throw new IOException("a line that is no header");
    }
    String value = line.substring(colon + 1).strip();
    String before = headers.putIfAbsent(name, value);
    boolean isOfLength = name.equals("content-length") || name.equals("transfer-encoding");
    if (isOfLength && before != null && !before.equals(value)) {
      throw new IOException("two different headers " + name);
    }
  }

  private byte[] body(int status, Map<String, String> headers, int most) throws IOException {
    String length = headers.get("content-length");
    String coding = headers.get("transfer-encoding");
    if (status == 204 || status == 304) {
      return new byte[0];
    }
    if (coding != null) {
      if (!coding.equalsIgnoreCase("chunked") || length != null) {
        throw new IOException("a body of unclear length");
      }
      return chunks(most);
    }
    if (length == null || !length.matches("[0-9]{1,9}")) {
      throw new IOException("a body of unknown length");
    }
    return exactly(Integer.parseInt(length), most);
  }

  private byte[] chunks(int most) throws IOException {
    ByteArrayOutputStream body = new ByteArrayOutputStream();
    while (true) {
      String size = line(1_024).split(";", 2)[0].strip();
      if (!size.matches("[0-9a-fA-F]{1,7}")) {
        throw new IOException("a chunk without a size");
      }
      int count = Integer.parseInt(size, 16);
      if (count == 0) {
        break;
      }
      body.write(exactly(count, most - body.size()));
      if (!line(2).isEmpty()) {
        throw new IOException("a chunk is longer than it says");
      }
    }
    int left = MAX_HEAD;
    for (String line = line(left); !line.isEmpty(); line = line(left)) {
      left -= line.length();
    }
    return body.toByteArray();
  }

  private byte[] exactly(int count, int most) throws IOException {
    if (count > most) {
      throw new IOException("too long a body");
    }
    byte[] bytes = in.readNBytes(count);
    if (bytes.length < count) {
      throw ended();
    }
    return bytes;
  }

  /** A line of so many bytes at most. */
  private String line(int most) throws IOException {
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    for (int one = in.read(); one != '\n'; one = in.read()) {
      if (one < 0) {
        throw ended();
      }
      if (line.size() > most) {
        throw new IOException("too long a line");
      }
      line.write(one);
    }
    String text = line.toString(StandardCharsets.ISO_8859_1);
    if (!text.endsWith("\r")) {
      throw new IOException("a line without its end");
    }
    return text.substring(0, text.length() - 1);
  }

  private static IOException ended() {
    return new IOException("the connection was closed before the end of the response");
  }
}
