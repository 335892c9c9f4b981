package ringfence

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// probeAfter is how long a request waits before the node is asked. Most responses take less.
	probeAfter = 300 * time.Millisecond
	// probeInterval is how long after a sign of life it is asked for another.
	probeInterval = time.Second
	// lookAfter is the longest pause before another look at a node that was silent, and lookWithin how long that may take.
	lookAfter  = 500 * time.Millisecond
	lookWithin = 300 * time.Millisecond
)

// A pulse finds out whether a node still answers, while requests wait for it.
//
// A host that vanishes closes no connection, and the kernel of a process that hangs acknowledges whatever is sent. So a request that waits, be it
// for 30 s in the cluster's queue, has the node asked for a sign of life on another connection:
//
//	sent -- 300 ms without a response --> probe -- answered --> 1 s --> probe -- ...
//	                                        '-- not within 1.5 s --> the requests are broken, and repeated elsewhere
//
// Callers without more time give requests up sooner. Until the node answers anything, these requests together count as one that has waited since
// the first of them. If the probe fails when none waits any more, the node is silent only if it has answered nothing meanwhile, nor a second probe.
//
// Only the answer to a probe says that all threads of the node run: a response to another request says nothing of the thread that has this one. All
// requests that wait for a node share its probes. A busy node may be late for a moment, with thousands of waiters. If all of them asked elsewhere at
// once, that would make it later still. So those who can wait pause for a random time, and look once more.
type pulse struct {
	// probe fails within a bound if the node does not answer that it works.
	probe func() error
	// ends is the client's end.
	ends context.Context
	// onSilent is told since when the node is silent, if this is found when no request that could be told waits any more.
	onSilent func(since time.Time)

	mu    sync.Mutex
	waits map[*waiting]struct{}
	// givenUp is when the first of the requests that were given up began. Zero once a request ends otherwise.
	givenUp time.Time
	// lived is when a probe was answered last, and asked when one was sent.
	lived, asked time.Time
	isProbing    bool
	// another is the look of all that look once more.
	another *look
	timer   *time.Timer
	due     time.Time
	isOver  bool
}

// A request that waits.
type waiting struct {
	begun time.Time
	// silent is called each time the node is found silent. It must not block.
	silent func()
}

type look struct {
	done    chan struct{}
	answers bool
}

func newPulse(ends context.Context, probe func() error) *pulse {
	return &pulse{ends: ends, probe: probe, waits: make(map[*waiting]struct{}), onSilent: func(time.Time) {}}
}

// watch calls silent each time the node is found silent. To end this, call the returned function, and say whether the request was given up.
func (p *pulse) watch(silent func()) func(isGivenUp bool) {
	own := &waiting{time.Now(), silent}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits[own] = struct{}{}
	p.lookAt(p.dueAt(own.begun))
	return func(isGivenUp bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waits, own)
		if !isGivenUp {
			p.givenUp = time.Time{}
		} else if p.lived.Before(own.begun) && (p.givenUp.IsZero() || own.begun.Before(p.givenUp)) {
			p.givenUp = own.begun
		}
		if len(p.waits) == 0 && p.givenUp.IsZero() {
			p.stopTimer()
		}
	}
}

// end ends the probes.
func (p *pulse) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isOver = true
	p.stopTimer()
}

// staysSilent says whether a node that was just found silent still is, after a pause in which many others decide the same.
func (p *pulse) staysSilent(ctx context.Context) bool {
	since := time.Now()
	if sleep(ctx, rand.N(lookAfter)) != nil {
		return false
	}
	p.mu.Lock()
	if p.lived.After(since) {
		p.mu.Unlock()
		return false
	}
	another := p.another
	if another == nil {
		another = &look{done: make(chan struct{})}
		p.another = another
		go func() {
			answers := p.answers()
			p.mu.Lock()
			defer p.mu.Unlock()
			p.another = nil
			another.answers = answers
			close(another.done)
		}()
	}
	p.mu.Unlock()
	select {
	case <-another.done:
		return !another.answers
	case <-time.After(lookWithin):
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *pulse) answers() bool {
	if p.probe() != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lived, p.givenUp = time.Now(), time.Time{}
	return true
}

func (p *pulse) dueAt(begun time.Time) time.Time {
	due := begun.Add(probeAfter)
	if p.lived.After(begun) {
		due = p.lived.Add(probeInterval)
	}
	if next := p.asked.Add(probeInterval); next.After(due) {
		return next
	}
	return due
}

func (p *pulse) lookAt(due time.Time) {
	if p.isOver || p.isProbing || (p.timer != nil && !due.Before(p.due)) {
		return
	}
	p.stopTimer()
	p.due = due
	p.timer = time.AfterFunc(time.Until(due)+time.Millisecond, p.look)
}

func (p *pulse) stopTimer() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

func (p *pulse) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopTimer()
	var due time.Time
	soonest := func(begun time.Time) {
		if at := p.dueAt(begun); due.IsZero() || at.Before(due) {
			due = at
		}
	}
	if !p.givenUp.IsZero() {
		soonest(p.givenUp)
	}
	for wait := range p.waits {
		soonest(wait.begun)
	}
	switch {
	case due.IsZero() || p.isOver || p.isProbing:
	case due.After(time.Now()):
		p.lookAt(due)
	default:
		p.asked, p.isProbing = time.Now(), true
		go p.ask(p.asked)
	}
}

func (p *pulse) ask(asked time.Time) {
	if !p.answers() && !p.silence(asked) {
		p.judge(asked)
	}
	p.mu.Lock()
	p.isProbing = false
	p.mu.Unlock()
	p.look()
}

// judge finds out whether the node is silent when nobody waits any more who could look once more.
func (p *pulse) judge(asked time.Time) {
	isUnanswered := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.isOver && !p.givenUp.IsZero() && !p.givenUp.After(asked)
	}
	if isUnanswered() && p.staysSilent(p.ends) && isUnanswered() {
		p.mu.Lock()
		p.givenUp = time.Time{}
		p.mu.Unlock()
		p.onSilent(asked)
	}
}

// silence tells all requests that have waited since then, and whether there are any.
func (p *pulse) silence(asked time.Time) bool {
	p.mu.Lock()
	var waited []*waiting
	for wait := range p.waits {
		if !wait.begun.After(asked) {
			waited = append(waited, wait)
		}
	}
	p.mu.Unlock()
	for _, wait := range waited {
		wait.silent()
	}
	return len(waited) > 0
}

// sleep waits, unless the context ends before: then it is an error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
