package tests

import (
	"context"
	"log/slog"
	"runtime"
	"testing"
	"time"

	ringfence "ringfence.dev/sdk/go"
	"ringfence.dev/sdk/go/ringfencetest"
)

// collect has the collector find what nobody has, and what follows from that be done.
func collect() {
	for range 5 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
}

func TestACopyOfAHandleIsOne(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	copied := func() ringfence.Lease {
		lease, err := client.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		return *lease
	}()
	collect()
	if copied.Err() != nil {
		t.Error("it was released under its holder")
	}
	copied = ringfence.Lease{}
	until(t, "the copy is dropped, too", func() bool {
		runtime.GC()
		return isFree(cluster, "a")()
	})
}

func TestADeferredReleaseKeepsAHandleWhoseContextIsOnlyWaitedFor(t *testing.T) {
	cluster := ringfencetest.Start(t)
	collected := make(chan struct{})
	lease, err := cluster.Client().Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	go func() {
		collect()
		close(collected)
	}()
	ctx := lease.Context()
	select {
	case <-ctx.Done():
		t.Error("it was dropped")
	case <-collected:
	}
}

func TestAHandleThatItsOwnContextRefersToIsDropped(t *testing.T) {
	cluster := ringfencetest.Start(t)
	type session struct{ lease *ringfence.Lease }
	type key struct{}
	func() {
		own := &session{}
		lease, err := cluster.Client().Acquire(context.WithValue(t.Context(), key{}, own), "a")
		if err != nil {
			t.Fatal(err)
		}
		if lease.Context().Value(key{}) != own {
			t.Error("its context has no values")
		}
		stop := context.AfterFunc(lease.Context(), func() {})
		stop()
		own.lease = lease
	}()
	until(t, "it is dropped", func() bool {
		runtime.GC()
		return isFree(cluster, "a")()
	})
}

// A collecting context has the collector run when it is asked, unless it is not ready.
type collecting struct {
	context.Context
	isReady bool
}

func (c *collecting) Err() error {
	if c.isReady {
		collect()
	}
	return c.Context.Err()
}

func TestAHandleThatIsBeingReleasedIsNotDropped(t *testing.T) {
	cluster, said := ringfencetest.Start(t), &log{}
	client := cluster.Client(ringfence.WithLogger(slog.New(slog.NewTextHandler(said, nil))))
	ctx := &collecting{Context: t.Context()}
	lease, err := client.Acquire(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx.isReady = true
	if err := lease.Release(ctx); err != nil {
		t.Error(err)
	}
	ctx.isReady = false
	err = client.Do(ctx, "a", func(context.Context, *ringfence.Lease) error {
		ctx.isReady = true
		return nil
	})
	if err != nil || said.has(ringfence.WarnDropped) {
		t.Error("it was dropped: ", err)
	}
}
