package tests

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	ringfence "ringfence.dev/sdk/go"
	"ringfence.dev/sdk/go/ringfencetest"
)

// soon bounds what has to happen, on a busy machine too.
const soon = 30 * time.Second

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for begun := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begun) > soon {
			t.Fatal("not within a bound: ", what)
		}
	}
}

func isFree(cluster *ringfencetest.Cluster, key string) func() bool {
	return func() bool { return len(cluster.Holders(key)) == 0 && cluster.Waiters(key) == 0 }
}

func TestDoWorksUnderALease(t *testing.T) {
	cluster := ringfencetest.Start(t)
	err := cluster.Client().Do(t.Context(), "a", func(ctx context.Context, lease *ringfence.Lease) error {
		if holders := cluster.Holders("a"); len(holders) != 1 || holders[0] != lease.Token() {
			t.Error("the cluster has the holders ", holders)
		}
		return lease.Err()
	})
	if err != nil || !isFree(cluster, "a")() {
		t.Error(err, cluster.Holders("a"))
	}
}

func TestAPanicOfTheWorkGoesOnOnceTheLeaseIsReleased(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	defer func() {
		if recovered := recover(); recovered != "broken" {
			t.Error("it was swallowed: ", recovered)
		}
		if !isFree(cluster, "a")() {
			t.Error("the key is held")
		}
	}()
	_ = client.Do(t.Context(), "a", func(context.Context, *ringfence.Lease) error { panic("broken") })
}

func TestAGoroutineThatEndsInTheWorkHasReleased(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = client.Do(t.Context(), "a", func(context.Context, *ringfence.Lease) error {
			runtime.Goexit()
			return nil
		})
	}()
	<-ended
	if !isFree(cluster, "a")() {
		t.Error("the key is held")
	}
}

func TestAnErrorOfTheWorkIsPassedOnWhateverTheReleaseComesTo(t *testing.T) {
	cluster := ringfencetest.Start(t)
	broken := errors.New("broken")
	err := cluster.Client().Do(t.Context(), "a", func(context.Context, *ringfence.Lease) error {
		cluster.Revoke("a")
		return broken
	})
	if err != broken {
		t.Error(err)
	}
}

func TestWorkThatSucceedsAfterALossHasLost(t *testing.T) {
	cluster := ringfencetest.Start(t)
	err := cluster.Client().Do(t.Context(), "a", func(context.Context, *ringfence.Lease) error {
		cluster.Revoke("a")
		return nil
	})
	if lost := (*ringfence.LostError)(nil); !errors.As(err, &lost) || lost.Reason != ringfence.Revoked {
		t.Error(err)
	}
}

func TestTheContextOfTheWorkEndsWithBothAndHasTheValues(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	type key struct{}
	deadline := time.Now().Add(time.Hour)
	outer, cancel := context.WithDeadline(context.WithValue(t.Context(), key{}, 7), deadline)
	err := client.Do(outer, "a", func(ctx context.Context, lease *ringfence.Lease) error {
		if own, has := ctx.Deadline(); !has || !own.Equal(deadline) || ctx.Value(key{}) != 7 {
			t.Error("the context of the work has no deadline, or no values")
		}
		cancel()
		<-ctx.Done()
		if lease.Err() != nil {
			t.Error("the end of the caller's context has ended the lease")
		}
		return ctx.Err()
	})
	if err != context.Canceled || !isFree(cluster, "a")() {
		t.Error("a caller whose context has ended has not released: ", err, cluster.Holders("a"))
	}
	err = client.Do(t.Context(), "a", func(ctx context.Context, lease *ringfence.Lease) error {
		cluster.Advance(time.Minute)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if lost := (*ringfence.LostError)(nil); !errors.As(err, &lost) || lost.Reason != ringfence.Unconfirmed {
		t.Error(err)
	}
}

func TestAReleaseWithAContextThatHasEndedReleases(t *testing.T) {
	cluster := ringfencetest.Start(t)
	lease, err := cluster.Client().Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := lease.Release(ended); err != nil || !isFree(cluster, "a")() {
		t.Error(err, cluster.Holders("a"))
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	lease, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = client.Acquire(ctx, "a")
	if timedOut := (*ringfence.TimedOutError)(nil); !errors.As(err, &timedOut) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	until(t, "the place is given back", func() bool { return cluster.Waiters("a") == 0 })
	cluster.Silent()
	late, cancelLate := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancelLate()
	if err := lease.Renew(late, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	later, cancelLater := context.WithCancelCause(t.Context())
	why := errors.New("why")
	time.AfterFunc(50*time.Millisecond, func() { cancelLater(why) })
	if err := lease.Release(later); !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
		t.Error(err)
	}
	cluster.Back()
	until(t, "the release goes on in the background", isFree(cluster, "a"))
}
