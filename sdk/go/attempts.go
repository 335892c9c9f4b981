package ringfence

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// retryLimit is how long a call is repeated without a definite outcome.
	retryLimit = 5 * time.Second
	// attemptLimit is how long one node may take if another can be asked. An election takes about a second, but a node gives up only after 5 s.
	attemptLimit = 2 * time.Second
	// slow is how long a request takes that those who wait for their turn are not to wait for again.
	slow = 500 * time.Millisecond
	// mostLeft is how many waits of one call may stay open at nodes that do not answer.
	mostLeft = 3
)

// attempts are those of one call, each at the node that is best at the time, until an outcome is definite.
//
// **Doubt is sticky.** If one attempt may have been done, the outcome *not done* of a repeat says nothing about it, nor does a denial; only *done* or
// *refused* resolves it. A call makes no more attempts after 5 s without a definite outcome, not counting waits for a turn: the cluster may forget an
// id 60 s after its end. A release in the background goes on for 30 s, an acquire that stood in the queue until its wait is over.
//
// When all nodes have had their turn, a pause follows. Until then attempts may share requests with others; later they are alone, since something in
// between may not let a batch pass. Only so many are alone at once; what one of them that gets no answer came to is what all that wait for their turn
// came to, so that an outage takes no longer for many calls than for one.
//
// The cluster takes a place away 2 s after the connection of its wait was closed. So a wait at a node that does not answer stays open until another
// has answered.
type attempts struct {
	nodes        *nodes
	backoff      backoff
	failed       int
	longestPause time.Duration
	// onlyReads: it changes nothing, so that it is no matter whether it was done.
	onlyReads bool
	// maybeDone: an attempt may have been done.
	maybeDone bool
	// idle is how long it has waited for a turn. The cluster is not to blame for that.
	idle        time.Duration
	lastFailure string
	// left ends each of the waits that were left open.
	left []context.CancelCauseFunc
	// distrusting are the nodes with which one side did not trust the other; nil once an attempt has ended otherwise.
	distrusting map[*node]bool
}

func newAttempts(n *nodes) *attempts {
	return &attempts{nodes: n, longestPause: time.Second, distrusting: make(map[*node]bool)}
}

// pause comes before each attempt, and before what that asks is chosen: meanwhile, others may change their mind. An error says that nobody waits any
// more.
func (a *attempts) pause(ctx context.Context) error {
	if a.failed > 0 && a.failed%a.nodes.configured == 0 {
		return sleep(ctx, min(a.backoff.next(), a.longestPause))
	}
	return nil
}

// attempt makes one. An error says that nobody waits any more.
func (a *attempts) attempt(ctx context.Context, asked *request, limit time.Duration, read func(*response) error) (outcome, error) {
	mayShare := asked.operation != nil && a.failed < a.nodes.configured
	if !mayShare && asked.takesTurn() {
		turn, err := a.turn(ctx)
		if err != nil {
			return a.failedBefore(err)
		}
		defer turn.end()
	}
	one := a.nodes.best()
	begun := time.Now()
	answered, err := a.send(ctx, one, asked, limit, mayShare)
	failed := asFailure(err)
	if err != nil && failed == nil {
		return outcome{}, err
	}
	var got outcome
	cluster := ""
	if failed == nil {
		got = outcomeOf(answered, read)
		cluster = answered.cluster
	} else {
		got = outcomeWithout(failed)
	}
	a.note(one, failed)
	if stranger := a.nodes.checkCluster(one, cluster, got.isDefinite()); stranger != nil {
		got = outcomeWithout(stranger)
	}
	a.record(one, got, answered, begun, failed != nil && failed.isUnasked)
	return got, nil
}

// areHopeless says whether no further attempt can help, as long as the files of both sides stay as they are.
func (a *attempts) areHopeless() bool {
	for _, one := range a.nodes.list(false) {
		if !a.distrusting[one] {
			return false
		}
	}
	return true
}

func (a *attempts) note(one *node, failed *failure) {
	if failed == nil || !failed.isDistrust {
		a.distrusting = nil
	} else if a.distrusting != nil {
		a.distrusting[one] = true
	}
}

func (a *attempts) record(one *node, got outcome, answered *response, asked time.Time, isUnasked bool) {
	switch got.is {
	case limited:
		a.lastFailure = got.why
		a.nodes.responded(one, answered.leader)
	case done, refused:
		a.endLeft(0)
		a.failed = 0
		a.backoff = backoff{}
		a.nodes.responded(one, answered.leader)
	default:
		a.failed++
		a.maybeDone = a.maybeDone || (got.is == ambiguous && !a.onlyReads)
		a.lastFailure = got.why
		switch {
		case isUnasked:
		case answered == nil:
			a.nodes.failed(one, asked)
		default:
			a.nodes.failed(one, time.Time{})
		}
	}
}

// send sends it, unless the node turns out to be silent while another may answer.
func (a *attempts) send(ctx context.Context, one *node, asked *request, limit time.Duration, mayShare bool) (*response, error) {
	if err := a.nodes.met(ctx, one); err != nil {
		return nil, err
	}
	if !mayShare {
		return a.sendAlone(ctx, one, asked, limit)
	}
	answered, err := one.batcher.send(ctx, asked, limit, func() bool { return a.nodes.hasUsableBesides(one) })
	if err != errAlone {
		return answered, err
	}
	turn, err := a.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer turn.end()
	return a.sendAlone(ctx, one, asked, limit)
}

// turn waits until the call may send something alone. The error is what others came to, or nobody waits any more.
func (a *attempts) turn(ctx context.Context) (*turn, error) {
	begun := time.Now()
	turn := a.nodes.alone.ask()
	var err error
	select {
	case <-turn.ready:
	case err = <-turn.failed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		turn.end()
		return nil, err
	}
	a.idle += time.Since(begun)
	return turn, nil
}

// failedBefore is the outcome of what was not sent, since others got no answer.
func (a *attempts) failedBefore(err error) (outcome, error) {
	failed := asFailure(err)
	if failed == nil {
		return outcome{}, err
	}
	got := outcomeWithout(failed)
	a.failed++
	a.lastFailure = got.why
	return got, nil
}

func (a *attempts) sendAlone(ctx context.Context, one *node, asked *request, limit time.Duration) (*response, error) {
	// A wait that is left open goes on when this call has ended.
	broken, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	silent := make(chan struct{}, 1)
	unwatch := one.pulse.watch(func() {
		switch {
		case !a.nodes.hasUsableBesides(one):
		case !asked.isWait:
			cancel(&failure{why: "it does not answer"})
		default:
			select {
			case silent <- struct{}{}:
			default:
			}
		}
	})
	begun := time.Now()
	over := make(chan answer, 1)
	go func() {
		defer cancel(nil)
		answered, err := one.exchange(broken, asked, limit)
		over <- answer{answered, err}
	}()
	for {
		select {
		case got := <-over:
			stop()
			unwatch(ctx.Err() != nil)
			// What is over at once does not hold up those who wait.
			if failed := asFailure(got.err); failed != nil && asked.takesTurn() && time.Since(begun) >= slow {
				a.nodes.alone.fail(&failure{why: failed.why, isUnasked: true})
			}
			return got.response, got.err
		case <-silent:
			if one.pulse.staysSilent(ctx) && a.nodes.hasUsableBesides(one) {
				stop()
				unwatch(false)
				a.leave(over, cancel)
				return nil, &failure{why: one.url + ": it does not answer", wasSent: true}
			}
		}
	}
}

// leave leaves a wait open, if there is a connection to spare.
func (a *attempts) leave(over <-chan answer, cancel context.CancelCauseFunc) {
	turn := a.nodes.waits.ask()
	if !turn.isReady() {
		turn.end()
		cancel(nil)
		return
	}
	a.left = append(a.left, cancel)
	stop := context.AfterFunc(a.nodes.ends, func() { cancel(nil) })
	go func() {
		<-over
		stop()
		turn.end()
	}()
	a.endLeft(mostLeft)
}

// endLeft ends waits that were left open, but the last of them.
func (a *attempts) endLeft(but int) {
	for len(a.left) > but {
		a.left[0](nil)
		a.left = a.left[1:]
	}
}

// call attempts until the outcome is definite, or retry is over. The error is one that the caller is to see. What is about a lease that is held here
// goes on where no attempt can help: certificates may be replaced while it is.
func (a *attempts) call(ctx context.Context, asked *request, leaseID string, retry time.Duration, isHeld bool, read func(*response) error) (*response, error) {
	// The time of a lookup does not count for the attempts.
	if a.nodes.resolve(ctx) != nil {
		return nil, ended(ctx)
	}
	begun := time.Now()
	past := func() time.Duration { return time.Since(begun) - a.idle }
	for {
		if a.pause(ctx) != nil {
			return nil, ended(ctx)
		}
		limit := min(max(retry-past(), 100*time.Millisecond), retryLimit)
		if a.nodes.hasAnother() {
			limit = min(limit, attemptLimit)
		}
		got, err := a.attempt(ctx, asked, limit, read)
		switch {
		case err != nil:
			return nil, ended(ctx)
		case got.is == done:
			return got.response, nil
		case got.is == refused:
			return nil, a.refusal(got.problem, leaseID)
		case got.is == limited:
			if past()+got.wait > retry {
				return nil, a.limit(got, leaseID)
			}
			if sleep(ctx, got.wait) != nil {
				return nil, ended(ctx)
			}
		case past() >= retry || (a.areHopeless() && !isHeld):
			return nil, a.failure(leaseID)
		}
	}
}

// refusal is the error of a refusal.
func (a *attempts) refusal(problem *Problem, leaseID string) error {
	reason := problem.loss()
	switch {
	case problem.isDenial() && a.maybeDone:
		return &UnknownError{problem.Detail, leaseID}
	case problem.isDenial():
		return &UnauthorizedError{*problem}
	case reason != "":
		return &LostError{reason}
	default:
		return &RejectedError{Problem: *problem}
	}
}

// limit is the error if a 429 asks for more time than there is.
func (a *attempts) limit(got outcome, leaseID string) error {
	if a.maybeDone {
		return &UnknownError{got.why, leaseID}
	}
	return &RejectedError{*got.problem, got.wait}
}

// failure is the error of a call without a definite outcome.
func (a *attempts) failure(leaseID string) error {
	if a.maybeDone {
		return &UnknownError{a.lastFailure, leaseID}
	}
	return &UnavailableError{a.lastFailure}
}

// A backoff makes random pauses from half to all of a time that doubles up to a second, so that clients that failed together return apart.
type backoff struct {
	pauses int
}

func (b *backoff) next() time.Duration {
	most := min(40*time.Millisecond<<min(b.pauses, 8), time.Second)
	b.pauses++
	return most/2 + rand.N(most/2)
}
