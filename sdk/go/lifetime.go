package ringfence

import "time"

// A State says how a lease stands.
type State string

const (
	// Held: confirmed lately.
	Held State = "held"
	// Unsure: it certainly lives for the time that remains, but two thirds of its time have passed without a renewal. It may become held again.
	Unsure State = "unsure"
	// Lost: it has ended, or may have, for good.
	Lost State = "lost"
	// Ended: its holder, or Close, has released it.
	Ended State = "released"
)

const (
	// clockDrift is the allowance for clocks that run at different speeds: one part in so many.
	clockDrift = 500
	// timerLate is the allowance for timers, which fire late.
	timerLate = 15 * time.Millisecond
	forever   = 1 << 60
)

// A lifetime is how long a lease is certainly live, as far as its holder can know. Nothing changes one.
//
// The cluster guarantees expires_in from when the request was *sent*, because it cannot have received the request earlier. The holder subtracts
// an allowance for clocks that differ:
//
//	sent        renewed            in doubt            until     sent + expires_in
//	 |------------|------------------|-------------------|---------|
//	 :    1/3     :       1/3        :        1/3        : allowance
//	      held           held               unsure         lost, for good
//
// Each confirmation gives a bound of its own, and the latest bound counts, in whatever order responses arrive. A confirmation that arrives after
// the end does not revive the lease: its loss may have been told already.
type lifetime struct {
	grant  grant
	renews bool
	// lastSent is when the newest of the confirmed requests was sent.
	lastSent Moment
	until    Moment
	// holdEnd is when its longest hold is over.
	holdEnd Moment
	loss    LossReason
}

func newLifetime(c confirmation, renews bool, maxHold time.Duration) *lifetime {
	return &lifetime{
		grant:    c.grant,
		renews:   renews,
		lastSent: c.sent,
		until:    c.until(),
		holdEnd:  c.sent.after(maxHold),
	}
}

// A confirmation is a grant, and when the request that it answers was sent.
type confirmation struct {
	grant grant
	sent  Moment
}

func (c confirmation) until() Moment {
	expires := c.grant.expiresIn
	return c.sent.after(expires - expires/clockDrift - timerLate)
}

func (l *lifetime) lossAt(at Moment) LossReason {
	switch {
	case l.loss != "":
		return l.loss
	case at.reached(l.holdEnd) && l.isRenewedEnough():
		return MaxHeld
	case at.reached(l.until) || at.reached(l.holdEnd):
		return Unconfirmed
	default:
		return ""
	}
}

func (l *lifetime) stateAt(at Moment) State {
	switch loss := l.lossAt(at); {
	case loss == Released:
		return Ended
	case loss != "":
		return Lost
	case l.needsRenewals() && l.until.since(at) <= l.grant.ttl/3:
		return Unsure
	default:
		return Held
	}
}

// remaining is for how long it certainly lives; 0 if it is lost.
func (l *lifetime) remaining(at Moment) time.Duration {
	if l.lossAt(at) != "" {
		return 0
	}
	return min(l.until.since(at), l.holdEnd.since(at))
}

// isFresh says whether a holder may begin: at least half of the time-to-live is left.
func (l *lifetime) isFresh(at Moment) bool {
	return l.until.since(at) >= l.grant.ttl/2
}

// renewIn is how long until it is due to be renewed, a third of its time after the newest confirmed request.
func (l *lifetime) renewIn(at Moment) time.Duration {
	if !l.needsRenewals() {
		return forever
	}
	return l.until.since(at) - l.grant.ttl*2/3
}

// confirmed is the lifetime after a confirmation, and whether that is news. It is none if the lease is lost, or something that was sent later is
// confirmed already.
func (l *lifetime) confirmed(c confirmation, at Moment) (*lifetime, bool) {
	if l.lossAt(at) != "" {
		return l, false
	}
	next := *l
	next.until = latest(l.until, c.until())
	if c.sent.Boot < l.lastSent.Boot {
		return &next, false
	}
	next.lastSent = c.sent
	// Another client may have changed the time-to-live, by the lease's id.
	next.grant = c.grant
	return &next, true
}

func (l *lifetime) lostFor(reason LossReason) *lifetime {
	next := *l
	next.loss = reason
	return &next
}

func (l *lifetime) withoutRenewals() *lifetime {
	next := *l
	next.renews = false
	return &next
}

// successor is the same without the end that is the holder's, and as if it was not lost.
func (l *lifetime) successor() *lifetime {
	next := *l
	next.holdEnd = l.until.after(forever)
	next.loss = ""
	next.renews = true
	return &next
}

func (l *lifetime) needsRenewals() bool {
	return l.renews && !l.isRenewedEnough()
}

// isRenewedEnough says whether its holder gives it up before it ends.
func (l *lifetime) isRenewedEnough() bool {
	return l.holdEnd.Boot <= l.until.Boot
}
