// Package sqlguard shows tokens to the guard for PostgreSQL, through database/sql and any driver of it.
//
// The rule itself is in SQL: run `ringfence guard postgres | psql --single-transaction` once per database. SELECT ringfence.protect('accounts',
// 'accounts/', 'id') then refuses writes without a claim.
package sqlguard

import (
	"context"
	"database/sql"
	"errors"

	ringfence "ringfence.dev/sdk/go"
)

// staleState is the SQLSTATE of a stale token.
const staleState = "RF412"

// An Execer is a *sql.DB, *sql.Conn or *sql.Tx.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Touch tells the guard the lease's token: call it before the first read. The error is a [ringfence.StaleError] if a newer holder was there.
func Touch(ctx context.Context, on Execer, lease *ringfence.Lease, key string) error {
	return show(ctx, on, "SELECT ringfence.touch($1, $2, $3)", lease, key)
}

// Claim guards the later writes of the transaction. The error is a [ringfence.StaleError] if a newer holder was there.
func Claim(ctx context.Context, tx *sql.Tx, lease *ringfence.Lease, key string) error {
	return show(ctx, tx, "SELECT ringfence.claim($1, $2, $3)", lease, key)
}

// Guarded works in a transaction that begins with a claim, so that all its writes are guarded: they land before a newer holder reads, or not at all. A
// read after the claim needs no touch. If the work fails or panics, nothing is written.
func Guarded(ctx context.Context, db *sql.DB, lease *ringfence.Lease, key string, work func(*sql.Tx) error) error {
	if err := lease.Err(); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	// After a commit it does nothing.
	defer func() { _ = tx.Rollback() }()
	if err := Claim(ctx, tx, lease, key); err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return Stale(err)
	}
	return Stale(tx.Commit())
}

// Args are what ringfence.touch and ringfence.claim take. The error is a [ringfence.LostError] if the lease is lost.
func Args(lease *ringfence.Lease, key string) ([]any, error) {
	fence, err := lease.Fence(key)
	if err != nil {
		return nil, err
	}
	// Tokens have 53 bits.
	return []any{key, int64(lease.Token()), int64(fence)}, lease.Err()
}

// Stale makes a [ringfence.StaleError] of the guard's refusal, and leaves other errors as they are.
func Stale(err error) error {
	var refusal interface {
		error
		SQLState() string
	}
	if errors.As(err, &refusal) && refusal.SQLState() == staleState {
		return &ringfence.StaleError{Detail: refusal.Error(), Err: err}
	}
	return err
}

func show(ctx context.Context, on Execer, query string, lease *ringfence.Lease, key string) error {
	args, err := Args(lease, key)
	if err != nil {
		return err
	}
	_, err = on.ExecContext(ctx, query, args...)
	return Stale(err)
}
