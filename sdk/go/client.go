// Package ringfence acquires leases of a Ringfence cluster, renews them, and tells the work in time that one is lost.
//
//	client, err := ringfence.New([]string{"http://localhost:7401", "http://localhost:7402", "http://localhost:7403"})
//	…
//	err = client.Do(ctx, "accounts/42", func(ctx context.Context, lease *ringfence.Lease) error {
//		return write(ctx, lease.Token()) // the storage rejects a token that is too small
//	})
//
// The README says what happens when. The package has no dependencies.
package ringfence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime"
	"time"
)

const (
	// closeLimit is how long Close waits if its context has no deadline.
	closeLimit = 5 * time.Second
	// campaignPause is how long a campaign that failed waits.
	campaignPause = time.Second
)

// Work is done under a lease. Its context ends with the caller's, and is cancelled when the lease is lost: stop then.
type Work func(ctx context.Context, lease *Lease) error

// A Client is one of a cluster. All leases of a client share its connections and its renewals: make one per process. Any goroutine may use it.
type Client struct {
	core *core
}

// New makes a client of the nodes at these URLs, https://host:port or http://host:port. Some of them are enough. It sends nothing: the first call shows
// whether the cluster is reachable. The error is an [InvalidError].
func New(urls []string, options ...ClientOption) (*Client, error) {
	given := &settings{logger: slog.Default(), clock: SystemClock}
	for _, option := range options {
		if option == nil {
			return nil, &InvalidError{"options", "one is nil"}
		}
		option(given)
	}
	if given.logger == nil || given.clock == nil {
		return nil, &InvalidError{"options", "the logger or the clock is nil"}
	}
	tell := newTeller(given.hooks, given.logger)
	files, err := given.files(urls, tell)
	if err != nil {
		return nil, err
	}
	c := &core{
		clock: given.clock, tell: tell, closed: make(chan struct{}),
		calls: make(map[*call]struct{}), leases: make(map[string]*release), works: make(map[*work]struct{}),
		adoptions: make(map[string]*adoption), failed: make(map[string][]string),
	}
	c.ends, c.end = context.WithCancelCause(context.Background())
	c.keeper = newKeeper(c)
	if c.nodes, err = newNodes(c.ends, urls, files, given.credential, given.clock); err != nil {
		c.end(nil)
		return nil, err
	}
	return &Client{c}, nil
}

// Acquire acquires a key: it waits its turn, first come first served, through changes of the leader.
//
//	lease, err := client.Acquire(ctx, "accounts/42")
//	…
//	defer lease.Release(ctx) // until then, the lease is kept
//
// If the context ends, the place in the queue, or the grant, is given back in the background. It does not touch a lease that was granted.
func (c *Client) Acquire(ctx context.Context, key string, options ...Option) (*Lease, error) {
	return c.parseAndAcquire(ctx, []Claim{{Key: key}}, fieldOfOne, options)
}

// AcquireAll acquires several keys: all of them are granted in one step, or none.
func (c *Client) AcquireAll(ctx context.Context, claims []Claim, options ...Option) (*Lease, error) {
	return c.parseAndAcquire(ctx, claims, fieldOfClaim, options)
}

// TryAcquire acquires a key if it is free. Otherwise the error is a [HeldError], as it is after Wait(0).
func (c *Client) TryAcquire(ctx context.Context, key string, options ...Option) (*Lease, error) {
	return c.Acquire(ctx, key, append(options[:len(options):len(options)], Wait(0))...)
}

// Do acquires a key, works, and releases once the work has ended. It returns the error of the work as it is. If the work succeeded, but the lease was
// lost meanwhile, the error is a [LostError]: somebody else may have worked at the same time. If the work panics, the lease is released, too.
func (c *Client) Do(ctx context.Context, key string, work Work, options ...Option) error {
	return c.do(ctx, []Claim{{Key: key}}, fieldOfOne, work, options)
}

// DoAll is Do with several keys.
func (c *Client) DoAll(ctx context.Context, claims []Claim, work Work, options ...Option) error {
	return c.do(ctx, claims, fieldOfClaim, work, options)
}

// Lead campaigns for the key, and works while it holds it. If it is lost, the context of the work is cancelled; once the work has ended, it campaigns
// again, whatever the work returned then, and also after a [StaleError], which is the storage's word that the lease is lost. Otherwise it returns
// what the work returns. During an outage it goes on campaigning. It ends with its context, once the work has ended, and has released then.
func (c *Client) Lead(ctx context.Context, key string, work Work, options ...Option) error {
	candidate := func(w *wanted) { w.isCandidate = true }
	wanted, err := parse([]Claim{{Key: key}}, fieldOfOne, append(options[:len(options):len(options)], candidate))
	if err != nil {
		return err
	}
	report := func(what string, err error) {
		if told := wanted.onError; told != nil {
			told(err)
		} else {
			c.core.tell.warn(WarnLead, fmt.Sprintf("%s: %v", what, err))
		}
	}
	for {
		lease, err := c.acquire(ctx, wanted)
		if err != nil {
			if !isPassing(err) {
				return err
			}
			report("a campaign failed for now", err)
			if err := c.pause(ctx); err != nil {
				return err
			}
			continue
		}
		released, err := under(ctx, lease, work)
		if err == nil {
			return nil
		}
		own, loss := lease.release, lossIn(released)
		if lost := (*LostError)(nil); own.wasTaken() && errors.As(err, &lost) {
			return ErrClosed
		}
		stale := (*StaleError)(nil)
		isStale := errors.As(err, &stale)
		if !(isStale || loss != "") || own.wasTaken() || ctx.Err() != nil {
			return err
		}
		report("the lease of a leader was lost", err)
		if loss == "" {
			// Nobody else has to be the reason: the numbers of the storage may be those of another cluster.
			if err := c.pause(ctx); err != nil {
				return err
			}
		}
	}
}

// Adopt takes over a lease by the id that Detach left, perhaps in another process: it renews it once, and from then on as if it had been acquired here,
// with MaxHold, HoldAtLeast and NoRenew of the options. Nobody else may renew or release it. For other handles of this client it is lost once that has
// succeeded; if it fails, nothing has changed for them. A [LostError] says that it has ended, that this client is releasing it, or that a later call has it.
func (c *Client) Adopt(ctx context.Context, leaseID string, options ...Option) (*Lease, error) {
	if !uuid.MatchString(leaseID) {
		return nil, &InvalidError{"lease-id", "is no UUID in small letters"}
	}
	wanted, err := parse([]Claim{{Key: "adopted"}}, fieldOfOne, options)
	if err != nil {
		return nil, err
	}
	if wanted.hasTTL || wanted.hasWait || wanted.isShared || wanted.holder != "" || wanted.metadata != nil {
		return nil, &InvalidError{"options", "a lease that is adopted has its own: MaxHold, HoldAtLeast and NoRenew are of its handle"}
	}
	ctx, done, err := c.core.call(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	wanted.leaseID = leaseID
	return c.core.adopt(ctx, wanted)
}

// Locked says whether anybody holds the key now. To be sure that nobody has it later, acquire it. It needs the right to read the key.
func (c *Client) Locked(ctx context.Context, key string) (bool, error) {
	if err := checkKey(key, "key"); err != nil {
		return false, err
	}
	ctx, done, err := c.core.call(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	holders, err := c.core.view(ctx, key)
	return len(holders) > 0, err
}

// Close ends the client: it cancels the calls that are under way, tells the work under its leases, releases them, and waits for that, and for what is
// given back in the background, until the context ends; for 5 s if that has no deadline, and for 1 s if it has ended already. What is left then, a
// [LeftError] names. Nothing releases it any more: it ends with its time-to-live. A repeat has the same result.
func (c *Client) Close(ctx context.Context) error {
	ctx, cancel := lasting(ctx)
	defer cancel()
	if _, isBounded := ctx.Deadline(); !isBounded {
		ctx, cancel = context.WithTimeout(ctx, closeLimit)
		defer cancel()
	}
	return c.core.close(ctx)
}

func fieldOfOne(int) string { return "key" }

func fieldOfClaim(i int) string { return fmt.Sprintf("claims[%d].key", i) }

func (c *Client) parseAndAcquire(ctx context.Context, claims []Claim, field func(int) string, options []Option) (*Lease, error) {
	wanted, err := parse(claims, field, options)
	if err != nil {
		return nil, err
	}
	return c.acquire(ctx, wanted)
}

func (c *Client) acquire(ctx context.Context, wanted *wanted) (*Lease, error) {
	begun := time.Now()
	called, done, err := c.core.call(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	granted, err := c.core.acquire(called, wanted)
	if err != nil {
		return nil, err
	}
	c.core.tell.granted(LeaseView{granted.grant.names(), granted.grant.token}, time.Since(begun))
	return c.core.hold(ctx, granted, wanted)
}

func (c *Client) do(ctx context.Context, claims []Claim, field func(int) string, work Work, options []Option) error {
	lease, err := c.parseAndAcquire(ctx, claims, field, options)
	if err != nil {
		return err
	}
	_, err = under(ctx, lease, work)
	return err
}

func (c *Client) pause(ctx context.Context) error {
	ctx, done, err := c.core.call(ctx)
	if err != nil {
		return err
	}
	defer done()
	if sleep(ctx, campaignPause/2+rand.N(campaignPause)) != nil {
		return ended(ctx)
	}
	return nil
}

// isPassing says whether another campaign may succeed. The lease may have been revoked, or have ended, before the client knew of it.
func isPassing(err error) bool {
	switch err := err.(type) {
	case *UnavailableError, *UnknownError, *LostError:
		return true
	case *RejectedError:
		return err.Problem.Status == http.StatusTooManyRequests
	default:
		return false
	}
}

// under works under a lease, and releases it once the work has ended. It returns what the release came to, and what both did.
func under(ctx context.Context, lease *Lease, work Work) (released, err error) {
	own := lease.release
	// It is the caller's, whatever that is, and told of the loss.
	working, cancel := context.WithCancelCause(ctx)
	lost := own.held.ended
	stop := context.AfterFunc(lost, func() { cancel(context.Cause(lost)) })
	hasEnded := false
	defer func() {
		stop()
		cancel(nil)
		released = own.end(ctx)
		// Until here nobody has dropped it.
		runtime.KeepAlive(lease)
		switch {
		case !hasEnded || err != nil:
			// Nothing hides an error, or a panic, of the work.
		case own.wasTaken():
			// By Close, under the work.
			err = &LostError{Released}
		case lossIn(released) != "":
			err = released
		}
		// A release without a definite outcome goes on in the background.
	}()
	err = work(working, lease)
	hasEnded = true
	return nil, err
}
