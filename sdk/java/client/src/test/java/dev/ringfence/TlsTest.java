package dev.ringfence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** PEM files, as openssl writes them. */
final class TlsTest {
  @TempDir static Path folder;

  @BeforeAll
  static void make() throws Exception {
    String script =
        """
        set -e
        openssl genrsa -traditional -out rsa-old.key 2048 2>/dev/null
        openssl pkcs8 -topk8 -nocrypt -in rsa-old.key -out rsa.key
        openssl ecparam -name prime256v1 -genkey -noout -out ec-old.key
        openssl pkcs8 -topk8 -nocrypt -in ec-old.key -out ec.key
        openssl genpkey -algorithm ed25519 -out ed.key
        for k in rsa ec ed; do openssl req -x509 -new -key $k.key -subj /CN=$k -days 2 -out $k.pem; done
        cp rsa.pem rsa-old.pem; cp ec.pem ec-old.pem
        openssl pkcs8 -topk8 -passout pass:x -in rsa.key -out encrypted.key
        cat rsa.pem ec.pem > bundle.pem
        (echo 'text before'; sed 's/$/\\r/' ec.pem) > crlf.pem
        openssl x509 -in ec.pem -outform der -out der.pem
        : > empty.pem
        """;
    Process process = new ProcessBuilder("bash", "-c", script).directory(folder.toFile()).inheritIO().start();
    assertEquals(0, process.waitFor());
  }

  private static Path file(String name) {
    return folder.resolve(name);
  }

  @ParameterizedTest
  @ValueSource(strings = {"rsa", "rsa-old", "ec", "ec-old", "ed"})
  void aKeyInEachFormIsRead(String name) {
    assertNotNull(new Tls(file("rsa.pem"), file(name + ".pem"), file(name + ".key")).context());
  }

  @ParameterizedTest
  @ValueSource(strings = {"bundle.pem", "crlf.pem"})
  void authoritiesAreRead(String name) {
    assertNotNull(new Tls(file(name), null, null).context());
  }

  @ParameterizedTest
  @CsvSource({
    "ca,      empty.pem, , ",
    "ca,      der.pem,   , ",
    "ca,      rsa.key,   , ",
    "ca,      none.pem,  , ",
    "cert,    rsa.pem,   empty.pem, rsa.key",
    "key,     rsa.pem,   rsa.pem,   ec.key",
    "key,     rsa.pem,   rsa.pem,   rsa.pem",
    "key,     rsa.pem,   rsa.pem,   encrypted.key",
    "key,     rsa.pem,   rsa.pem,   none.key",
    "key,     rsa.pem,   rsa.pem, "
  })
  void theErrorNamesFieldAndFile(String field, String ca, String cert, String key) {
    Path certificate = cert == null ? null : file(cert);
    InvalidException error =
        assertThrows(
            InvalidException.class, () -> new Tls(file(ca), certificate, key == null ? null : file(key)));
    assertEquals(field, error.field());
    String wrong = field.equals("ca") ? ca : field.equals("cert") ? cert : key;
    assertTrue(wrong == null || error.getMessage().contains(wrong), error.getMessage());
  }

  @Test
  void whatCannotBeUsedLeavesTheOldFilesInUse() throws IOException, InterruptedException {
    Path ca = file("changing.pem");
    Files.copy(file("rsa.pem"), ca);
    Tls tls = new Tls(ca, null, null);
    Files.writeString(ca, "broken");
    // It looks at the files once a second.
    Thread.sleep(1_100);
    assertNotNull(tls.context());
  }
}
