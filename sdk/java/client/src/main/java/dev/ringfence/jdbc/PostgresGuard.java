package dev.ringfence.jdbc;

import dev.ringfence.Lease;
import dev.ringfence.StaleException;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.lang.ref.Reference;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;
import javax.sql.DataSource;

/**
 * Writes that PostgreSQL refuses once their lease has ended.
 *
 * <pre>{@code
 * PostgresGuard.install(connection); // once, as in a migration
 * PostgresGuard.protect(connection, "accounts", "accounts/", "id");
 *
 * try (Lease lease = client.lock("accounts/42").acquire()) {
 *   PostgresGuard.touch(dataSource, lease); // before the first read
 *   PostgresGuard.guarded(dataSource, lease, tx -> update(tx));
 * }
 * }</pre>
 *
 * <p>A stale token is a {@link StaleException}. A write to a protected table without a claim is an error of the database (RF428). Where
 * a method takes no key, the lease has only one.
 */
public final class PostgresGuard {
  /** The SQLSTATE of a stale token. */
  private static final String STALE = "RF412";
  /** Causes may form a circle. */
  private static final int MAX_CAUSES = 100;

  private PostgresGuard() {}

  /**
   * What is done in a transaction.
   *
   * @param <T> its result
   */
  @FunctionalInterface
  public interface Transaction<T> {
    /**
     * Reads and writes.
     *
     * @param connection the connection that the transaction is open on
     * @return the result
     * @throws SQLException if it fails: then nothing was written
     */
    T run(Connection connection) throws SQLException;
  }

  /**
   * Makes the schema {@code ringfence}, or brings it up to date, which keeps all numbers. In the caller's transaction, if one is open.
   *
   * @param connection of an owner of the database
   * @throws SQLException if the database refuses that
   */
  public static void install(Connection connection) throws SQLException {
    try (InputStream file = PostgresGuard.class.getResourceAsStream("postgres.sql");
        Statement statement = connection.createStatement()) {
      String sql = new String(file.readAllBytes(), StandardCharsets.UTF_8);
      // It has question marks, which are no parameters.
      statement.setEscapeProcessing(false);
      statement.execute(sql);
    } catch (IOException error) {
      throw new UncheckedIOException("the jar has the SQL", error);
    }
  }

  /**
   * Refuses writes to a table without a claim.
   *
   * @param connection of the owner of the table
   * @param table as it is written in SQL, with quotes where they are needed
   * @param key with {@code idColumn}, what stands before the id in the key of each row; without, the key of the whole table
   * @param idColumn the column of the id; {@code null} if all rows have one key
   * @throws SQLException if the database refuses that
   */
  public static void protect(Connection connection, String table, String key, String idColumn) throws SQLException {
    String sql = "SELECT ringfence.protect(CAST(? AS regclass), ?, CAST(? AS name))";
    try (PreparedStatement statement = connection.prepareStatement(sql)) {
      statement.setString(1, table);
      statement.setString(2, key);
      statement.setString(3, idColumn);
      statement.execute();
    }
  }

  /**
   * Shows the guard the token in a transaction of its own, before the first read: later reads see all that older holders wrote.
   *
   * @param dataSource the database
   * @param lease the lease
   * @throws StaleException if a newer holder was there
   * @throws SQLException if the database fails
   */
  public static void touch(DataSource dataSource, Lease lease) throws SQLException {
    touch(dataSource, lease, onlyKey(lease));
  }

  /**
   * The same, for one of several keys.
   *
   * @param dataSource the database
   * @param lease the lease
   * @param key one of its keys
   * @throws StaleException if a newer holder was there
   * @throws SQLException if the database fails
   */
  public static void touch(DataSource dataSource, Lease lease, String key) throws SQLException {
    try (Connection connection = dataSource.getConnection()) {
      boolean commitsItself = connection.getAutoCommit();
      show(connection, "touch", lease, key);
      if (!commitsItself) {
        connection.commit();
      }
    }
  }

  /**
   * Guards the later writes of the transaction that is open on this connection.
   *
   * @param connection with a transaction: it must not commit by itself
   * @param lease the lease
   * @throws StaleException if a newer holder was there; then the transaction has failed
   * @throws SQLException if the database fails
   */
  public static void claim(Connection connection, Lease lease) throws SQLException {
    claim(connection, lease, onlyKey(lease));
  }

  /**
   * The same, for one of several keys.
   *
   * @param connection with a transaction: it must not commit by itself
   * @param lease the lease
   * @param key one of its keys
   * @throws StaleException if a newer holder was there; then the transaction has failed
   * @throws SQLException if the database fails
   */
  public static void claim(Connection connection, Lease lease, String key) throws SQLException {
    if (connection.getAutoCommit()) {
      throw new SQLException("a claim is for the transaction that it is in, and this connection commits by itself");
    }
    show(connection, "claim", lease, key);
  }

  /**
   * Runs work in a transaction that begins with a claim, so that all its writes are guarded: they land before a newer holder reads, or
   * not at all. A read in it needs no touch.
   *
   * @param dataSource the database
   * @param lease the lease
   * @param work what to do
   * @param <T> its result
   * @return the result of the work
   * @throws StaleException if a newer holder was there
   * @throws SQLException if the database or the work fails
   */
  public static <T> T guarded(DataSource dataSource, Lease lease, Transaction<T> work) throws SQLException {
    return guarded(dataSource, lease, onlyKey(lease), work);
  }

  /**
   * The same, for one of several keys.
   *
   * @param dataSource the database
   * @param lease the lease
   * @param key one of its keys
   * @param work what to do
   * @param <T> its result
   * @return the result of the work
   * @throws StaleException if a newer holder was there
   * @throws SQLException if the database or the work fails
   */
  public static <T> T guarded(DataSource dataSource, Lease lease, String key, Transaction<T> work)
      throws SQLException {
    lease.check();
    Connection connection = dataSource.getConnection();
    boolean commitsItself = true;
    boolean isDone = false;
    try {
      commitsItself = connection.getAutoCommit();
      connection.setAutoCommit(false);
      claim(connection, lease, key);
      T result = work.run(connection);
      connection.commit();
      isDone = true;
      return result;
    } catch (StaleException error) {
      throw error;
    } catch (SQLException | RuntimeException error) {
      throwIfStale(error);
      throw error;
    } finally {
      boolean asBefore = commitsItself;
      if (isDone || quietly(connection::rollback)) {
        quietly(() -> connection.setAutoCommit(asBefore));
      } else {
        // What is still open, another would commit.
        quietly(() -> connection.abort(Runnable::run));
      }
      quietly(connection::close);
      // Else it might be collected meanwhile, and so released.
      Reference.reachabilityFence(lease);
    }
  }

  /** What ends a transaction. */
  @FunctionalInterface
  private interface End {
    void run() throws SQLException;
  }

  /** Returns whether it did not fail. */
  private static boolean quietly(End end) {
    try {
      end.run();
      return true;
    } catch (Exception error) {
      // The connection is broken. What was written is committed, or the error of the work says more.
      return false;
    }
  }

  private static void show(Connection connection, String name, Lease lease, String key) throws SQLException {
    lease.check();
    String sql = "SELECT ringfence." + name + "(?, ?, ?)";
    try (PreparedStatement statement = connection.prepareStatement(sql)) {
      statement.setString(1, key);
      statement.setLong(2, lease.token());
      statement.setLong(3, lease.fence(key));
      statement.execute();
    } catch (SQLException error) {
      throwIfStale(error);
      throw error;
    }
  }

  /** Throws the error of the guard, if it is the cause: what maps objects to tables wraps it. */
  private static void throwIfStale(Exception error) {
    Throwable cause = error;
    for (int depth = 0; cause != null && depth < MAX_CAUSES; depth++) {
      if (cause instanceof SQLException sql && STALE.equals(sql.getSQLState())) {
        throw new StaleException(sql.getMessage(), error);
      }
      cause = cause.getCause();
    }
  }

  private static String onlyKey(Lease lease) {
    if (lease.keys().size() != 1) {
      throw new IllegalArgumentException("key: is one of the lease's keys: " + lease.keys());
    }
    return lease.keys().get(0);
  }
}
