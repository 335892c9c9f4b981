package dev.ringfence.jdbc;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.ringfence.FakeCluster;
import dev.ringfence.Hooks;
import dev.ringfence.Lease;
import dev.ringfence.LeaseView;
import dev.ringfence.LostException;
import dev.ringfence.Program;
import dev.ringfence.Ringfence;
import dev.ringfence.StaleException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.postgresql.ds.PGSimpleDataSource;

final class PostgresGuardTest {
  private static final String ADD = "UPDATE accounts SET balance = balance + 1 WHERE id = 42";
  private static Program postgres;
  private static PGSimpleDataSource database;
  private static FakeCluster cluster;
  private static Ringfence client;

  @BeforeAll
  static void start() throws Exception {
    postgres = Program.postgres();
    database = postgres.database();
    cluster = new FakeCluster();
    client = cluster.client();
    try (Connection connection = database.getConnection();
        Statement statement = connection.createStatement()) {
      statement.execute("CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)");
      statement.execute("INSERT INTO accounts VALUES (42, 100)");
      PostgresGuard.install(connection);
      PostgresGuard.install(connection);
      PostgresGuard.protect(connection, "accounts", "accounts/", "id");
    }
  }

  @AfterAll
  static void stop() throws Exception {
    client.close();
    cluster.close();
    postgres.close();
  }

  private static int add(Connection connection) throws SQLException {
    try (Statement statement = connection.createStatement()) {
      return statement.executeUpdate(ADD);
    }
  }

  private static int balance() throws SQLException {
    try (Connection connection = database.getConnection();
        Statement statement = connection.createStatement();
        ResultSet found = statement.executeQuery("SELECT balance FROM accounts WHERE id = 42")) {
      found.next();
      return found.getInt(1);
    }
  }

  @Test
  void aStaleWriterIsRefused() throws Exception {
    // It does not know yet that another has the key.
    try (Ringfence other = Ringfence.connect(cluster.url());
        Lease paused = other.lock("accounts/42").acquire()) {
      client.adopt(paused.leaseId()).release();
      try (Lease newer = client.lock("accounts/42").acquire()) {
        PostgresGuard.touch(database, newer);
        int before = balance();
        StaleException stale =
            assertThrows(StaleException.class, () -> PostgresGuard.guarded(database, paused, PostgresGuardTest::add));
        assertTrue(stale.getCause() instanceof SQLException, "wrapped twice");
        assertThrows(StaleException.class, () -> PostgresGuard.touch(database, paused));
        assertEquals(before, balance());
        assertEquals(1, PostgresGuard.guarded(database, newer, PostgresGuardTest::add));
        assertEquals(before + 1, balance());
      }
    }
  }

  @Test
  void workThatFailsWritesNothing() throws Exception {
    try (Lease lease = client.lock("accounts/42").acquire()) {
      int before = balance();
      PostgresGuard.Transaction<Integer> work =
          tx -> {
            add(tx);
            throw new SQLException("it fails");
          };
      assertThrows(SQLException.class, () -> PostgresGuard.guarded(database, lease, work));
      assertEquals(before, balance());
    }
  }

  @Test
  void aStaleTokenIsFoundInWhatWrapsIt() throws Exception {
    try (Lease lease = client.lock("accounts/42").acquire()) {
      SQLException stale = new SQLException("stale token", "RF412");
      PostgresGuard.Transaction<Integer> work =
          tx -> {
            throw new IllegalStateException("as of a mapper", stale);
          };
      assertThrows(StaleException.class, () -> PostgresGuard.guarded(database, lease, work));
    }
  }

  /** A database whose connections break once a transaction is over. */
  private static DataSource breaking() {
    return connecting(
        real ->
            (self, method, arguments) -> {
              Object result = method.invoke(real, arguments);
              if (method.getName().equals("close") || method.getName().equals("setAutoCommit") && (boolean) arguments[0]) {
                throw new SQLException("the connection is broken");
              }
              return result;
            });
  }

  private static DataSource connecting(Function<Connection, InvocationHandler> how) {
    return proxy(
        DataSource.class,
        (source, method, arguments) -> proxy(Connection.class, how.apply(database.getConnection())));
  }

  private static <T> T proxy(Class<T> type, InvocationHandler handler) {
    return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, handler));
  }

  @Test
  void aConnectionThatBreaksAfterwardsHidesNothing() throws Exception {
    try (Lease lease = client.lock("accounts/42").acquire()) {
      int before = balance();
      assertEquals(1, PostgresGuard.guarded(breaking(), lease, PostgresGuardTest::add));
      assertEquals(before + 1, balance());
      PostgresGuard.Transaction<Integer> work =
          tx -> {
            throw new SQLException("it fails");
          };
      SQLException told =
          assertThrows(SQLException.class, () -> PostgresGuard.guarded(breaking(), lease, work));
      assertEquals("it fails", told.getMessage());
    }
  }

  @Test
  void whatCannotBeRolledBackIsNotCommitted() throws Exception {
    // As of a pool, whose errors are its own.
    DataSource failing =
        connecting(
            real ->
                (self, method, arguments) -> {
                  if (method.getName().equals("rollback")) {
                    throw new IllegalStateException("the pool fails");
                  }
                  return method.invoke(real, arguments);
                });
    try (Lease lease = client.lock("accounts/42").acquire()) {
      int before = balance();
      PostgresGuard.Transaction<Integer> work =
          tx -> {
            add(tx);
            throw new SQLException("it fails");
          };
      SQLException told = assertThrows(SQLException.class, () -> PostgresGuard.guarded(failing, lease, work));
      assertEquals("it fails", told.getMessage());
      assertEquals(before, balance());
    }
  }

  /** Does nothing, and returns as little. */
  private static Object nothing(Object self, Method method, Object[] arguments) {
    Class<?> type = method.getReturnType();
    return type == boolean.class ? false : type.isInterface() ? proxy(type, PostgresGuardTest::nothing) : null;
  }

  @Test
  void aLeaseIsNotDroppedWhileWorkIsGuardedByIt() throws Exception {
    Set<String> released = ConcurrentHashMap.newKeySet();
    Hooks hooks =
        new Hooks() {
          @Override
          public void released(LeaseView lease) {
            released.addAll(lease.keys());
          }
        };
    try (Ringfence own = cluster.client(hooks);
        Lease other = own.lock("accounts/1").acquire()) {
      // Only code that is compiled drops what it needs no more.
      for (int turn = 0; turn < 20_000; turn++) {
        PostgresGuard.guarded(proxy(DataSource.class, PostgresGuardTest::nothing), other, tx -> null);
      }
      PostgresGuard.Transaction<Boolean> work =
          tx -> {
            try {
              // The second is released after all that was found to be dropped with the first.
              for (String key : List.of("dropped/1", "dropped/2")) {
                own.lock(key).acquire();
                Program.until(
                    "it is collected",
                    () -> {
                      System.gc();
                      return released.contains(key);
                    });
              }
            } catch (Exception error) {
              throw new SQLException(error);
            }
            return released.contains("accounts/42");
          };
      assertFalse(PostgresGuard.guarded(database, own.lock("accounts/42").acquire(), work));
    }
  }

  @Test
  void aClaimNeedsATransactionAndAWriteAClaim() throws Exception {
    try (Lease lease = client.lock("accounts/42").acquire();
        Connection connection = database.getConnection()) {
      assertThrows(SQLException.class, () -> PostgresGuard.claim(connection, lease));
      assertEquals("RF428", assertThrows(SQLException.class, () -> add(connection)).getSQLState());
    }
  }

  @Test
  void nothingIsShownOfALostLease() throws Exception {
    Lease lease = client.lock("accounts/42").acquire();
    cluster.revoke("accounts/42");
    assertThrows(LostException.class, () -> PostgresGuard.touch(database, lease));
    assertThrows(LostException.class, lease::close);
  }
}
