package tests

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	ringfence "ringfence.dev/sdk/go"
	"ringfence.dev/sdk/go/ringfencetest"
)

func TestRemainingTellsALossAsStateDoes(t *testing.T) {
	cluster := ringfencetest.Start(t)
	lease, err := cluster.Client().Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	cluster.Advance(time.Minute)
	if left := lease.Remaining(); left != 0 || lease.Context().Err() == nil {
		t.Error("nobody was told, with so much left: ", left)
	}
}

func TestALeaseThatIsDetachedInAnOutageIsNotRenewedAfterIt(t *testing.T) {
	cluster := ringfencetest.Start(t)
	var failed, renewed atomic.Int32
	count := func(n *atomic.Int32, lease ringfence.LeaseView) {
		if lease.Keys[0] == "other" {
			n.Add(1)
		}
	}
	client := cluster.Client(ringfence.WithHooks(ringfence.Hooks{
		Failed:  func(lease ringfence.LeaseView, _ string) { count(&failed, lease) },
		Renewed: func(lease ringfence.LeaseView) { count(&renewed, lease) },
	}))
	lease, err := client.Acquire(t.Context(), "a", ringfence.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	other, err := client.Acquire(t.Context(), "other", ringfence.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	cluster.Away()
	cluster.Advance(21 * time.Second)
	// By then the pauses are so long that it is detached in one.
	until(t, "renewals fail", func() bool { return failed.Load() >= 6 })
	if _, err := lease.Detach(); err != nil {
		t.Fatal(err)
	}
	cluster.Back()
	until(t, "the other lease is renewed", func() bool { return renewed.Load() > 0 })
	cluster.Advance(39 * time.Second)
	if !isFree(cluster, "a")() || isFree(cluster, "other")() {
		t.Error("it was renewed: ", lease.State(), other.State())
	}
}

func TestADetachedLeaseIsLostForWhoWorksUnderIt(t *testing.T) {
	cluster := ringfencetest.Start(t)
	err := cluster.Client().Do(t.Context(), "a", func(_ context.Context, lease *ringfence.Lease) error {
		if _, err := lease.Detach(); err != nil {
			return err
		}
		if err := lease.Release(t.Context()); err != nil || isFree(cluster, "a")() {
			t.Error("it was released: ", err)
		}
		cluster.Advance(time.Minute)
		return nil
	})
	if lost := (*ringfence.LostError)(nil); !errors.As(err, &lost) || lost.Reason != ringfence.Unconfirmed {
		t.Error(err)
	}
}

func TestCloseTellsWhoWorksUnderADetachedLease(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	lease, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lease.Detach(); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(t.Context()); err != nil || lease.Context().Err() == nil || isFree(cluster, "a")() {
		t.Error("nobody was told, or it was released: ", err)
	}
}

func TestCloseWaitsForNoHookBeyondItsContext(t *testing.T) {
	cluster := ringfencetest.Start(t)
	blocked := make(chan struct{})
	var isLate atomic.Bool
	client := cluster.Client(ringfence.WithHooks(ringfence.Hooks{Released: func(ringfence.LeaseView) {
		select {
		case <-blocked:
		case <-time.After(900 * time.Millisecond):
			isLate.Store(true)
		}
	}}))
	lease, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	bounded, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	ended := &anEnded{bounded, make(chan struct{}), nil}
	close(ended.done)
	if err := client.Close(ended); err != nil || isLate.Load() {
		t.Error("it has waited for the hook: ", err)
	}
	close(blocked)
}

func TestCloseHasSaidWhatIsLeftWhenItReturns(t *testing.T) {
	cluster, said := ringfencetest.Start(t), &log{}
	blocked := make(chan struct{})
	defer close(blocked)
	client := cluster.Client(ringfence.WithLogger(slog.New(slog.NewTextHandler(said, nil))), ringfence.WithHooks(ringfence.Hooks{
		Released: func(ringfence.LeaseView) { <-blocked },
	}))
	lease, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.KeepAlive(lease)
	cluster.Silent()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	left := (*ringfence.LeftError)(nil)
	if err := client.Close(ctx); !errors.As(err, &left) || !said.has(ringfence.WarnClose) {
		t.Error("the log does not have ", err)
	}
	cluster.Back()
}

func TestCloseWaitsForNoLoggerThatBlocks(t *testing.T) {
	cluster := ringfencetest.Start(t)
	blocked := make(chan struct{})
	client := cluster.Client(ringfence.WithLogger(slog.New(slog.NewTextHandler(blocking(blocked), nil))))
	lease, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.KeepAlive(lease)
	cluster.Silent()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	left := (*ringfence.LeftError)(nil)
	if err := client.Close(ctx); !errors.As(err, &left) {
		t.Error(err)
	}
	close(blocked)
	cluster.Back()
}

type blocking chan struct{}

func (b blocking) Write(text []byte) (int, error) {
	<-b
	return len(text), nil
}

func TestWhatAnAdoptionCannotDoIsInvalid(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	lease, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	leaseID, err := lease.Detach()
	if err != nil {
		t.Fatal(err)
	}
	invalid := (*ringfence.InvalidError)(nil)
	for _, option := range []ringfence.Option{ringfence.TTL(15 * time.Second), ringfence.Wait(0), ringfence.Shared(), ringfence.Holder("b"), nil} {
		if _, err := client.Adopt(t.Context(), leaseID, option); !errors.As(err, &invalid) || invalid.Field != "options" {
			t.Error(err)
		}
	}
	if _, err := client.Adopt(t.Context(), leaseID, ringfence.MaxHold(time.Hour)); err != nil {
		t.Error(err)
	}
}
