// A program that knows nothing of tokens. For each line of its input, it writes with pgx or go-sql-driver, and prints what came of it.
package main

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
)

func main() {
	driver := "mysql"
	if strings.HasPrefix(os.Args[1], "postgres") {
		driver = "pgx"
	}
	db, err := sql.Open(driver, os.Args[1])
	lines := bufio.NewScanner(os.Stdin)
	for err == nil && lines.Scan() {
		fmt.Println(outcome(write(db)))
	}
	if err != nil {
		fmt.Println(err)
	}
}

func write(db *sql.DB) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.Exec("UPDATE orders SET total = total + 1 WHERE id = 42"); err != nil {
		return err
	}
	return tx.Commit()
}

func outcome(err error) string {
	var ofPostgres *pgconn.PgError
	var ofMySQL *mysql.MySQLError
	switch {
	case err == nil:
		return "written"
	case errors.As(err, &ofPostgres):
		return ofPostgres.Code
	case errors.As(err, &ofMySQL):
		return string(ofMySQL.SQLState[:])
	}
	return err.Error()
}
