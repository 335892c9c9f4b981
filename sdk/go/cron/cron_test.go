package cron

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"

	ringfence "ringfence.dev/sdk/go"
	"ringfence.dev/sdk/go/ringfencetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func TestOfThreeSchedulersWithClocksApartOneRunsEachTime(t *testing.T) {
	const every, apart = time.Minute, 300 * time.Millisecond
	cluster := ringfencetest.Start(t)
	// true for a run, and false for one that is skipped.
	told := make(chan bool, 100)
	skipped := gocron.AfterLockError(func(uuid.UUID, string, error) { told <- false })
	var clocks []*clockwork.FakeClock
	for range 3 {
		clock := clockwork.NewFakeClock()
		scheduler, err := gocron.NewScheduler(gocron.WithClock(clock), gocron.WithDistributedLocker(Locker(cluster.Client())))
		if err != nil {
			t.Fatal(err)
		}
		task := gocron.NewTask(func() { told <- true })
		if _, err := scheduler.NewJob(gocron.DurationJob(every), task, gocron.WithName("report"), gocron.WithEventListeners(skipped)); err != nil {
			t.Fatal(err)
		}
		scheduler.Start()
		t.Cleanup(func() { _ = scheduler.Shutdown() })
		clocks = append(clocks, clock)
	}
	for range 3 {
		runs := 0
		for _, clock := range clocks {
			if err := clock.BlockUntilContext(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			clock.Advance(every)
			if <-told {
				runs++
			}
			cluster.Advance(apart)
		}
		if runs != 1 {
			t.Errorf("%d of three have run", runs)
		}
		cluster.Advance(every - 3*apart)
	}
}

func TestALockerFailsAtOnce(t *testing.T) {
	cluster := ringfencetest.Start(t)
	locker := Locker(cluster.Client(), ringfence.HoldAtLeast(0))
	held, err := locker.Lock(t.Context(), "report")
	if err != nil {
		t.Fatal(err)
	}
	_, err = locker.Lock(t.Context(), "report")
	if busy := (*ringfence.HeldError)(nil); !errors.As(err, &busy) {
		t.Error(err)
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if next, err := locker.Lock(t.Context(), "report"); err != nil || next.Unlock(t.Context()) != nil {
		t.Error(err)
	}
}

func TestOneElectorLeadsAndAnotherAfterIt(t *testing.T) {
	cluster := ringfencetest.Start(t)
	ctx, resign := context.WithCancel(t.Context())
	first := campaigns(t, ctx, cluster, "leader")
	leads(t, first)
	later, stop := context.WithCancel(t.Context())
	second := campaigns(t, later, cluster, "leader")
	for cluster.Waiters("leader") == 0 {
		time.Sleep(time.Millisecond)
	}
	if second.IsLeader(t.Context()) == nil {
		t.Error("two lead")
	}
	resign()
	if err := first.Wait(); !errors.Is(err, context.Canceled) || first.IsLeader(t.Context()) == nil {
		t.Error(err)
	}
	leads(t, second)
	// It is told of no loss, and knows by its clock.
	cluster.Advance(time.Minute)
	if second.IsLeader(t.Context()) == nil {
		t.Error("it leads without a lease")
	}
	leads(t, second)
	stop()
	_ = second.Wait()
}

func TestAnElectorSaysWhyItNeverLeads(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	invalid := (*ringfence.InvalidError)(nil)
	if _, err := NewElector(t.Context(), client, "jobs//leader"); !errors.As(err, &invalid) || invalid.Field != "key" {
		t.Error(err)
	}
	caused, cancel := context.WithCancelCause(t.Context())
	cancel(&ringfence.InvalidError{Field: "another"})
	ended := campaigns(t, caused, cluster, "leader")
	if err := ended.Wait(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	elector := campaigns(t, t.Context(), cluster, "leader")
	leads(t, elector)
	cluster.Close()
	if err := elector.Wait(); err != ringfence.ErrClosed {
		t.Error(err)
	}
	if err := elector.IsLeader(t.Context()); !errors.Is(err, ErrNotLeader) || !errors.Is(err, ringfence.ErrClosed) {
		t.Error(err)
	}
}

func TestAJobHasAnyName(t *testing.T) {
	cluster := ringfencetest.Start(t)
	locker := Locker(cluster.Client(), ringfence.HoldAtLeast(0))
	jobs := map[string]string{
		"sync http://x/y": "cron/sync http:%2F%2Fx%2Fy",
		"100%\n":          "cron/100%25%0A",
		"..":              "cron/%2E%2E",
		"...":             "cron/...",
		"\xff\u0085":      "cron/%FF%C2%85",
		// It is as long as a key may be, and the next too long.
		strings.Repeat("報", 169):       "cron/" + strings.Repeat("報", 169),
		strings.Repeat("報", 169) + "告": "cron/%sha256:bfe74e658a11767ad880a4bef912409b35316ad98e5003213342fe45c96527e3",
	}
	for job, key := range jobs {
		lock, err := locker.Lock(t.Context(), job)
		if err != nil {
			t.Error(err)
			continue
		}
		if holders := cluster.Holders(key); len(holders) != 1 {
			t.Errorf("%q is not taken", key)
		}
		if err := lock.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func campaigns(t *testing.T, ctx context.Context, cluster *ringfencetest.Cluster, key string) *Elector {
	t.Helper()
	elector, err := NewElector(ctx, cluster.Client(), key)
	if err != nil {
		t.Fatal(err)
	}
	return elector
}

func leads(t *testing.T, elector *Elector) {
	t.Helper()
	for begun := time.Now(); elector.IsLeader(t.Context()) != nil; time.Sleep(5 * time.Millisecond) {
		if time.Since(begun) > 30*time.Second {
			t.Fatal("it does not lead")
		}
	}
}
