// Package pgxguard shows tokens to the guard for PostgreSQL, through pgx. See package sqlguard.
package pgxguard

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	ringfence "ringfence.dev/sdk/go"
	"ringfence.dev/sdk/go/sqlguard"
)

// An Execer is a *pgxpool.Pool, *pgx.Conn or pgx.Tx.
type Execer interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
}

// A Beginner is a *pgxpool.Pool or *pgx.Conn.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Touch tells the guard the lease's token: call it before the first read. The error is a [ringfence.StaleError] if a newer holder was there.
func Touch(ctx context.Context, on Execer, lease *ringfence.Lease, key string) error {
	return show(ctx, on, "SELECT ringfence.touch($1, $2, $3)", lease, key)
}

// Claim guards the later writes of the transaction. The error is a [ringfence.StaleError] if a newer holder was there.
func Claim(ctx context.Context, tx pgx.Tx, lease *ringfence.Lease, key string) error {
	return show(ctx, tx, "SELECT ringfence.claim($1, $2, $3)", lease, key)
}

// Guarded works in a transaction that begins with a claim, so that all its writes are guarded: they land before a newer holder reads, or not at all. A
// read after the claim needs no touch. If the work fails or panics, nothing is written.
func Guarded(ctx context.Context, db Beginner, lease *ringfence.Lease, key string, work func(pgx.Tx) error) error {
	if err := lease.Err(); err != nil {
		return err
	}
	return sqlguard.Stale(pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := Claim(ctx, tx, lease, key); err != nil {
			return err
		}
		return work(tx)
	}))
}

func show(ctx context.Context, on Execer, query string, lease *ringfence.Lease, key string) error {
	args, err := sqlguard.Args(lease, key)
	if err != nil {
		return err
	}
	_, err = on.Exec(ctx, query, args...)
	return sqlguard.Stale(err)
}
