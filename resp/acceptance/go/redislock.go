package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
)

// redislockSteps plays bsm/redislock.
func redislockSteps() []step {
	locks := redislock.New(client)
	patient := &redislock.Options{RetryStrategy: redislock.LinearBackoff(50 * time.Millisecond)}

	obtainsRefreshesAndReleases := func(ctx context.Context, key string) error {
		lock, err := locks.Obtain(ctx, key, 10*time.Second, nil)
		if err != nil {
			return err
		}
		_, refused := locks.Obtain(ctx, key, 10*time.Second, nil)
		if err := lock.Refresh(ctx, 20*time.Second, nil); err != nil {
			return err
		}
		longer, _ := lock.TTL(ctx)
		if err := lock.Refresh(ctx, 5*time.Second, nil); err != nil {
			return err
		}
		shorter, _ := lock.TTL(ctx)
		if err := lock.Release(ctx); err != nil {
			return err
		}
		left, err := lock.TTL(ctx)
		again := lock.Release(ctx)
		return errors.Join(err, all(
			errors.Is(refused, redislock.ErrNotObtained), longer > 17*time.Second, shorter <= 5*time.Second, left == 0,
			errors.Is(again, redislock.ErrLockNotHeld),
		))
	}

	aWaiterGetsItNext := func(ctx context.Context, key string) error {
		first, err := locks.Obtain(ctx, key, 10*time.Second, nil)
		if err != nil {
			return err
		}
		time.AfterFunc(200*time.Millisecond, func() { _ = first.Release(ctx) })
		second, err := locks.Obtain(ctx, key, 10*time.Second, patient)
		if err != nil {
			return err
		}
		return second.Release(ctx)
	}

	obtainsAgainWithOneToken := func(ctx context.Context, key string) error {
		first, err := locks.Obtain(ctx, key, 10*time.Second, &redislock.Options{Token: "the same", Metadata: "first"})
		if err != nil {
			return err
		}
		second, err := locks.Obtain(ctx, key, 20*time.Second, &redislock.Options{Token: "the same", Metadata: "second"})
		if err != nil {
			return err
		}
		left, err := second.TTL(ctx)
		lost := first.Release(ctx)
		return errors.Join(err, second.Release(ctx), all(left > 17*time.Second, errors.Is(lost, redislock.ErrLockNotHeld)))
	}

	aLateReleaseSparesTheNewerHolder := func(ctx context.Context, key string) error {
		late, err := locks.Obtain(ctx, key, 300*time.Millisecond, nil)
		if err != nil {
			return err
		}
		newer, err := locks.Obtain(ctx, key, 10*time.Second, patient)
		if err != nil {
			return err
		}
		released, refreshed := late.Release(ctx), late.Refresh(ctx, time.Minute, nil)
		left, err := newer.TTL(ctx)
		return errors.Join(err, newer.Release(ctx), all(
			errors.Is(released, redislock.ErrLockNotHeld), errors.Is(refreshed, redislock.ErrNotObtained), left > 0,
		))
	}

	aRevokedOneIsLost := func(ctx context.Context, key string) error {
		lock, err := locks.Obtain(ctx, key, 10*time.Second, nil)
		if err != nil {
			return err
		}
		if err := revoke(ctx, key, lock.Token()); err != nil {
			return err
		}
		refreshed := lock.Refresh(ctx, 10*time.Second, nil)
		return all(errors.Is(refreshed, redislock.ErrNotObtained))
	}

	aGrantHasALargerToken := func(ctx context.Context, key string) error {
		var tokens []int64
		for range 2 {
			lock, err := locks.Obtain(ctx, key, 10*time.Second, nil)
			if err != nil {
				return err
			}
			shown, err := token(ctx, key, lock.Token()+lock.Metadata())
			if err := errors.Join(err, lock.Release(ctx)); err != nil {
				return err
			}
			tokens = append(tokens, shown)
		}
		return all(0 < tokens[0], tokens[0] < tokens[1])
	}

	steps := []step{
		{"obtainsRefreshesAndReleases", obtainsRefreshesAndReleases},
		{"aWaiterGetsItNext", aWaiterGetsItNext},
		{"obtainsAgainWithOneToken", obtainsAgainWithOneToken},
		{"aLateReleaseSparesTheNewerHolder", aLateReleaseSparesTheNewerHolder},
	}
	return append(steps, onRingfence(
		step{"aRevokedOneIsLost", aRevokedOneIsLost}, step{"aGrantHasALargerToken", aGrantHasALargerToken},
	)...)
}
