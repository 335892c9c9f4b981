package tests

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	ringfence "ringfence.dev/sdk/go"
	"ringfence.dev/sdk/go/ringfencetest"
)

// A log that any goroutine may write and read.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *log) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

func TestADroppedHandleIsReleasedAndReported(t *testing.T) {
	cluster, said := ringfencetest.Start(t), &log{}
	client := cluster.Client(ringfence.WithLogger(slog.New(slog.NewTextHandler(said, nil))))
	if _, err := client.Acquire(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	until(t, "a handle that nobody has is released", func() bool {
		runtime.GC()
		return isFree(cluster, "a")()
	})
	until(t, "that is reported", func() bool { return said.has(ringfence.WarnDropped) && said.has(`\"a\"`) })
}

func TestAHandleIsKeptAsLongAsSomebodyHasItsContext(t *testing.T) {
	cluster := ringfencetest.Start(t)
	lease, err := cluster.Client().Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	working, cancel := context.WithCancel(lease.Context())
	defer cancel()
	lease = nil
	for range 5 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	if working.Err() != nil || isFree(cluster, "a")() {
		t.Error("somebody works under it, and it was released")
	}
	_ = lease
}

func TestHooksThatPanicOrBlockHoldUpNothing(t *testing.T) {
	cluster, said := ringfencetest.Start(t), &log{}
	blocked := make(chan struct{})
	defer close(blocked)
	lost := make(chan ringfence.LossReason, 1)
	client := cluster.Client(ringfence.WithLogger(slog.New(slog.NewTextHandler(said, nil))), ringfence.WithHooks(ringfence.Hooks{
		Granted: func(ringfence.LeaseView, time.Duration) { panic("broken") },
		Renewed: func(ringfence.LeaseView) { <-blocked },
		Lost:    func(_ ringfence.LeaseView, reason ringfence.LossReason) { lost <- reason },
	}))
	lease, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Renew(t.Context(), 0); err != nil {
		t.Error(err)
	}
	cluster.Advance(time.Minute)
	if reason := <-lost; reason != ringfence.Unconfirmed || lease.Context().Err() == nil {
		t.Error("the hook was told before the context was cancelled: ", reason)
	}
	until(t, "both are reported", func() bool { return said.has("broken") && said.has("has not returned") })
}

func TestACallbackThatUsesTheClientIsNoDeadlock(t *testing.T) {
	cluster := ringfencetest.Start(t)
	done := make(chan error, 1)
	var client *ringfence.Client
	ready := make(chan struct{})
	client = cluster.Client(ringfence.WithHooks(ringfence.Hooks{Released: func(lease ringfence.LeaseView) {
		<-ready
		if lease.Keys[0] != "a" {
			return
		}
		done <- client.Do(context.Background(), "b", func(context.Context, *ringfence.Lease) error { return nil })
	}}))
	close(ready)
	lease, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lease.Release(t.Context()), <-done); err != nil {
		t.Error(err)
	}
}

func TestCloseTellsReleasesAndSaysWhatIsLeft(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	working := make(chan struct{})
	result := make(chan error, 1)
	go func() {
		result <- client.Do(context.Background(), "a", func(ctx context.Context, _ *ringfence.Lease) error {
			close(working)
			<-ctx.Done()
			return nil
		})
	}()
	<-working
	waiting := make(chan error, 1)
	go func() {
		_, err := client.Acquire(context.Background(), "a")
		waiting <- err
	}()
	until(t, "another waits", func() bool { return cluster.Waiters("a") == 1 })
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	// What ended the program must not keep the keys taken.
	if err := client.Close(ended); err != nil || !isFree(cluster, "a")() {
		t.Error(err, cluster.Holders("a"))
	}
	if lost := (*ringfence.LostError)(nil); !errors.As(<-result, &lost) || lost.Reason != ringfence.Released {
		t.Error("who works was told of ", lost)
	}
	if err := <-waiting; err != ringfence.ErrClosed {
		t.Error(err)
	}
	other := cluster.Client()
	if _, err := other.Acquire(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	cluster.Silent()
	short, cancelShort := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancelShort()
	left := (*ringfence.LeftError)(nil)
	if err := other.Close(short); !errors.As(err, &left) || len(left.Leases) != 1 || left.Leases[0][0] != "b" {
		t.Error(err)
	}
	if _, err := other.Acquire(t.Context(), "c"); err != ringfence.ErrClosed {
		t.Error(err)
	}
	cluster.Back()
}

func TestManyGoroutinesShareAClient(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	count := 0
	var all sync.WaitGroup
	for range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := client.Do(t.Context(), "a", func(context.Context, *ringfence.Lease) error { count++; return nil }); err != nil {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	if count != 50 {
		t.Error("two worked at once: ", count)
	}
}

func TestAnAdoptedLeaseHasOneHandle(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	old, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	adopted, err := client.Adopt(t.Context(), old.ID())
	if err != nil {
		t.Fatal(err)
	}
	lost := (*ringfence.LostError)(nil)
	if err := old.Release(t.Context()); !errors.As(err, &lost) || adopted.Err() != nil || isFree(cluster, "a")() {
		t.Error("the old handle has it, or has released it: ", err, adopted.State())
	}
	if err := adopted.Release(t.Context()); err != nil || !isFree(cluster, "a")() {
		t.Error(err)
	}
}

func TestALeaseThatIsBeingReleasedIsNotAdopted(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	lease, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	cluster.Away()
	released := make(chan error, 1)
	go func() { released <- lease.Release(t.Context()) }()
	until(t, "it is being released", func() bool { return lease.State() == ringfence.Ended })
	_, err = client.Adopt(t.Context(), lease.ID())
	if lost := (*ringfence.LostError)(nil); !errors.As(err, &lost) || lost.Reason != ringfence.Released {
		t.Error(err)
	}
	cluster.Back()
	if err := <-released; err != nil {
		t.Error(err)
	}
}

func TestOfTwoAdoptionsAtOnceOneHasTheLease(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	for range 50 {
		lease, err := client.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		handles := make([]*ringfence.Lease, 2)
		for i := range handles {
			both.Add(1)
			go func() {
				defer both.Done()
				handles[i], _ = client.Adopt(t.Context(), lease.ID())
			}()
		}
		both.Wait()
		count := 0
		for _, handle := range handles {
			if handle != nil && handle.Err() == nil {
				count++
			}
		}
		for _, handle := range handles {
			if handle != nil {
				_ = handle.Release(t.Context())
			}
		}
		if count != 1 || !isFree(cluster, "a")() {
			t.Fatalf("%d have it", count)
		}
	}
}

func TestALeaseThatHoldsAtLeastIsNotAdopted(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	lease, err := client.Acquire(t.Context(), "a", ringfence.HoldAtLeast(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	_, err = client.Adopt(t.Context(), lease.ID())
	if lost := (*ringfence.LostError)(nil); !errors.As(err, &lost) || lost.Reason != ringfence.Released {
		t.Error(err)
	}
}

func TestCloseSaysWhatCallsThatAreUnderWayLeave(t *testing.T) {
	cluster := ringfencetest.Start(t)
	holder, err := cluster.Client().Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.KeepAlive(holder)
	client := cluster.Client()
	waiting := make(chan error, 1)
	go func() {
		_, err := client.Acquire(context.Background(), "a")
		waiting <- err
	}()
	until(t, "it waits", func() bool { return cluster.Waiters("a") == 1 })
	cluster.Silent()
	bounded, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	// It ends before the call does.
	ctx := &anEnded{bounded, make(chan struct{}), nil}
	close(ctx.done)
	left := (*ringfence.LeftError)(nil)
	if err := client.Close(ctx); !errors.As(err, &left) || left.Leases[0][0] != "a" {
		t.Error(err)
	}
	if err := <-waiting; err != ringfence.ErrClosed {
		t.Error(err)
	}
	cluster.Back()
}
