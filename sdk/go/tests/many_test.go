package tests

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ringfence "ringfence.dev/sdk/go"
	"ringfence.dev/sdk/go/ringfencetest"
)

// many is more than a client has connections for waits.
const many = 100

func TestMoreWaitThanThereAreConnectionsForAndAllAreGranted(t *testing.T) {
	cluster := ringfencetest.Start(t)
	rival, client := cluster.Client(), cluster.Client()
	var held []*ringfence.Lease
	for i := range many {
		lease, err := rival.Acquire(t.Context(), fmt.Sprint("key/", i), ringfence.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, lease)
	}
	var all sync.WaitGroup
	for i := range many {
		all.Add(1)
		go func() {
			defer all.Done()
			lease, err := client.Acquire(t.Context(), fmt.Sprint("key/", i), ringfence.TTL(time.Hour))
			if err != nil {
				t.Error(err)
				return
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}()
	}
	for i := range many {
		until(t, "all are in their queues", func() bool { return cluster.Waiters(fmt.Sprint("key/", i)) == 1 })
	}
	for _, lease := range held {
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
}

func TestWhatBeginsTogetherIsSentTogether(t *testing.T) {
	// Otherwise some begin before the others even on an idle machine.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	cluster := ringfencetest.Start(t)
	var alone atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			alone.Add(1)
		}
		cluster.ServeHTTP(w, r)
	}))
	defer server.Close()
	client, err := ringfence.New([]string{server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(t.Context()) }()
	const rounds = 20
	for range rounds {
		var all sync.WaitGroup
		for i := range 10 {
			all.Add(1)
			go func() {
				defer all.Done()
				nothing := func(context.Context, *ringfence.Lease) error { return nil }
				if err := client.Do(t.Context(), fmt.Sprint("key/", i), nothing, ringfence.Wait(0)); err != nil {
					t.Error(err)
				}
			}()
		}
		all.Wait()
	}
	// The scheduler may have a goroutine yield to nobody.
	if count := alone.Load(); count > rounds/2 {
		t.Errorf("%d were sent alone", count)
	}
}

func TestAnOutageTakesNoLongerForManyAndLeavesNothing(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	if lease, err := client.Acquire(t.Context(), "a"); err != nil || lease.Release(t.Context()) != nil {
		t.Fatal(err)
	}
	cluster.Silent()
	results := make(chan error, many)
	for i := range many {
		go func() {
			_, err := client.Acquire(t.Context(), fmt.Sprint("key/", i), ringfence.Wait(0))
			results <- err
		}()
	}
	for range many {
		err := <-results
		unavailable, unknown := (*ringfence.UnavailableError)(nil), (*ringfence.UnknownError)(nil)
		if !errors.As(err, &unavailable) && !errors.As(err, &unknown) {
			t.Error(err)
		}
	}
	cluster.Back()
	for i := range many {
		until(t, "what may have been granted is given back", isFree(cluster, fmt.Sprint("key/", i)))
	}
	if err := client.Do(t.Context(), "a", func(context.Context, *ringfence.Lease) error { return nil }); err != nil {
		t.Error(err)
	}
}
