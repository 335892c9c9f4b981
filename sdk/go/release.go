package ringfence

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// backgroundLimit is how long a release is repeated in the background.
	backgroundLimit = 30 * time.Second
	// cleanupLimit is how long clean-up holds up a caller whose context has ended.
	cleanupLimit = time.Second
	// keepPause is the pause after a renewal for what is left of HoldAtLeast that was in vain.
	keepPause = time.Second
)

// A release is how a lease is given back, whoever does it first: its holder, the end of Do, Close, or the collector that found the handle dropped.
//
//	released           HoldAtLeast is over
//	   |                     |
//	   '-- or at once --> DELETE
//	   |
//	   '-- HoldAtLeast --> one renewal for what is left of it --> nothing renews it; DELETE once the time is over
//	                          '-- not now: it is renewed as before, until the one renewal succeeds, or the time is over
//
// The one renewal keeps others out even if this process ends. Until it is confirmed, only renewals do, so these go on.
//
// Nothing here refers to the handle, so that it can be collected.
type release struct {
	core *core
	held *held
	// granted is when the grant was known here, which is not before it was made.
	granted     Moment
	holdAtLeast time.Duration

	mu sync.Mutex
	// done is closed once the release is over. It is nil before that begins.
	done chan struct{}
	err  error
	// isTaken: the client took it from its holder.
	isTaken bool
}

// begin releases it, once.
func (r *release) begin(isTaking bool) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.done = make(chan struct{})
		r.isTaken = isTaking
		isBegun := r.core.background(r.held.leaseID, r.held.keys(), func() error {
			r.err = r.perform()
			close(r.done)
			return r.err
		})
		if !isBegun {
			r.err = ErrClosed
			close(r.done)
		}
		// It is among the works by now, so that it is always found.
		r.core.forget(r)
	}
	return r.done
}

// end releases it, and waits for that.
func (r *release) end(ctx context.Context) error {
	ctx, cancel := lasting(ctx)
	defer cancel()
	done := r.begin(false)
	select {
	case <-done:
		if r.err != nil {
			return r.err
		}
		// It may have been left to its id, and lost since.
		if loss := r.held.look(r.held.clock()); loss != "" && loss != Released {
			return &LostError{loss}
		}
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

// lasting is a context that does not end at once, if it has ended already.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return ctx, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
}

// take releases it in the name of the client.
func (r *release) take() {
	r.begin(true)
}

func (r *release) wasTaken() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isTaken
}

// drop releases it since its handle is gone.
func (r *release) drop() {
	r.mu.Lock()
	isOver := r.done != nil
	r.mu.Unlock()
	if isOver {
		return
	}
	if r.held.look(r.held.clock()) == "" {
		r.core.tell.warn(WarnDropped, fmt.Sprintf("the lease of %s with token %d was dropped without a release: it is released now",
			quoted(r.held.keys()), r.held.grant().token))
	}
	r.take()
}

// detach leaves it to its id, unless it is being released, or was left before.
func (r *release) detach() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done != nil {
		return false
	}
	r.done = make(chan struct{})
	close(r.done)
	r.core.forget(r)
	r.held.stopRenewing(r.held.clock())
	return true
}

func (r *release) perform() error {
	at := r.held.clock()
	loss := r.held.look(at)
	var successor *held
	if r.left(at) > 0 && (loss == "" || loss == MaxHeld) {
		successor = r.held.successor()
	}
	r.core.keeper.remove(r.held)
	// It may have been lost in between.
	if at := r.held.lose(Released, at); at != Released {
		loss = at
	}
	var err error
	if successor != nil {
		err = r.outlive(successor)
	} else if err = r.core.release(r.core.ends, r.held.leaseID, retryLimit); err != nil && lossIn(err) == "" {
		r.core.releaseInBackground(r.held.leaseID, r.held.keys())
	}
	if loss != "" {
		return &LostError{loss}
	}
	return err
}

// outlive sees to it that the keys stay taken for the rest of HoldAtLeast.
func (r *release) outlive(successor *held) error {
	r.core.keeper.add(successor)
	err := r.keep(successor)
	if err != nil && lossIn(err) == "" {
		r.core.background(r.held.leaseID, r.held.keys(), func() error { return r.keepLater(successor) })
	}
	return err
}

// keep makes the one renewal.
func (r *release) keep(successor *held) error {
	left := max(r.left(r.held.clock()), minTTL)
	// Rounded up: the nodes know milliseconds.
	_, err := r.core.renew(r.core.ends, successor.leaseID, (left + time.Millisecond - 1).Truncate(time.Millisecond), true)
	if err != nil {
		if lossIn(err) != "" {
			r.core.keeper.remove(successor)
		}
		return err
	}
	r.core.keeper.remove(successor)
	r.core.after(r.left(r.held.clock()), successor.leaseID, successor.keys())
	return nil
}

func (r *release) keepLater(successor *held) error {
	for {
		left := r.left(r.held.clock())
		if left <= 0 {
			break
		}
		if sleep(r.core.ends, min(keepPause, left)) != nil {
			return ErrClosed
		}
		if err := r.keep(successor); err == nil || lossIn(err) != "" || r.core.ends.Err() != nil {
			return err
		}
	}
	r.core.keeper.remove(successor)
	r.core.releaseInBackground(successor.leaseID, successor.keys())
	return nil
}

func (r *release) left(at Moment) time.Duration {
	return r.granted.after(r.holdAtLeast).since(at)
}
