package tests

import (
	"context"
	"errors"
	"testing"
	"time"

	ringfence "ringfence.dev/sdk/go"
	"ringfence.dev/sdk/go/ringfencetest"
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

func TestTheEndOfAnotherClientIsNoneOfThisOne(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client, other := cluster.Client(), cluster.Client()
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	lease, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cluster.Silent()
	time.AfterFunc(100*time.Millisecond, func() { cancel(ringfence.ErrClosed) })
	err = lease.Renew(ctx, 0)
	cluster.Back()
	_, later := client.Acquire(ctx, "b")
	for _, err := range []error{err, later} {
		if err == ringfence.ErrClosed || !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestWorkIsToldOfTheEndOfAnyContextAsItIs(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	why := errors.New("why")
	deadline, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, why)
	defer cancel()
	bounded, cancelBounded := context.WithTimeout(t.Context(), time.Hour)
	defer cancelBounded()
	early := &anEnded{bounded, make(chan struct{}), context.DeadlineExceeded}
	odd := &anEnded{context.Background(), make(chan struct{}), why}
	for _, one := range []struct {
		ctx        context.Context
		end        func()
		err, cause error
	}{
		{deadline, func() {}, context.DeadlineExceeded, why},
		{early, func() { close(early.done) }, context.DeadlineExceeded, context.DeadlineExceeded},
		{odd, func() { close(odd.done) }, why, why},
	} {
		err := client.Do(one.ctx, "a", func(ctx context.Context, _ *ringfence.Lease) error {
			one.end()
			select {
			case <-ctx.Done():
			case <-time.After(soon):
			}
			if ctx.Err() != one.err || context.Cause(ctx) != one.cause {
				t.Error(ctx.Err(), context.Cause(ctx))
			}
			return one.err
		})
		if err != one.err {
			t.Error(err)
		}
	}
}
