package ringfencetest

import (
	"fmt"
	"slices"
	"time"
)

const (
	placeKept  = 5 * time.Second
	hungUpGone = 2 * time.Second
	remembered = time.Minute
	// answered is how long after its wait a request may still be answered.
	answered = 20 * time.Second
	never    = time.Duration(1) << 60
)

// A claim is a key, and how it is held.
type claim struct {
	Key   string  `json:"key"`
	Mode  string  `json:"mode"`
	Limit *uint64 `json:"limit"`
}

// wanted is an acquire, as it is asked for.
type wanted struct {
	LeaseID   string            `json:"lease_id"`
	Keys      []claim           `json:"keys"`
	TTL       int64             `json:"ttl_ms"`
	Wait      int64             `json:"wait_ms"`
	KeepPlace bool              `json:"keep_place"`
	Holder    *string           `json:"holder"`
	Metadata  map[string]string `json:"metadata"`
}

// revoked names the lease that an operator ends.
type revoked struct {
	Key   string `json:"key"`
	Token uint64 `json:"token"`
}

// A reply is what a node answers.
type reply struct {
	status int
	body   any
}

// A pending request is one that has not been answered, for a lease that waits.
type pending struct {
	// until is how long its place is kept, and answerAt when it is answered with the place, if it still waits then.
	until, answerAt time.Duration
	// goneAt is when its connection, which has closed, keeps no place any more.
	goneAt time.Duration
	// answer is nil if it does not wait.
	answer chan reply
}

type lease struct {
	id       string
	claims   []claim
	holder   *string
	metadata map[string]string
	since    time.Duration
	ttl      time.Duration
	// token is 0 before it is granted.
	token    uint64
	deadline time.Duration
	// requests are what may end it by a closed connection: nothing else has told of it.
	requests []*pending
}

type ending struct {
	how string
	at  time.Duration
}

// A table has the rules of a cluster: who has which key, who waits for it, and what a node answers.
//
// A lease fits a key if its mode goes together with those of all that came before it on that key, be they holders or waiters. So nobody overtakes, and
// only an end lets others in. Each grant, each end, and each time that a lease enters a queue takes the next number; that of the grant is the token. Time
// is what its owner says: what is due by then happens in its order, each at its own time.
type table struct {
	at     time.Duration
	number uint64
	leases map[string]*lease
	// locks are who has, and who waits for, each key, in the order of their coming.
	locks map[string][]*lease
	ended map[string]ending
}

func newTable() *table {
	return &table{number: 1000, leases: make(map[string]*lease), locks: make(map[string][]*lease), ended: make(map[string]ending)}
}

// run does what is due until then.
func (t *table) run(now time.Duration) {
	for due := t.due(); due <= now; due = t.due() {
		t.at = max(due, t.at)
		t.doDue()
	}
	t.at = max(now, t.at)
	for id, one := range t.ended {
		if t.at-one.at > remembered {
			delete(t.ended, id)
		}
	}
}

// due is when something happens by itself.
func (t *table) due() time.Duration {
	due := never
	for _, one := range t.leases {
		due = min(due, one.deadline)
		for _, request := range one.requests {
			due = min(due, request.goneAt)
			if one.token == 0 {
				due = min(due, request.answerAt)
			}
		}
	}
	return due
}

func (t *table) doDue() {
	for _, one := range t.leases {
		before := len(one.requests)
		one.requests = slices.DeleteFunc(one.requests, func(request *pending) bool { return request.goneAt <= t.at })
		switch {
		case len(one.requests) < before && len(one.requests) == 0:
			t.end(one, "abandoned")
		case len(one.requests) < before && one.token == 0:
			one.deadline = one.lastUntil()
		case one.deadline <= t.at && one.token == 0:
			t.end(one, "timed-out")
		case one.deadline <= t.at:
			t.end(one, "expired")
		case one.token == 0:
			for _, request := range one.requests {
				if request.answerAt <= t.at {
					request.tell(t.waiting(one))
				}
			}
		}
	}
}

func (one *lease) lastUntil() time.Duration {
	last := time.Duration(0)
	for _, request := range one.requests {
		last = max(last, request.until)
	}
	return last
}

func (p *pending) tell(answer reply) {
	p.answerAt = never
	if p.answer != nil {
		p.answer <- answer
		p.answer = nil
	}
}

// acquire acquires. If it has to wait, answer gets the reply later, and the request is returned.
func (t *table) acquire(w wanted, answer chan reply) (reply, *pending) {
	wait, keep := ms(w.Wait), time.Duration(0)
	if w.KeepPlace {
		keep = placeKept
	}
	request := &pending{until: t.at + wait + keep, answerAt: never, goneAt: never}
	if wait > 0 {
		request.answer = answer
		if keep > 0 {
			request.answerAt = t.at + wait
		}
	}
	for i := range w.Keys {
		if w.Keys[i].Mode == "" {
			w.Keys[i].Mode = "exclusive"
		}
	}
	if known := t.leases[w.LeaseID]; known != nil {
		return t.repeat(known, w, request)
	}
	if ended, isEnded := t.ended[w.LeaseID]; isEnded {
		return gone(ended.how), nil
	}
	one := &lease{id: w.LeaseID, claims: w.Keys, holder: w.Holder, metadata: w.Metadata, since: t.at, ttl: ms(w.TTL), deadline: request.until}
	fits := !slices.ContainsFunc(w.Keys, func(c claim) bool { return !goesWith(t.locks[c.Key], c) })
	if !fits && wait == 0 && keep == 0 {
		return t.held(one), nil
	}
	one.requests = []*pending{request}
	t.leases[one.id] = one
	for _, c := range one.claims {
		t.locks[c.Key] = append(t.locks[c.Key], one)
	}
	if fits {
		t.grant(one)
		return reply{201, t.granted(one)}, request
	}
	t.number++
	if request.answer == nil {
		return t.waiting(one), nil
	}
	return reply{}, request
}

func (t *table) repeat(known *lease, w wanted, request *pending) (reply, *pending) {
	if fmt.Sprint(keysOf(known.claims)) != fmt.Sprint(keysOf(w.Keys)) {
		return problem("lease-mismatch", 409, "this lease_id was used with other keys: use a new one", nil), nil
	}
	if known.token != 0 {
		known.requests = nil
		return reply{200, t.granted(known)}, nil
	}
	known.requests = append(known.requests, request)
	if known.deadline > request.until {
		request.until += placeKept
	}
	known.deadline = known.lastUntil()
	if request.answer == nil {
		return t.waiting(known), nil
	}
	return reply{}, request
}

func (t *table) renew(id string, ttl int64) reply {
	one := t.leases[id]
	if one == nil {
		if ended, isEnded := t.ended[id]; isEnded {
			return gone(ended.how)
		}
		return problem("unknown-lease", 404, "no lease with this id exists", nil)
	}
	if one.token == 0 {
		return problem("not-granted", 409, "the lease is still in the queue: repeat its PUT instead", nil)
	}
	if ttl > 0 {
		one.ttl = ms(ttl)
	}
	one.deadline = max(one.deadline, t.at+one.ttl)
	one.requests = nil
	return reply{200, t.granted(one)}
}

func (t *table) release(id string) reply {
	how := "released"
	if ended, isEnded := t.ended[id]; isEnded {
		how = ended.how
	}
	switch one := t.leases[id]; {
	case one != nil:
		t.end(one, "released")
	case how != "released" && how != "timed-out":
		return gone(how)
	default:
		t.ended[id] = ending{how, t.at}
	}
	return reply{status: 204}
}

// revoke ends the lease that holds the key with this token.
func (t *table) revoke(which revoked) reply {
	for _, one := range t.holders(which.Key) {
		if one.token == which.Token {
			t.end(one, "revoked")
			return reply{status: 204}
		}
	}
	return problem("not-live", 409, "no live lease holds this key with this token", nil)
}

// hungUp: the connection of a request has closed before it was answered.
func (t *table) hungUp(request *pending) {
	request.goneAt = min(request.goneAt, t.at+hungUpGone)
}

// letGo answers all that wait and whose place is kept.
func (t *table) letGo() {
	for _, one := range t.leases {
		for _, request := range one.requests {
			if request.answerAt < never && one.token == 0 {
				request.tell(t.waiting(one))
			}
		}
	}
}

func (t *table) holders(key string) []*lease {
	var holders []*lease
	for _, one := range t.locks[key] {
		if one.token != 0 {
			holders = append(holders, one)
		}
	}
	slices.SortFunc(holders, func(a, b *lease) int { return int(a.token) - int(b.token) })
	return holders
}

// grant grants a lease. If several requests may be answered with it, a closed connection does not end it.
func (t *table) grant(one *lease) {
	one.requests = slices.DeleteFunc(one.requests, func(request *pending) bool { return request.until+answered < t.at })
	if len(one.requests) != 1 {
		one.requests = nil
	}
	t.number++
	one.token = t.number
	one.deadline = t.at + one.ttl
}

func (t *table) end(one *lease, how string) {
	t.number++
	delete(t.leases, one.id)
	t.ended[one.id] = ending{how, t.at}
	var waiters []*lease
	for _, c := range one.claims {
		rest := slices.DeleteFunc(t.locks[c.Key], func(other *lease) bool { return other == one })
		if t.locks[c.Key] = rest; len(rest) == 0 {
			delete(t.locks, c.Key)
		}
		waiters = append(waiters, rest...)
	}
	for _, request := range one.requests {
		request.tell(gone(how))
	}
	for _, waiter := range waiters {
		if waiter.token == 0 && t.mayEnter(waiter) {
			requests := waiter.requests
			t.grant(waiter)
			for _, request := range requests {
				request.tell(reply{201, t.granted(waiter)})
			}
		}
	}
}

func (t *table) mayEnter(waiter *lease) bool {
	for _, c := range waiter.claims {
		lock := t.locks[c.Key]
		if !goesWith(lock[:slices.Index(lock, waiter)], c) {
			return false
		}
	}
	return true
}

func (t *table) fence(key string) uint64 {
	if holders := t.holders(key); len(holders) > 0 {
		return holders[0].token
	}
	return t.number + 1
}

func (t *table) left(one *lease) int64 {
	return max(one.deadline-t.at, 0).Milliseconds()
}

// goesWith says whether a claim goes together with all these on its key.
func goesWith(others []*lease, own claim) bool {
	if own.Mode == "exclusive" {
		return len(others) == 0
	}
	fits := func(limit *uint64) bool { return limit == nil || uint64(len(others)) < *limit }
	if !fits(own.Limit) {
		return false
	}
	for _, other := range others {
		if c := other.claim(own.Key); c.Mode == "exclusive" || !fits(c.Limit) {
			return false
		}
	}
	return true
}

func (one *lease) claim(key string) claim {
	for _, c := range one.claims {
		if c.Key == key {
			return c
		}
	}
	return claim{Key: key, Mode: "exclusive"}
}

func keysOf(claims []claim) []string {
	var keys []string
	for _, c := range claims {
		keys = append(keys, c.Key+" "+c.Mode)
	}
	return keys
}

func ms(n int64) time.Duration {
	return time.Duration(n) * time.Millisecond
}
