package ringfence

import (
	"context"
	"fmt"
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

	// how it has left its handle. The mutex of the core guards it.
	how leaving
	// work is the release, and err what that came to once it is over.
	work *work
	err  error
}

// A leaving is how a lease leaves its handle. The first one counts; only what was left to its id may be adopted yet.
type leaving int

const (
	stays leaving = iota
	// isReleased: by its holder, and isTaken: by the client.
	isReleased
	isTaken
	// isDetached: it is left to its id.
	isDetached
	// isAdopted: another handle has it.
	isAdopted
)

// leave has it leave its handle in this way, if it stays there. It returns how it has left, and whether that is by this call: only then has that to act.
func (r *release) leave(how leaving) (leaving, bool) {
	c := r.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.how != stays {
		return r.how, false
	}
	r.how = how
	if how != isDetached {
		// It is always found, here or among the works.
		delete(c.leases, r.held.leaseID)
		r.work = &work{r.held.leaseID, r.held.keys(), make(chan struct{})}
		c.enlist(r.work)
	}
	return how, true
}

// begin releases it, unless it has left before. It returns as leave does.
func (r *release) begin(how leaving) (leaving, bool) {
	left, isOwn := r.leave(how)
	if isOwn {
		// Unless it can begin.
		r.err = ErrClosed
		r.core.start(r.work, func() error {
			r.err = r.perform()
			return r.err
		})
	}
	return left, isOwn
}

// end releases it, and waits for that.
func (r *release) end(ctx context.Context) error {
	ctx, cancel := lasting(ctx)
	defer cancel()
	switch left, _ := r.begin(isReleased); left {
	case isAdopted:
		return &LostError{r.held.lose(Unconfirmed, r.held.clock())}
	case isDetached:
		if loss := r.held.look(r.held.clock()); loss != "" && loss != Released {
			return &LostError{loss}
		}
		return nil
	}
	select {
	case <-r.work.done:
		return r.err
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

func (r *release) wasTaken() bool {
	r.core.mu.Lock()
	defer r.core.mu.Unlock()
	return r.how == isTaken
}

// drop releases it since its handle is gone, unless it is adopted by its id.
func (r *release) drop() {
	r.core.awaitAdoption(r.held.leaseID)
	isLive := r.held.look(r.held.clock()) == ""
	if _, isOwn := r.begin(isTaken); isOwn && isLive {
		r.core.tell.warn(WarnDropped, fmt.Sprintf("the lease of %s with token %d was dropped without a release: it is released now",
			quoted(r.held.keys()), r.held.grant().token))
	}
}

// detach leaves it to its id. It returns how it has left.
func (r *release) detach() leaving {
	left, isOwn := r.leave(isDetached)
	if isOwn {
		r.held.stopRenewing(r.held.clock())
		// Until then an adoption finds it, and tells its holder.
		context.AfterFunc(r.held.ended, func() { r.core.forget(r) })
	}
	return left
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
