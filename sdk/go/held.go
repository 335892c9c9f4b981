package ringfence

import (
	"context"
	"sync/atomic"
)

// A held is the state of a lease, which its handle and the keeper share: one immutable lifetime, which is swapped. Nothing here refers to the handle,
// so that it can be collected.
type held struct {
	leaseID  string
	lifetime atomic.Pointer[lifetime]
	clock    Clock
	tell     *teller
	// ended ends once the lease is lost.
	ended  context.Context
	cancel context.CancelCauseFunc
}

func newHeld(l *lifetime, clock Clock, tell *teller) *held {
	h := &held{leaseID: l.grant.leaseID, clock: clock, tell: tell}
	h.ended, h.cancel = context.WithCancelCause(context.Background())
	h.lifetime.Store(l)
	return h
}

// successor is the same lease, to be kept after its holder has released it.
func (h *held) successor() *held {
	return newHeld(h.lifetime.Load().successor(), h.clock, newTeller(Hooks{}, nil))
}

func (h *held) grant() *grant {
	return &h.lifetime.Load().grant
}

func (h *held) keys() []string {
	return h.grant().names()
}

func (h *held) view() LeaseView {
	return LeaseView{h.keys(), h.grant().token}
}

// look says why it is lost, by the clock, if it is. Whoever has to know of that is told.
func (h *held) look(at Moment) LossReason {
	return h.update(at, func(l *lifetime) *lifetime { return l })
}

func (h *held) lose(reason LossReason, at Moment) LossReason {
	return h.update(at, func(l *lifetime) *lifetime { return l.lostFor(reason) })
}

func (h *held) confirm(c confirmation, at Moment) LossReason {
	isNews := false
	loss := h.update(at, func(l *lifetime) *lifetime {
		l, isNews = l.confirmed(c, at)
		return l
	})
	if isNews && loss == "" {
		h.tell.renewed(h.view())
	}
	return loss
}

func (h *held) stopRenewing(at Moment) {
	h.update(at, func(l *lifetime) *lifetime { return l.withoutRenewals() })
}

// update swaps the lifetime, unless it is lost: that is final. Whoever swaps in a loss tells it, so it is told once: first the context is cancelled, and
// then hooks are told.
func (h *held) update(at Moment, change func(*lifetime) *lifetime) LossReason {
	for {
		before := h.lifetime.Load()
		if before.loss != "" {
			return before.loss
		}
		var after *lifetime
		if loss := before.lossAt(at); loss != "" {
			after = before.lostFor(loss)
		} else if after = change(before); after == before {
			return ""
		}
		if !h.lifetime.CompareAndSwap(before, after) {
			continue
		}
		if after.loss != "" {
			h.cancel(&LostError{after.loss})
			h.tell.lost(LeaseView{after.grant.names(), after.grant.token}, after.loss)
		}
		return after.loss
	}
}
