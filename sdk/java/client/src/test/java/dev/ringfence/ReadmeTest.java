package dev.ringfence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.tools.JavaCompiler;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.io.TempDir;

/** Runs what the README says: each example alone, as it stands there, on real servers. It prints what its lines with {@code //>} say. */
final class ReadmeTest {
  private static Program node;
  private static Program postgres;

  @TempDir static Path folder;

  @BeforeAll
  static void start() throws Exception {
    node = Program.node();
    postgres = Program.postgres();
  }

  @AfterAll
  static void stop() throws Exception {
    node.close();
    postgres.close();
  }

  @TestFactory
  List<DynamicTest> examples() throws Exception {
    String readme = Files.readString(Path.of("../README.md"));
    Matcher block = Pattern.compile("(?ms)^```java\n(.*?)^```$").matcher(readme);
    List<DynamicTest> tests = new ArrayList<>();
    while (block.find()) {
      String example = block.group(1);
      String name = "Example" + tests.size();
      tests.add(DynamicTest.dynamicTest(name, () -> play(name, example)));
    }
    assertTrue(tests.size() >= 6, "the README has " + tests.size() + " examples");
    return tests;
  }

  private static void play(String name, String example) throws Exception {
    Matcher line = Pattern.compile("(?m)^ *//> (.*)$").matcher(example);
    StringBuilder expected = new StringBuilder();
    while (line.find()) {
      expected.append(line.group(1)).append('\n');
    }
    String imports = String.join("\n", example.lines().filter(one -> one.startsWith("import ")).toList());
    String body = String.join("\n", example.lines().filter(one -> !one.startsWith("import ")).toList());
    String placed =
        body.replaceAll("http://localhost:740[123]", node.url()).replace("//localhost:5432", "//" + postgres.host + ":5432");
    Path file = folder.resolve(name + ".java");
    Files.writeString(
        file, imports + "\npublic class " + name + " { public static void run() throws Exception {\n" + placed + "\n}}");
    JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
    ByteArrayOutputStream said = new ByteArrayOutputStream();
    int status =
        compiler.run(null, said, said, "-cp", System.getProperty("java.class.path"), "-d", folder.toString(), file.toString());
    assertEquals(0, status, said.toString(StandardCharsets.UTF_8));
    ByteArrayOutputStream printed = new ByteArrayOutputStream();
    PrintStream before = System.out;
    try (URLClassLoader loader = new URLClassLoader(new URL[] {folder.toUri().toURL()})) {
      System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
      loader.loadClass(name).getMethod("run").invoke(null);
      // Nobody waits for hooks.
      Program.until("it prints " + expected, () -> printed.toString(StandardCharsets.UTF_8).contentEquals(expected));
    } finally {
      System.setOut(before);
    }
    assertEquals(expected.toString(), printed.toString(StandardCharsets.UTF_8));
  }
}
