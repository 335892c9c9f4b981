package dev.ringfence;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.PublicKey;
import java.security.Signature;
import java.security.SignatureException;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.TrustManagerFactory;

/** TLS to the nodes, from PEM files that are loaded again once they have changed. */
final class Tls {
  private static final System.Logger LOG = System.getLogger("dev.ringfence");
  private static final long LOOK_INTERVAL = 1_000 * Checks.MS;
  private static final Pattern KEY =
      Pattern.compile("-----BEGIN ([A-Z ]*PRIVATE KEY)-----([A-Za-z0-9+/=\\s]+)-----END \\1-----");
  private static final byte[] NONE = new byte[0];

  private final Path ca;
  private final Path cert;
  private final Path key;
  private List<String> seen;
  private long lookedAt;
  private SSLContext context;

  /** The authorities of the nodes' certificates ({@code null}: those that Java trusts), and the client's certificate. */
  Tls(Path ca, Path cert, Path key) {
    if ((cert == null) != (key == null)) {
      throw new InvalidException(key == null ? "key" : "cert", "a certificate and its key are given together");
    }
    this.ca = ca;
    this.cert = cert;
    this.key = key;
    seen = files();
    lookedAt = Clock.nanos();
    context = load();
  }

  /** The context of new connections. If files that changed cannot be used, the old ones stay in use. */
  synchronized SSLContext context() {
    long now = Clock.nanos();
    if (now - lookedAt >= LOOK_INTERVAL) {
      lookedAt = now;
      List<String> files = files();
      if (!files.equals(seen)) {
        seen = files;
        try {
          context = load();
        } catch (InvalidException error) {
          LOG.log(
              System.Logger.Level.WARNING,
              "TLS files that changed cannot be used, the old ones stay in use: " + error.getMessage());
        }
      }
    }
    return context;
  }

  /** Whether the server refused this client's certificate. It says so after the handshake, and has read no request. */
  static boolean isRefusal(IOException error) {
    String text = String.valueOf(error.getMessage()).toLowerCase(Locale.ROOT);
    return error instanceof SSLException
        && text.contains("fatal alert")
        && Pattern.compile("certificate|unknown_ca|access_denied|decrypt_error").matcher(text).find();
  }

  private SSLContext load() {
    try {
      TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      trust.init(ca == null ? null : authorities());
      KeyManagerFactory own = null;
      if (cert != null) {
        own = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        own.init(identity(), new char[0]);
      }
      SSLContext made = SSLContext.getInstance("TLS");
      made.init(own == null ? null : own.getKeyManagers(), trust.getTrustManagers(), null);
      return made;
    } catch (GeneralSecurityException error) {
      throw new InvalidException("ca", "this Java cannot use TLS: " + error.getMessage());
    }
  }

  private KeyStore authorities() throws GeneralSecurityException {
    KeyStore store = empty();
    int count = 0;
    for (Certificate one : certificates("ca", ca)) {
      store.setCertificateEntry("ca" + count++, one);
    }
    return store;
  }

  private KeyStore identity() throws GeneralSecurityException {
    List<Certificate> chain = certificates("cert", cert);
    PublicKey publicKey = chain.get(0).getPublicKey();
    PrivateKey own = privateKey(publicKey);
    if (!isPair(own, publicKey)) {
      throw new InvalidException("key", key + ": is not the key of " + cert);
    }
    KeyStore store = empty();
    store.setKeyEntry("own", own, new char[0], chain.toArray(new Certificate[0]));
    return store;
  }

  private static KeyStore empty() throws GeneralSecurityException {
    KeyStore store = KeyStore.getInstance("PKCS12");
    try {
      store.load(null, null);
    } catch (IOException error) {
      throw new GeneralSecurityException(error);
    }
    return store;
  }

  private static List<Certificate> certificates(String field, Path path) {
    try {
      String text = text(field, path);
      Matcher blocks = Pattern.compile("-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----").matcher(text);
      CertificateFactory factory = CertificateFactory.getInstance("X.509");
      List<Certificate> found = new ArrayList<>();
      while (blocks.find()) {
        byte[] block = blocks.group().getBytes(StandardCharsets.ISO_8859_1);
        Collection<? extends Certificate> read = factory.generateCertificates(new ByteArrayInputStream(block));
        found.addAll(read);
      }
      if (found.isEmpty() || !(found.get(0) instanceof X509Certificate)) {
        throw new InvalidException(field, path + ": no certificates in PEM");
      }
      return found;
    } catch (GeneralSecurityException error) {
      throw new InvalidException(field, path + ": no certificates in PEM: " + error.getMessage());
    }
  }

  private PrivateKey privateKey(PublicKey publicKey) {
    String text = text("key", key);
    if (text.contains("ENCRYPTED")) {
      throw new InvalidException("key", key + ": is encrypted, and a client has nobody to ask for the password");
    }
    Matcher block = KEY.matcher(text);
    if (!block.find()) {
      throw new InvalidException("key", key + ": is not a private key in PEM");
    }
    try {
      byte[] bytes = Base64.getMimeDecoder().decode(block.group(2));
      byte[] whole = block.group(1).equals("PRIVATE KEY") ? bytes : pkcs8(bytes, publicKey);
      // For EdDSA, the key names the curve.
      return KeyFactory.getInstance(publicKey.getAlgorithm()).generatePrivate(new PKCS8EncodedKeySpec(whole));
    } catch (GeneralSecurityException | IllegalArgumentException error) {
      throw new InvalidException("key", key + ": cannot be used with " + cert + ": " + error.getMessage());
    }
  }

  /** The older forms lack the name of the algorithm, which the certificate has. */
  private static byte[] pkcs8(byte[] bytes, PublicKey publicKey) {
    byte[] info = publicKey.getEncoded();
    int start = header(info, 0);
    int end = header(info, start) + length(info, start);
    byte[] algorithm = Arrays.copyOfRange(info, start, end);
    return tagged(0x30, new byte[] {2, 1, 0}, algorithm, tagged(4, bytes, NONE, NONE));
  }

  /** Where the content of the DER element at {@code at} begins. */
  private static int header(byte[] der, int at) {
    return at + 2 + ((der[at + 1] & 0x80) == 0 ? 0 : der[at + 1] & 0x7f);
  }

  private static int length(byte[] der, int at) {
    int length = 0;
    for (int i = at + 2; i < header(der, at); i++) {
      length = length << 8 | der[i] & 0xff;
    }
    return header(der, at) == at + 2 ? der[at + 1] : length;
  }

  private static byte[] tagged(int tag, byte[] one, byte[] two, byte[] three) {
    int size = one.length + two.length + three.length;
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    out.write(tag);
    if (size > 127) {
      out.write(size > 255 ? 0x82 : 0x81);
    }
    if (size > 255) {
      out.write(size >> 8);
    }
    out.write(size);
    out.writeBytes(one);
    out.writeBytes(two);
    out.writeBytes(three);
    return out.toByteArray();
  }

  private static boolean isPair(PrivateKey own, PublicKey other) throws GeneralSecurityException {
    String algorithm =
        switch (other.getAlgorithm()) {
          case "RSA" -> "SHA256withRSA";
          case "EC" -> "SHA256withECDSA";
          default -> other.getAlgorithm();
        };
    Signature signature = Signature.getInstance(algorithm);
    signature.initSign(own);
    signature.update(NONE);
    byte[] signed = signature.sign();
    signature.initVerify(other);
    signature.update(NONE);
    try {
      return signature.verify(signed);
    } catch (SignatureException error) {
      return false;
    }
  }

  private static String text(String field, Path path) {
    try {
      return Files.readString(path, StandardCharsets.ISO_8859_1);
    } catch (IOException error) {
      throw new InvalidException(field, path + ": cannot be read: " + error.getClass().getSimpleName());
    }
  }

  private List<String> files() {
    List<String> all = new ArrayList<>();
    for (Path path : new Path[] {ca, cert, key}) {
      try {
        BasicFileAttributes one = path == null ? null : Files.readAttributes(path, BasicFileAttributes.class);
        all.add(one == null ? "" : one.fileKey() + " " + one.lastModifiedTime() + " " + one.size());
      } catch (IOException error) {
        all.add("");
      }
    }
    return all;
  }
}
