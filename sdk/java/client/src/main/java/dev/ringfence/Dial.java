package dev.ringfence;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.StandardSocketOptions;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.channels.UnresolvedAddressException;
import java.security.GeneralSecurityException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import javax.net.ssl.SSLException;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import jdk.net.ExtendedSocketOptions;

/** New connections to one node: all addresses of its name are tried, 250 ms apart, and the first that accepts is used. */
final class Dial {
  private static final long STAGGER_MS = 250;

  private final Url url;
  private final Names names;
  private final Tls tls;

  Dial(Url url, Names names, Tls tls) {
    this.url = url;
    this.names = names;
    this.tls = tls;
  }

  /** Connects on behalf of an exchange, which may be aborted meanwhile. */
  Connection connect(Exchange exchange) throws NoAnswer.NotSent {
    SocketChannel channel = race(exchange);
    try {
      if (!url.isHttps()) {
        return new Connection(channel, channel.socket());
      }
      SSLSocket socket = secured(channel.socket());
      socket.startHandshake();
      return new Connection(channel, socket);
    } catch (SSLException error) {
      names.forget(url.host());
      for (Throwable cause = error; cause != null; cause = cause.getCause()) {
        if (cause instanceof GeneralSecurityException) {
          throw new NoAnswer.Untrusted("the certificate of " + url + " is not trusted: " + cause.getMessage());
        }
      }
      if (Tls.isRefusal(error)) {
        throw new NoAnswer.Untrusted(url + " refuses this client's certificate: " + error.getMessage());
      }
      throw new NoAnswer.NotSent(url + ": " + error.getMessage());
    } catch (IOException error) {
      names.forget(url.host());
      throw new NoAnswer.NotSent(url + ": " + error.getMessage());
    }
  }

  private SSLSocket secured(Socket plain) throws IOException {
    SSLSocket socket =
        (SSLSocket) tls.context().getSocketFactory().createSocket(plain, url.host(), url.port(), true);
    SSLParameters parameters = socket.getSSLParameters();
    // Otherwise nobody compares the certificate with the name.
    parameters.setEndpointIdentificationAlgorithm("HTTPS");
    socket.setSSLParameters(parameters);
    return socket;
  }

  private SocketChannel race(Exchange exchange) throws NoAnswer.NotSent {
    Queue<InetAddress> left = new ArrayDeque<>(names.addresses(url.host()));
    List<SocketChannel> trying = new ArrayList<>();
    List<String> failures = new ArrayList<>();
    SocketChannel won = null;
    try (Selector selector = Selector.open()) {
      while (won == null && !(left.isEmpty() && trying.isEmpty())) {
        if (!left.isEmpty()) {
          start(left.poll(), exchange, selector, trying, failures);
        }
        if (!trying.isEmpty()) {
          // Nothing wakes it if the exchange is aborted.
          selector.select(STAGGER_MS);
          won = accepted(selector, trying, failures);
        }
      }
      if (won != null) {
        won.keyFor(selector).cancel();
        selector.selectNow();
        won.configureBlocking(true);
        names.answered(url.host(), ((InetSocketAddress) won.getRemoteAddress()).getAddress());
        return won;
      }
    } catch (IOException error) {
      won = null;
      failures.add(error.getMessage());
    } finally {
      for (SocketChannel one : trying) {
        if (one != won) {
          Connection.abort(one);
          exchange.closes(one);
        }
      }
    }
    throw new NoAnswer.NotSent(url + ": " + String.join(", ", failures));
  }

  private void start(
      InetAddress address, Exchange exchange, Selector selector, List<SocketChannel> trying, List<String> failures)
      throws IOException {
    SocketChannel channel = SocketChannel.open();
    trying.add(channel);
    exchange.opens(channel);
    channel.configureBlocking(false);
    tune(channel);
    channel.register(selector, SelectionKey.OP_CONNECT);
    try {
      channel.connect(new InetSocketAddress(address, url.port()));
    } catch (IOException | UnresolvedAddressException error) {
      failures.add(String.valueOf(error.getMessage()));
      trying.remove(channel);
      channel.close();
    }
  }

  /** The first that accepts; {@code null} if none has yet. Those that failed are tried no more. */
  private static SocketChannel accepted(Selector selector, List<SocketChannel> trying, List<String> failures)
      throws IOException {
    for (SocketChannel one : List.copyOf(trying)) {
      try {
        if (one.isConnected() || one.finishConnect()) {
          return one;
        }
      } catch (IOException error) {
        failures.add(error.getMessage() == null ? "given up" : error.getMessage());
        trying.remove(one);
        one.close();
      }
    }
    selector.selectedKeys().clear();
    return null;
  }

  /** Sends small messages at once, and has the kernel end the connection when the other host has vanished. */
  private static void tune(SocketChannel channel) throws IOException {
    channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
    channel.setOption(StandardSocketOptions.SO_KEEPALIVE, true);
    if (channel.supportedOptions().contains(ExtendedSocketOptions.TCP_KEEPIDLE)) {
      channel.setOption(ExtendedSocketOptions.TCP_KEEPIDLE, 1);
      channel.setOption(ExtendedSocketOptions.TCP_KEEPINTERVAL, 1);
      channel.setOption(ExtendedSocketOptions.TCP_KEEPCOUNT, 2);
    }
  }
}
