package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
)

// redsyncSteps plays go-redsync with one server.
func redsyncSteps() []step {
	locks := redsync.New(goredis.NewPool(client))
	once := redsync.WithTries(1)
	patient := []redsync.Option{redsync.WithTries(200), redsync.WithRetryDelay(50 * time.Millisecond)}

	acquiresExtendsAndReleases := func(ctx context.Context, key string) error {
		first, second := locks.NewMutex(key, once), locks.NewMutex(key, once)
		if err := first.LockContext(ctx); err != nil {
			return err
		}
		valid, err := first.ValidContext(ctx)
		var taken *redsync.ErrTaken
		refused := errors.As(second.TryLockContext(ctx), &taken)
		time.Sleep(100 * time.Millisecond)
		before := pttl(ctx, key)
		extended, extendErr := first.ExtendContext(ctx)
		after := pttl(ctx, key)
		unlocked, unlockErr := first.UnlockContext(ctx)
		if err := errors.Join(err, extendErr, unlockErr, second.LockContext(ctx)); err != nil {
			return err
		}
		_, err = second.UnlockContext(ctx)
		return errors.Join(err, all(valid, refused, extended, after > before, unlocked, pttl(ctx, key) < 0))
	}

	retriesWithOneValue := func(ctx context.Context, key string) error {
		first, second := locks.NewMutex(key, once), locks.NewMutex(key, patient...)
		if err := first.LockContext(ctx); err != nil {
			return err
		}
		time.AfterFunc(200*time.Millisecond, func() { _, _ = first.UnlockContext(ctx) })
		if err := second.LockContext(ctx); err != nil {
			return err
		}
		unlocked, err := second.UnlockContext(ctx)
		return errors.Join(err, all(unlocked))
	}

	aLateUnlockSparesTheNewerHolder := func(ctx context.Context, key string) error {
		late := locks.NewMutex(key, once, redsync.WithExpiry(500*time.Millisecond), redsync.WithTimeoutFactor(0.5))
		newer := locks.NewMutex(key, patient...)
		if err := late.LockContext(ctx); err != nil {
			return err
		}
		if err := newer.LockContext(ctx); err != nil {
			return err
		}
		unlocked, _ := late.UnlockContext(ctx)
		extended, _ := late.ExtendContext(ctx)
		valid, err := newer.ValidContext(ctx)
		done, unlockErr := newer.UnlockContext(ctx)
		again, againErr := newer.UnlockContext(ctx)
		expired := errors.Is(againErr, redsync.ErrLockAlreadyExpired)
		return errors.Join(err, unlockErr, all(!unlocked, !extended, valid, done, !again, expired))
	}

	extendAcquiresWhatHasEnded := func(ctx context.Context, key string) error {
		options := []redsync.Option{once, redsync.WithExpiry(500 * time.Millisecond), redsync.WithTimeoutFactor(0.5), redsync.WithSetNXOnExtend()}
		lock := locks.NewMutex(key, options...)
		if err := lock.LockContext(ctx); err != nil {
			return err
		}
		for pttl(ctx, key) >= 0 {
			time.Sleep(20 * time.Millisecond)
		}
		extended, err := lock.ExtendContext(ctx)
		return errors.Join(err, all(extended, pttl(ctx, key) > 0))
	}

	aGrantHasALargerToken := func(ctx context.Context, key string) error {
		var tokens []int64
		for range 2 {
			lock := locks.NewMutex(key, once)
			if err := lock.LockContext(ctx); err != nil {
				return err
			}
			shown, err := token(ctx, key, lock.Value())
			_, unlockErr := lock.UnlockContext(ctx)
			if err := errors.Join(err, unlockErr); err != nil {
				return err
			}
			tokens = append(tokens, shown)
		}
		return all(0 < tokens[0], tokens[0] < tokens[1])
	}

	steps := []step{
		{"acquiresExtendsAndReleases", acquiresExtendsAndReleases},
		{"retriesWithOneValue", retriesWithOneValue},
		{"aLateUnlockSparesTheNewerHolder", aLateUnlockSparesTheNewerHolder},
		{"extendAcquiresWhatHasEnded", extendAcquiresWhatHasEnded},
	}
	return append(steps, onRingfence(step{"aGrantHasALargerToken", aGrantHasALargerToken})...)
}
