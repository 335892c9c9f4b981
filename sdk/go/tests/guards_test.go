package tests

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"

	ringfence "ringfence.dev/sdk/go"
	"ringfence.dev/sdk/go/pgxguard"
	"ringfence.dev/sdk/go/ringfencetest"
	"ringfence.dev/sdk/go/sqlguard"
)

const (
	key = "accounts/42"
	add = "UPDATE accounts SET balance = balance + 5 WHERE id = 42"
)

// A writer is one of the two ways to the guard.
type writer struct {
	name string
	// touch touches, and write adds 5 under a claim.
	touch, write func(context.Context, *ringfence.Lease) error
}

func TestAStaleWriterIsRejected(t *testing.T) {
	url, cluster := postgres(t), ringfencetest.Start(t)
	pgxPool := pool(t, url)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for _, one := range []writer{
		{
			"pgx",
			func(ctx context.Context, lease *ringfence.Lease) error {
				return pgxguard.Touch(ctx, pgxPool, lease, key)
			},
			func(ctx context.Context, lease *ringfence.Lease) error {
				return pgxguard.Guarded(ctx, pgxPool, lease, key, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, add)
					return err
				})
			},
		},
		{
			"database/sql",
			func(ctx context.Context, lease *ringfence.Lease) error { return sqlguard.Touch(ctx, db, lease, key) },
			func(ctx context.Context, lease *ringfence.Lease) error {
				return sqlguard.Guarded(ctx, db, lease, key, func(tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, add)
					return err
				})
			},
		},
	} {
		t.Run(one.name, func(t *testing.T) { rejects(t, cluster, one) })
	}
	if got := balance(t, url); got != 110 {
		t.Errorf("the balance is %d", got)
	}
}

func rejects(t *testing.T, cluster *ringfencetest.Cluster, one writer) {
	// The first is cut off: its client does not know of the end.
	first, err := cluster.Client().Acquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	cluster.Expire(key)
	second, err := cluster.Client().Acquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := one.touch(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	stale := (*ringfence.StaleError)(nil)
	if err := one.write(t.Context(), first); !errors.As(err, &stale) {
		t.Error("a stale writer: ", err)
	}
	if err := one.touch(t.Context(), first); !errors.As(err, &stale) {
		t.Error("a stale reader: ", err)
	}
	if err := one.write(t.Context(), second); err != nil {
		t.Error(err)
	}
	if err := errors.Join(second.Release(t.Context())); err != nil {
		t.Error(err)
	}
	lost := (*ringfence.LostError)(nil)
	if err := one.write(t.Context(), second); !errors.As(err, &lost) {
		t.Error("a holder that has released: ", err)
	}
}

func TestAWriteWithoutAClaimIsRefusedAndItsErrorIsLeftAsItIs(t *testing.T) {
	url := postgres(t)
	_, err := pool(t, url).Exec(t.Context(), add)
	refused := (*pgconn.PgError)(nil)
	if !errors.As(sqlguard.Stale(err), &refused) || refused.Code != "RF428" {
		t.Error(err)
	}
}

func TestAConnectionClaimsByItself(t *testing.T) {
	url := postgres(t)
	run(t, url, "SELECT ringfence.protect('accounts', 'accounts/', 'id', by_connection => true)")
	cluster := ringfencetest.Start(t)
	lease, err := cluster.Client().Acquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	options, err := lease.PostgresOptions()
	if err != nil || !strings.Contains(options, "accounts%2F42=") {
		t.Fatal(options, err)
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["options"] = options
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, statement := range []string{"CALL ringfence.touch_all()", add} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Error(statement, err)
		}
	}
	if got := balance(t, url); got != 105 {
		t.Errorf("the balance is %d", got)
	}
}

func balance(t *testing.T, url string) int {
	var found int
	if err := pool(t, url).QueryRow(t.Context(), "SELECT balance FROM accounts").Scan(&found); err != nil {
		t.Fatal(err)
	}
	return found
}
