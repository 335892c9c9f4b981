package tests

import (
	"context"
	"errors"
	"testing"
	"time"

	"ringfence"
	"ringfence/ringfencetest"
)

func TestTheLossOfOneLeaseIsNoneOfAnother(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	own, err := client.Acquire(t.Context(), "own", ringfence.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	other, err := client.Acquire(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	cluster.Silent()
	time.AfterFunc(100*time.Millisecond, func() { cluster.Advance(time.Minute) })
	err = own.Renew(other.Context(), 0)
	cluster.Back()
	if !errors.Is(err, context.Canceled) || own.Err() != nil || other.Err() == nil {
		t.Error(err, own.State(), other.State())
	}
}

// anEnded is a context that ends with any error.
type anEnded struct {
	context.Context
	done chan struct{}
	err  error
}

func (c *anEnded) Done() <-chan struct{} { return c.done }

func (c *anEnded) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

func TestWorkThatSucceededHasLostNothingWhateverEndsItsRelease(t *testing.T) {
	loss := &ringfence.LostError{Reason: ringfence.Revoked}
	caused, cancel := context.WithCancelCause(t.Context())
	odd := &anEnded{context.Background(), make(chan struct{}), loss}
	for _, one := range []struct {
		ctx context.Context
		end func()
	}{{caused, func() { cancel(loss) }}, {odd, func() { close(odd.done) }}} {
		cluster := ringfencetest.Start(t)
		err := cluster.Client().Do(one.ctx, "a", func(context.Context, *ringfence.Lease) error {
			cluster.Silent()
			time.AfterFunc(100*time.Millisecond, one.end)
			return nil
		})
		cluster.Back()
		if err != nil {
			t.Error(err)
		}
	}
}
