package tests

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// postgres starts a real PostgreSQL of the system's packages with the guard and a table that is protected, and returns its URL. It refuses to run as
// root, so as root it runs as nobody.
func postgres(t *testing.T) string {
	program := os.Getenv("RINGFENCE_UNDER_TEST")
	if program == "" {
		t.Skip("RINGFENCE_UNDER_TEST names no program, which has the guard")
	}
	dir, err := os.MkdirTemp("", "ringfence-go-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	attributes := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		attributes.Credential = &syscall.Credential{Uid: 65_534, Gid: 65_534}
		if err := os.Chown(dir, 65_534, 65_534); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(250), 1+rand.N(250), 1+rand.N(250))
	made := exec.Command(installed("initdb"), "-D", data, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
	made.Dir, made.SysProcAttr = dir, attributes
	if said, err := made.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v: %s", err, said)
	}
	server := exec.Command(installed("postgres"), "-D", data, "-h", host, "-c", "unix_socket_directories=", "-c", "fsync=off")
	server.Dir, server.SysProcAttr = dir, attributes
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGINT)
		_ = server.Wait()
	})
	url := "postgresql://postgres@" + host + ":5432/postgres"
	ready(t, url)
	guard, err := exec.Command(program, "guard", "postgres").Output()
	if err != nil {
		t.Fatal(err)
	}
	run(t, url, string(bytes.TrimSpace(guard)))
	run(t, url, "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL); INSERT INTO accounts VALUES (42, 100)")
	run(t, url, "SELECT ringfence.protect('accounts', 'accounts/', 'id')")
	return url
}

func installed(name string) string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	return append(found, name)[0]
}

func ready(t *testing.T, url string) {
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		conn, err := pgx.Connect(t.Context(), url)
		if err == nil {
			_ = conn.Close(t.Context())
			return
		}
		if time.Since(begun) > soon {
			t.Fatal(err)
		}
	}
}

func run(t *testing.T, url, statements string) {
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.PgConn().Exec(t.Context(), statements).ReadAll(); err != nil {
		t.Fatal(err)
	}
}

func pool(t *testing.T, url string) *pgxpool.Pool {
	made, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.Close)
	return made
}
