package ringfence

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"time"
)

const (
	// slice is how long one PUT waits: proxies often close connections that are silent for a minute.
	slice = 30 * time.Second
	// brief is how long a PUT waits that is to be answered soon.
	brief = 100 * time.Millisecond
	// long is how long an acquire stands in the queue before that is told.
	long = 5 * time.Second
	// poll is how long an acquire with a place waits for a connection at most before it asks for its place again: it may be granted meanwhile.
	poll = time.Second
	// leavesWithin is how long an acquire that has timed out waits until it has left the queue. Then that goes on in the background.
	leavesWithin = time.Second
)

// errUnused ends the use of an id without an error: the lease ended unused, and another id may do.
var errUnused = errors.New("the lease ended unused")

// An acquire is one under one id, from the request to a lease that is safe to use.
//
//	           .- 202: the place is kept <-.
//	           v                           |
//	new id --> PUT, waiting up to 30 s ----+-- 201, 200 --> fresh? --> granted
//	  ^        ^        |                  |                  '- no --> renew once --> granted
//	  |        '--------' ambiguous: the same PUT elsewhere, for 5 s
//	  '-- the lease ended unused (its connection was lost for long)
//
// An acquire that was in the queue has reached the cluster, so during an outage it retries until its wait is over. The first PUT of an id, and one
// after a PUT without a definite outcome, waits only briefly, to learn the state of the lease soon. However the acquire ends, the lease is given back
// as long as it may be granted or in the queue.
//
// The time of a grant counts from when *its* PUT was sent. After a wait, that is too long ago to begin work, so the client renews once.
type acquire struct {
	core     *core
	wanted   *wanted
	leaseID  string
	deadline time.Time
	attempts *attempts
	begun    time.Time
	// isArmed: the lease is to be given back.
	isArmed  bool
	hasPlace bool
	// hasWaited: it stood in the queue.
	hasWaited bool
	// turn is its connection for waiting, once it has a place.
	turn *turn
	// unanswered is since when there was no definite outcome, if the last was none.
	unanswered time.Time
	long       *time.Timer
}

// acquire acquires, under one id after the other.
func (c *core) acquire(ctx context.Context, wanted *wanted) (confirmation, error) {
	// The lookup is not part of the wait.
	if c.nodes.resolve(ctx) != nil {
		return confirmation{}, ended(ctx)
	}
	begun := time.Now()
	deadline := begun.Add(wanted.wait)
	for pauses := (backoff{}); ; {
		one := &acquire{core: c, wanted: wanted, leaseID: newID(), deadline: deadline, attempts: newAttempts(c.nodes), begun: time.Now()}
		granted, err := one.run(ctx)
		if err != errUnused {
			return granted, err
		}
		// A try was granted, for less time than it takes to make sure of that.
		if wanted.wait == 0 && time.Since(begun) >= retryLimit {
			return confirmation{}, &LostError{Unconfirmed}
		}
		if wanted.wait > 0 && one.left() == 0 {
			return confirmation{}, &TimedOutError{"wait"}
		}
		if sleep(ctx, pauses.next()) != nil {
			return confirmation{}, ended(ctx)
		}
	}
}

func newID() string {
	var id [16]byte
	// It never fails.
	_, _ = rand.Read(id[:])
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

func (a *acquire) left() time.Duration {
	return max(time.Until(a.deadline), 0)
}

func (a *acquire) run(ctx context.Context) (confirmation, error) {
	granted, err := a.until(ctx)
	if err == nil {
		a.isArmed = false
	}
	if a.turn != nil {
		a.turn.end()
	}
	a.attempts.endLeft(0)
	if a.long != nil {
		a.long.Stop()
	}
	if a.hasPlace {
		a.core.tell.waited(a.wanted.keys(), time.Since(a.begun))
	}
	if a.isArmed {
		a.core.releaseInBackground(a.leaseID, a.wanted.keys())
	}
	return granted, err
}

func (a *acquire) until(ctx context.Context) (confirmation, error) {
	for {
		got, granted, err := a.put(ctx)
		switch {
		case err != nil:
			return confirmation{}, ended(ctx)
		case got.is == done && granted != nil:
			return a.freshen(ctx, confirmation{*granted, got.response.sent})
		case got.is == done:
			a.unanswered = time.Time{}
			a.hasPlace, a.hasWaited = true, true
			if a.long == nil && !a.wanted.isCandidate {
				a.long = time.AfterFunc(long, func() { a.core.waitsLong(a.wanted.keys()) })
			}
			if a.left() == 0 {
				return confirmation{}, a.leave(ctx)
			}
			continue
		case got.is == refused:
			return confirmation{}, a.refused(got.problem)
		case got.is == limited:
			a.unanswered = time.Time{}
			if a.left() < got.wait {
				a.isArmed = a.attempts.maybeDone || a.hasPlace
				return confirmation{}, a.attempts.limit(got, a.leaseID)
			}
			if sleep(ctx, got.wait) != nil {
				return confirmation{}, ended(ctx)
			}
			continue
		}
		isToRetry := a.hasWaited && a.left() > 0
		if !isToRetry && (time.Since(a.unanswered) >= retryLimit || a.attempts.areHopeless()) {
			// The place may still stand.
			a.attempts.maybeDone = a.attempts.maybeDone || a.hasPlace
			a.isArmed = a.attempts.maybeDone
			return confirmation{}, a.attempts.failure(a.leaseID)
		}
	}
}

// put makes one PUT. No grant is a place in the queue.
func (a *acquire) put(ctx context.Context) (outcome, *grant, error) {
	if err := a.attempts.pause(ctx); err != nil {
		return outcome{}, nil, err
	}
	isBrief := !a.hasPlace || !a.unanswered.IsZero() || !a.core.nodes.isProven(a.core.nodes.best())
	wait, mayWait := brief, false
	if !isBrief {
		var err error
		if mayWait, err = a.hasTurn(ctx); err != nil {
			return outcome{}, nil, err
		}
	}
	if mayWait {
		wait = slice
	}
	wait = min(wait, a.left()).Truncate(time.Millisecond)
	putAt, idle := time.Now(), a.attempts.idle
	a.isArmed = true
	var granted *grant
	got, err := a.attempts.attempt(ctx, a.message(wait, mayWait), wait+attemptLimit, func(answered *response) (err error) {
		granted, err = readPut(answered, a.leaseID)
		return err
	})
	if err != nil {
		return outcome{}, nil, err
	}
	if mayWait && got.is == done && a.core.nodes.waits.waiting() > 0 {
		// It has had its slice.
		a.turn.end()
		a.turn = nil
	}
	sentAt := putAt.Add(a.attempts.idle - idle)
	switch got.is {
	case notDone:
		a.unansweredSince(sentAt)
	case ambiguous:
		// A node that held the request for longer than it looks for a leader had it in the queue.
		a.hasWaited = a.hasWaited || time.Since(sentAt) > retryLimit
		// How a long wait ended says nothing of how long the cluster has been silent.
		if recently := time.Now().Add(-attemptLimit); sentAt.Before(recently) {
			sentAt = recently
		}
		a.unansweredSince(sentAt)
	}
	return got, granted, nil
}

func (a *acquire) unansweredSince(at time.Time) {
	if a.unanswered.IsZero() {
		a.unanswered = at
	}
}

// hasTurn says whether a connection is free for a wait. If none is within a second, the place has to be asked for again: it is kept for 5 s. A grant
// that is not asked for within a quarter of its time-to-live may end before its holder learns of it.
func (a *acquire) hasTurn(ctx context.Context) (bool, error) {
	if a.turn == nil {
		a.turn = a.core.nodes.waits.ask()
	}
	if a.turn.isReady() {
		return true, nil
	}
	most := min(poll, a.wanted.ttl/4)
	timer := time.NewTimer(min(most*3/4+mathrand.N(most/4), a.left()))
	defer timer.Stop()
	select {
	case <-a.turn.ready:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (a *acquire) message(wait time.Duration, mayWait bool) *request {
	type body struct {
		LeaseID  string            `json:"lease_id,omitempty"`
		Keys     []claimed         `json:"keys"`
		TTL      int64             `json:"ttl_ms"`
		KeepsIt  bool              `json:"keep_place"`
		Wait     *int64            `json:"wait_ms,omitempty"`
		Holder   string            `json:"holder,omitempty"`
		Metadata map[string]string `json:"metadata,omitempty"`
	}
	// A node that is cut off lets go those whose place is kept.
	own := body{Keys: a.wanted.claims, TTL: a.wanted.ttl.Milliseconds(), KeepsIt: wait > 0, Holder: a.wanted.holder, Metadata: a.wanted.metadata}
	asked := &request{method: http.MethodPut, path: "/v1/leases/" + a.leaseID, wait: wait, isWait: mayWait}
	if !mayWait {
		operation := own
		operation.LeaseID = a.leaseID
		asked.operation = encode(map[string]any{"acquire": operation})
	}
	ms := wait.Milliseconds()
	own.Wait = &ms
	asked.body = encode(own)
	return asked
}

// leave leaves the queue: the caller may end now, or ask again, and no place may stay behind.
func (a *acquire) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leavesWithin)
	defer cancel()
	if a.core.release(ctx, a.leaseID, retryLimit) == nil {
		// Otherwise it goes on in the background.
		a.isArmed = false
	}
	return &TimedOutError{"wait"}
}

func (a *acquire) refused(problem *Problem) error {
	isTry := a.wanted.wait == 0
	// An abandoned PUT may still arrive, and find the key free.
	a.isArmed = a.attempts.maybeDone
	switch {
	case problem.isDenial():
		a.attempts.maybeDone = a.attempts.maybeDone || a.hasPlace
		a.isArmed = a.attempts.maybeDone
	case problem.Name == "held" && isTry:
		return &HeldError{problem.holders, problem.waiters}
	case problem.Name == "held" || problem.Name == "wait-timeout":
		// The place is lost: no PUT came for it in time, or this was the last one.
		if a.left() == 0 {
			return &TimedOutError{"wait"}
		}
		return errUnused
	case problem.Name == "lease-gone" && (problem.reason == Expired || problem.reason == Abandoned):
		return errUnused
	}
	return a.attempts.refusal(problem, a.leaseID)
}

// freshen renews a lease that is not fresh enough to begin work.
func (a *acquire) freshen(ctx context.Context, granted confirmation) (confirmation, error) {
	if newLifetime(granted, true, forever).isFresh(a.core.clock()) {
		return granted, nil
	}
	renewed, err := a.core.renew(ctx, a.leaseID, 0, true)
	switch lossIn(err) {
	case Expired, Abandoned, Forgotten:
		return confirmation{}, errUnused
	}
	return renewed, err
}

func readPut(answered *response, leaseID string) (*grant, error) {
	switch answered.status {
	case http.StatusOK, http.StatusCreated:
		granted, err := readGrant(answered.body, leaseID)
		return &granted, err
	case http.StatusAccepted:
		return nil, readWaiting(answered.body, leaseID)
	default:
		return nil, errors.New("it is no response to an acquire")
	}
}
