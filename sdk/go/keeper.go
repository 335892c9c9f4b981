package ringfence

import (
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// mostRenewed is how many leases one request may renew.
	mostRenewed = 1000
	// longestSleep: timers stand still while the machine sleeps.
	longestSleep = time.Second
)

// A keeper looks after all leases of a client on one goroutine: it renews them, with one call for all that are due, and tells those that are lost.
//
//	leases --due after 1/3, or after 1/6 along with another--> POST /v1/renew, up to 1,000 ids --> each confirmed, or lost
//	                                                              |              ^
//	                                                              '- ambiguous --' at once at the next node, then with pauses
//
// Leases that were acquired at different times are soon renewed together, because each call includes all leases that are at least half as old. An attempt
// waits for the answer for at most a quarter of the shortest time-to-live in it, so that another node is asked in time. Before that, it may wait as long
// for a new connection, and with TLS as long again for the handshake. Calls run on goroutines of their own: one that hangs delays no other lease.
//
// Safety does not depend on it: without it, leases become Unsure and then Lost by their clocks alone. The goroutine ends with the last lease.
type keeper struct {
	core *core
	wake chan struct{}

	mu      sync.Mutex
	kept    map[*held]*kept
	isAwake bool
	// isOver: the client is, and nothing is kept any more.
	isOver  bool
	looksAt time.Time
	// refusal is why leases were not renewed the last time, if they were not.
	refusal string
	// jitter renews up to a twelfth of the time earlier, so that clients that began together do not stay together.
	jitter float64
}

// A kept lease is one that the keeper looks after.
type kept struct {
	held *held
	// isInFlight: a call for it is under way.
	isInFlight bool
	// since and pause are of the last call, which may have been in vain, or so slow that the lease is due again.
	since Moment
	pause time.Duration
}

func newKeeper(c *core) *keeper {
	return &keeper{core: c, wake: make(chan struct{}, 1), kept: make(map[*held]*kept), jitter: rand.Float64()}
}

// add looks after this lease from now on, until it is lost or removed.
func (k *keeper) add(h *held) {
	at := k.core.clock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isOver {
		return
	}
	own := &kept{held: h, since: at}
	k.kept[h] = own
	looksAt := time.Now().Add(k.wait(own, at))
	if !k.isAwake {
		k.looksAt = looksAt
		k.isAwake = k.core.spawn(k.run)
	} else if looksAt.Before(k.looksAt) {
		k.looksAt = looksAt
		k.poke()
	}
}

func (k *keeper) remove(h *held) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.kept, h)
}

func (k *keeper) has(h *held) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[h] != nil
}

// clear looks after nothing any more, for good, and tells whoever works under a lease that was left to its id: nobody would tell them in time.
func (k *keeper) clear() {
	at := k.core.clock()
	k.mu.Lock()
	k.isOver = true
	all := k.kept
	k.kept = nil
	k.mu.Unlock()
	for h := range all {
		h.lose(Unconfirmed, at)
	}
	k.poke()
}

func (k *keeper) list() []*held {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.kept))
}

func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *keeper) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-k.wake:
		}
		wait, isOver := k.look()
		if isOver {
			return
		}
		timer.Reset(wait)
	}
}

// look does what is due, and returns when more is. It is over if there are no leases.
func (k *keeper) look() (time.Duration, bool) {
	at := k.core.clock()
	// Without the lock: a loss is told here.
	for _, h := range k.list() {
		if h.look(at) != "" {
			k.remove(h)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.kept) == 0 {
		k.isAwake = false
		return 0, true
	}
	if due := k.due(at); len(due) > 0 {
		k.jitter = rand.Float64()
		for len(due) > 0 {
			some := due[:min(mostRenewed, len(due))]
			due = due[len(some):]
			for _, own := range some {
				own.isInFlight = true
			}
			k.core.spawn(func() { k.renew(some) })
		}
	}
	wait := longestSleep
	for _, own := range k.kept {
		wait = min(wait, k.wait(own, at))
	}
	k.looksAt = time.Now().Add(wait)
	return wait, false
}

// due are the leases to renew: if one is due, all that are at least half as old.
func (k *keeper) due(at Moment) []*kept {
	var due []*kept
	isDue := false
	for _, own := range k.kept {
		in := k.dueIn(own.held, at)
		if !own.isInFlight && own.paused(at) <= 0 && in <= own.held.lifetime.Load().grant.ttl/6 {
			due = append(due, own)
			isDue = isDue || in <= 0
		}
	}
	if !isDue {
		return nil
	}
	return due
}

// wait is how long there is nothing to do for a lease. It is less than until its end, so that a timer that is late is not too late.
func (k *keeper) wait(own *kept, at Moment) time.Duration {
	left := own.held.lifetime.Load().remaining(at)
	wait := left - left/8
	if !own.isInFlight {
		wait = min(wait, max(k.dueIn(own.held, at), own.paused(at)))
	}
	return min(max(wait, time.Millisecond), longestSleep)
}

func (k *keeper) dueIn(h *held, at Moment) time.Duration {
	l := h.lifetime.Load()
	return l.renewIn(at) - time.Duration(float64(l.grant.ttl/12)*k.jitter)
}

// paused is how much of its pause is left.
func (own *kept) paused(at Moment) time.Duration {
	return own.since.after(own.pause).since(at)
}

// renew renews these leases together, until an outcome is definite or none of them is left.
func (k *keeper) renew(all []*kept) {
	pause := k.renewAll(all)
	at := k.core.clock()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, own := range all {
		own.isInFlight = false
		own.since = at
		own.pause = max(min(own.held.lifetime.Load().grant.ttl/12, longestSleep), pause)
	}
	k.poke()
}

// renewAll returns how long the cluster asks to wait before the next renewal.
func (k *keeper) renewAll(all []*kept) time.Duration {
	ttl := all[0].held.grant().ttl
	for _, own := range all {
		ttl = min(ttl, own.held.grant().ttl)
	}
	limit := min(ttl/4, attemptLimit)
	tries := newAttempts(k.core.nodes)
	tries.longestPause = limit / 2
	for {
		if tries.pause(k.core.ends) != nil {
			return 0
		}
		live, ids := k.live(all)
		if len(live) == 0 {
			return 0
		}
		asked := &request{method: http.MethodPost, path: "/v1/renew", body: encode(map[string]any{"lease_ids": ids}), isApart: true}
		var renewals []renewal
		got, err := tries.attempt(k.core.ends, asked, limit, func(answered *response) (err error) {
			renewals, err = readRenewals(answered.body, ids)
			return err
		})
		if err != nil {
			return 0
		}
		if got.is == done {
			k.learn(live, renewals, got.response.sent)
			return 0
		}
		for _, own := range live {
			own.held.tell.failed(own.held.view(), got.why)
		}
		switch got.is {
		case limited:
			return min(got.wait, ttl/6)
		case refused:
			k.say(got.why)
			return 0
		}
	}
}

// live are those that are still to be renewed, with their ids.
func (k *keeper) live(all []*kept) (live []*kept, ids []string) {
	at := k.core.clock()
	for _, own := range all {
		if k.has(own.held) && own.held.look(at) == "" && own.held.lifetime.Load().needsRenewals() {
			live = append(live, own)
			ids = append(ids, own.held.leaseID)
		}
	}
	return live, ids
}

// learn learns the results. A renewal that failed for now is repeated after a pause.
func (k *keeper) learn(live []*kept, renewals []renewal, sent Moment) {
	at := k.core.clock()
	refusal := ""
	for i, own := range live {
		problem := renewals[i].problem
		switch {
		case problem == nil:
			own.held.confirm(confirmation{renewals[i].grant, sent}, at)
		case problem.loss() != "":
			own.held.lose(problem.loss(), at)
		default:
			refusal = problem.Detail
			own.held.tell.failed(own.held.view(), refusal)
		}
	}
	k.say(refusal)
}

// say warns of what the cluster refuses, which no holder would learn of before its lease is lost. Once, until it renews again.
func (k *keeper) say(refusal string) {
	k.mu.Lock()
	isNew := refusal != "" && refusal != k.refusal
	k.refusal = refusal
	k.mu.Unlock()
	if isNew {
		k.core.tell.warn(WarnRenewal, "leases are not renewed: "+refusal)
	}
}
