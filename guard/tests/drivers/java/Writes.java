import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.DriverManager;
import java.sql.SQLException;

/** A program that knows nothing of tokens. For each line of its input, it writes by JDBC, and prints what came of it. */
class Writes {
    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        try (var db = DriverManager.getConnection(arguments[0])) {
            db.setAutoCommit(false);
            while (lines.readLine() != null) {
                try (var update = db.prepareStatement("UPDATE orders SET total = total + ? WHERE id = ?")) {
                    update.setInt(1, 1);
                    update.setInt(2, 42);
                    update.executeUpdate();
                    db.commit();
                    System.out.println("written");
                } catch (SQLException e) {
                    db.rollback();
                    System.out.println(e.getSQLState());
                }
            }
        }
    }
}
