package ringfence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// warnInterval is how often to warn of acquires that wait, and mostViews of how many keys a warning says who holds them.
	warnInterval = 10 * time.Second
	mostViews    = 3
)

// A core is what a client and its leases share. It does not refer to handles.
type core struct {
	nodes  *nodes
	clock  Clock
	tell   *teller
	keeper *keeper
	// ends is cancelled at the end of the client.
	ends context.Context
	end  context.CancelCauseFunc
	// goroutines are those that the end of the client waits for. Each ends soon after ends does.
	goroutines sync.WaitGroup

	mu    sync.Mutex
	calls map[*call]struct{}
	// leases have what has each by its id; also of what was left to its id, until that is lost.
	leases map[string]*release
	works  map[*work]struct{}
	// adoptions are of the leases that calls are about to adopt, and asked is how many calls ever were.
	adoptions map[string]*adoption
	asked     uint64
	// failed are the leases that were not released while the client was being closed, with their keys.
	failed    map[string][]string
	isClosing bool
	isOver    bool
	closed    chan struct{}
	closedErr error
	// warnedAt is when it warned of an acquire that waits.
	warnedAt time.Time
}

// A call is one that is under way.
type call struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// A work gives back a lease in the background. Until the last of a lease is over, nobody else may have that.
type work struct {
	leaseID string
	keys    []string
	// done is nil if the end of the client does not wait for it.
	done chan struct{}
}

// call begins a call of the user. It ends with its context, or when the client is closed. The returned function says that it is over.
func (c *core) call(ctx context.Context) (context.Context, func(), error) {
	if ctx.Err() != nil {
		return nil, nil, ended(ctx)
	}
	// Not under the mutex: these call methods of the context, which may be of the user.
	ctx, cancel := context.WithCancelCause(ctx)
	own := &call{cancel, make(chan struct{})}
	if !c.begins(own) {
		cancel(nil)
		return nil, nil, ErrClosed
	}
	return ctx, func() {
		cancel(nil)
		close(own.done)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.calls, own)
	}, nil
}

// begins reports whether a call may begin, and keeps it until its end.
func (c *core) begins(own *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosing {
		c.calls[own] = struct{}{}
	}
	return !c.isClosing
}

// spawn starts a goroutine that ends soon after the client does, unless that has ended.
func (c *core) spawn(run func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isOver {
		return false
	}
	c.goroutines.Add(1)
	go func() {
		defer c.goroutines.Done()
		run()
	}()
	return true
}

// background does work that gives back a lease, and that the client waits for when it is closed.
func (c *core) background(leaseID string, keys []string, do func() error) {
	own := &work{leaseID, keys, make(chan struct{})}
	c.mu.Lock()
	c.enlist(own)
	c.mu.Unlock()
	c.start(own, do)
}

// enlist lets work be found from now on. The lock is held.
func (c *core) enlist(own *work) {
	c.works[own] = struct{}{}
	if one := c.adoptions[own.leaseID]; one != nil {
		one.last = c.asked
	}
}

func (c *core) start(own *work, do func() error) {
	isBegun := c.spawn(func() {
		err := do()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.works, own)
		if err == nil {
			delete(c.failed, own.leaseID)
		} else if c.isClosing && lossIn(err) == "" {
			c.failed[own.leaseID] = own.keys
		}
		close(own.done)
	})
	if !isBegun {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.works, own)
		c.failed[own.leaseID] = own.keys
		close(own.done)
	}
}

// after gives back a lease later, unless the client ends before.
func (c *core) after(d time.Duration, leaseID string, keys []string) {
	own := &work{leaseID: leaseID}
	c.mu.Lock()
	c.enlist(own)
	c.mu.Unlock()
	c.spawn(func() {
		if sleep(c.ends, d) == nil {
			c.releaseInBackground(leaseID, keys)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.works, own)
	})
}

// hold keeps a lease that was granted. It is released at once if the client is being closed. If it was adopted, it moves here from whatever had it, unless
// that was too late.
func (c *core) hold(ctx context.Context, granted confirmation, wanted *wanted) (*Lease, error) {
	held := newHeld(newLifetime(granted, wanted.renews, wanted.maxHold), c.clock, c.tell)
	// A clock that is late would let HoldAtLeast be over early.
	known := granted.sent.after(c.clock().sinceAtMost(granted.sent))
	own := &release{core: c, held: held, granted: known, holdAtLeast: wanted.holdAtLeast}
	c.keeper.add(held)
	c.mu.Lock()
	isClosing, old, adoption := c.isClosing, c.leases[held.leaseID], c.adoptions[held.leaseID]
	isLate := adoption != nil && wanted.asked <= adoption.last
	if !isLate {
		c.leases[held.leaseID] = own
		if adoption != nil {
			adoption.last = wanted.asked
		}
		if old != nil {
			old.how = isAdopted
		}
	}
	c.mu.Unlock()
	if isLate {
		c.keeper.remove(held)
		return nil, &LostError{Released}
	}
	if old != nil {
		// This handle may release it at any time, and nobody would tell the other.
		old.held.lose(Unconfirmed, c.clock())
	}
	if isClosing {
		own.begin(isTaken)
		return nil, ErrClosed
	}
	return newLease(own, ctx), nil
}

func (c *core) forget(own *release) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leases[own.held.leaseID] == own {
		delete(c.leases, own.held.leaseID)
	}
}

// renew renews a lease by its id; for its own time-to-live if ttl is 0.
func (c *core) renew(ctx context.Context, leaseID string, ttl time.Duration, isHeld bool) (confirmation, error) {
	type body struct {
		LeaseID string `json:"lease_id,omitempty"`
		TTL     int64  `json:"ttl_ms,omitempty"`
	}
	ms := ttl.Milliseconds()
	asked := &request{
		method: http.MethodPost, path: "/v1/leases/" + leaseID + "/renew",
		body: encode(body{TTL: ms}), operation: encode(map[string]any{"renew": body{leaseID, ms}}),
	}
	var renewed grant
	answered, err := newAttempts(c.nodes).call(ctx, asked, leaseID, retryLimit, isHeld, func(answered *response) (err error) {
		renewed, err = readGrant(answered.body, leaseID)
		return err
	})
	if err != nil {
		return confirmation{}, err
	}
	return confirmation{renewed, answered.sent}, nil
}

// release releases a lease, or leaves the queue. It also succeeds if there is no such lease.
func (c *core) release(ctx context.Context, leaseID string, retry time.Duration) error {
	asked := &request{
		method: http.MethodDelete, path: "/v1/leases/" + leaseID,
		operation: encode(map[string]any{"release": map[string]string{"lease_id": leaseID}}),
	}
	_, err := newAttempts(c.nodes).call(ctx, asked, leaseID, retry, true, func(answered *response) error {
		if answered.status != http.StatusNoContent {
			return errors.New("it is no response to a release")
		}
		return nil
	})
	return err
}

// releaseInBackground releases a lease, best effort, with nobody to tell.
func (c *core) releaseInBackground(leaseID string, keys []string) {
	c.background(leaseID, keys, func() error { return c.release(c.ends, leaseID, backgroundLimit) })
}

// view is who has a key.
func (c *core) view(ctx context.Context, key string) (holders []holding, err error) {
	tries := newAttempts(c.nodes)
	tries.onlyReads = true
	path := "/v1/keys/" + strings.ReplaceAll(url.PathEscape(key), "%2F", "/")
	_, err = tries.call(ctx, &request{method: http.MethodGet, path: path}, "", retryLimit, false, func(answered *response) (err error) {
		holders, err = readKey(answered.body, key)
		return err
	})
	return holders, err
}

// waitsLong warns of an acquire that has waited for long, and says for whom: perhaps for this very client.
func (c *core) waitsLong(keys []string) {
	own := make(map[uint64]bool)
	isForItself := false
	c.mu.Lock()
	for _, one := range c.leases {
		if one.how != stays {
			continue
		}
		own[one.held.grant().token] = true
		for _, key := range one.held.keys() {
			isForItself = isForItself || slices.Contains(keys, key)
		}
	}
	// One of many that wait is enough, unless it waits for ever.
	isTold := !isForItself && !c.warnedAt.IsZero() && time.Since(c.warnedAt) < warnInterval
	if !isTold {
		c.warnedAt = time.Now()
	}
	c.mu.Unlock()
	if isTold {
		return
	}
	c.spawn(func() {
		text := fmt.Sprintf("an acquire has waited for %v for %s", long, quoted(keys))
		for _, key := range keys[:min(len(keys), mostViews)] {
			// If it may not read the key, that is of no consequence.
			holders, err := c.view(c.ends, key)
			if err != nil || len(holders) == 0 {
				continue
			}
			text += fmt.Sprintf("; %q is held", key)
			if holders[0].label != "" {
				text += fmt.Sprintf(" by %q", holders[0].label)
			}
			text += fmt.Sprintf(" with token %d", holders[0].token)
			if own[holders[0].token] {
				text += ", which this client itself holds"
			}
		}
		c.tell.warn(WarnQueue, text)
	})
}

// close ends the client, once: a repeat waits for the same result.
func (c *core) close(ctx context.Context) error {
	c.mu.Lock()
	if c.isClosing {
		c.mu.Unlock()
		select {
		case <-c.closed:
			return c.closedErr
		case <-ctx.Done():
			return ended(ctx)
		}
	}
	c.isClosing = true
	calls, leases := slices.Collect(maps.Keys(c.calls)), slices.Collect(maps.Values(c.leases))
	c.mu.Unlock()
	for _, one := range calls {
		one.cancel(errEnds)
	}
	for _, one := range leases {
		one.begin(isTaken)
	}
	c.settle(ctx)
	c.mu.Lock()
	c.isOver = true
	c.mu.Unlock()
	c.end(errEnds)
	c.keeper.clear()
	// Nothing that is left waits for the cluster any more. What it does not release is among what failed.
	c.settle(context.Background())
	c.goroutines.Wait()
	c.nodes.end()
	c.mu.Lock()
	left := slices.Collect(maps.Values(c.failed))
	c.mu.Unlock()
	if len(left) > 0 {
		c.closedErr = &LeftError{left}
		c.tell.warnNow(WarnClose, "not released when the client was closed: "+quoted(slicesOf(left)))
	}
	c.tell.settle(ctx)
	close(c.closed)
	return c.closedErr
}

// settle waits until all calls, and all work in the background, are over.
func (c *core) settle(ctx context.Context) {
	for {
		var over []chan struct{}
		c.mu.Lock()
		for one := range c.calls {
			over = append(over, one.done)
		}
		for one := range c.works {
			if one.done != nil {
				over = append(over, one.done)
			}
		}
		c.mu.Unlock()
		if len(over) == 0 {
			return
		}
		for _, done := range over {
			select {
			case <-done:
			case <-ctx.Done():
				return
			}
		}
	}
}
