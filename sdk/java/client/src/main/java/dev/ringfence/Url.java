package dev.ringfence;

import java.net.URI;
import java.net.URISyntaxException;
import java.util.Locale;

/** Where a node listens. */
record Url(boolean isHttps, String host, int port, String authority) {
  /** Reads {@code https://host:port}. */
  static Url parse(String text) throws URISyntaxException {
    if (text == null) {
      throw new URISyntaxException("null", "is no URL");
    }
    if (text.indexOf('@') >= 0) {
      // The error would show a password.
      throw new URISyntaxException(text.substring(text.lastIndexOf('@') + 1), "a node's URL has no user");
    }
    URI url = new URI(text.strip());
    String scheme = url.getScheme() == null ? "" : url.getScheme().toLowerCase(Locale.ROOT);
    if (!scheme.equals("http") && !scheme.equals("https")) {
      throw new URISyntaxException(text, "does not begin with https:// or http://");
    }
    String path = url.getRawPath();
    if (path != null && !path.isEmpty() && !path.equals("/") || url.getRawQuery() != null || url.getRawFragment() != null) {
      throw new URISyntaxException(text, "a node's URL has no path");
    }
    if (url.getHost() == null || url.getPort() == 0 || url.getPort() > 65_535) {
      throw new URISyntaxException(text, "is not of the form https://host:port");
    }
    boolean isHttps = scheme.equals("https");
    String host = url.getHost().replaceAll("[\\[\\]]", "").toLowerCase(Locale.ROOT);
    int port = url.getPort() < 0 ? (isHttps ? 443 : 80) : url.getPort();
    return new Url(isHttps, host, port, url.getRawAuthority());
  }

  boolean isSamePlace(Url other) {
    return host.equals(other.host) && port == other.port;
  }

  @Override
  public String toString() {
    return (isHttps ? "https://" : "http://") + authority;
  }
}
