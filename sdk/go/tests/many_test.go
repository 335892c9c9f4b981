package tests

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"ringfence"
	"ringfence/ringfencetest"
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
