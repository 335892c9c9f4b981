package ringfence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A LossReason says why a lease is lost.
type LossReason string

const (
	// Released, Expired, Revoked and Abandoned are what the cluster said.
	Released  LossReason = "released"
	Expired   LossReason = "expired"
	Revoked   LossReason = "revoked"
	Abandoned LossReason = "abandoned"
	// Forgotten: it ended so long ago that the cluster no longer knows it.
	Forgotten LossReason = "forgotten"
	// Unconfirmed: no renewal was confirmed in time. The cluster may still have it.
	Unconfirmed LossReason = "unconfirmed"
	// MaxHeld: it reached its MaxHold.
	MaxHeld LossReason = "max-hold"
)

var losses = map[LossReason]string{
	Released:    "it was released",
	Expired:     "it expired",
	Revoked:     "an operator revoked it",
	Abandoned:   "the connection was lost before the response",
	Forgotten:   "the cluster no longer knows it",
	Unconfirmed: "no renewal was confirmed in time",
	MaxHeld:     "it reached its maximum hold time",
}

// ErrClosed is the error of a call of a client that is closed.
var ErrClosed = errors.New("ringfence: the client is closed")

// errEnds is the cause of the end of what ends with the client. No caller can have it: ErrClosed may be that of another client.
var errEnds = errors.New("the client ends")

// An InvalidError says that the call is invalid. Nothing was sent.
type InvalidError struct {
	// Field is what is wrong: ttl, claims[2].key, urls[0].
	Field, Detail string
}

func (e *InvalidError) Error() string { return "ringfence: " + e.Field + ": " + e.Detail }

// A HolderView is a live lease that is in the way of an acquire.
type HolderView struct {
	Key   string
	Token uint64
	// Label is what its holder chose, if anything.
	Label     string
	Mode      string
	ExpiresIn time.Duration
}

// A HeldError says that a key was not free, and that the acquire did not wait.
type HeldError struct {
	// Holders are some of the leases in the way; none if only earlier waiters are, or if the caller may not read the keys.
	Holders []HolderView
	// Waiters is the number of waiters in the longest of the queues.
	Waiters int
}

func (e *HeldError) Error() string {
	switch {
	case len(e.Holders) > 0:
		first := e.Holders[0]
		by := ""
		if first.Label != "" {
			// Another client chose it: it must not reach terminals and logs unescaped.
			by = " by " + strconv.Quote(first.Label)
		}
		return fmt.Sprintf("ringfence: %q is held%s with token %d", first.Key, by, first.Token)
	case e.Waiters > 0:
		return fmt.Sprintf("ringfence: %d earlier waiters come first", e.Waiters)
	default:
		return "ringfence: another lease holds a key"
	}
}

// A TimedOutError says that something was not done in time. What it may have done is given back in the background.
type TimedOutError struct {
	// Reason is "wait" if the time in the queue was over, and "timeout" if the context's deadline was: then it is a [context.DeadlineExceeded].
	Reason string
}

func (e *TimedOutError) Error() string {
	if e.Reason == "wait" {
		return "ringfence: it was not granted within the time to wait"
	}
	return "ringfence: the call did not end before the deadline of its context"
}

// Is makes one whose context was over a [context.DeadlineExceeded].
func (e *TimedOutError) Is(target error) bool {
	return e.Reason == "timeout" && target == context.DeadlineExceeded
}

// A LostError says that the lease has ended, or may have.
type LostError struct {
	Reason LossReason
}

func (e *LostError) Error() string { return "ringfence: the lease is lost: " + losses[e.Reason] }

// An UnavailableError says that no node was reachable, or none found a leader, for as long as the client retries. Nothing was done.
type UnavailableError struct {
	Why string
}

func (e *UnavailableError) Error() string { return "ringfence: the cluster is not available: " + e.Why }

// An UnknownError says that something may or may not have been done: no repeat was answered for as long as the client retries. After an acquire or
// a release, the lease is being released in the background; if that fails, too, it ends with its time-to-live.
type UnknownError struct {
	Why string
	// LeaseID says which lease. Whoever knows it can renew and release it: keep it out of logs.
	LeaseID string
}

func (e *UnknownError) Error() string { return "ringfence: the outcome is unknown: " + e.Why }

// A RejectedError says that the cluster refused the call. Nothing was done.
type RejectedError struct {
	Problem Problem
	// RetryAfter is how long to wait before the next try, if the node said so.
	RetryAfter time.Duration
}

func (e *RejectedError) Error() string { return "ringfence: " + e.Problem.Detail }

// An UnauthorizedError says that the credential is not valid, or does not give the right to do this. Nothing was done.
type UnauthorizedError struct {
	Problem Problem
}

func (e *UnauthorizedError) Error() string { return "ringfence: " + e.Problem.Detail }

// A StaleError is for guards: the storage has seen a newer token than that of this holder, who must stop.
type StaleError struct {
	Detail string
	// Err is the storage's own error, if it has one.
	Err error
}

func (e *StaleError) Error() string { return "ringfence: stale: " + e.Detail }

func (e *StaleError) Unwrap() error { return e.Err }

// A LeftError says what was not released when a client was closed. It ends with its time-to-live.
type LeftError struct {
	// Leases are the keys of each, as far as they are known.
	Leases [][]string
}

func (e *LeftError) Error() string {
	return "ringfence: not released when the client was closed: " + quoted(slicesOf(e.Leases))
}

func slicesOf(leases [][]string) []string {
	var all []string
	for _, keys := range leases {
		all = append(all, keys...)
	}
	return all
}

// quoted names keys, which somebody else may have chosen: no control character reaches a terminal.
func quoted(keys []string) string {
	var shown []string
	for _, key := range keys[:min(len(keys), 3)] {
		shown = append(shown, strconv.Quote(key))
	}
	text := strings.Join(shown, ", ")
	if len(keys) > 3 {
		text += fmt.Sprintf(" and %d more", len(keys)-3)
	}
	return text
}

// lossIn is the reason, if err is a LostError. What it wraps is nothing that the cluster said of this lease: the cause of the caller's context may be the
// loss of another one.
func lossIn(err error) LossReason {
	if lost, isLost := err.(*LostError); isLost {
		return lost.Reason
	}
	return ""
}

// ended is the error of a call whose context has ended.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	switch {
	// Nothing but the end of the client ends a request for which somebody waits.
	case cause == errEnds || cause == nil:
		return ErrClosed
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &TimedOutError{Reason: "timeout"}
	case cause == context.Canceled:
		return cause
	default:
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
}
