package ringfence

import "context"

// An adoption is of one lease, by the calls that are under way for it.
//
// The lease moves from handle to handle in one step, once a call is confirmed. Until then whatever has it is responsible for it. Of several calls, the one
// that asked last has it at the end, of those that are confirmed. A release that begins meanwhile is later than all that have asked.
type adoption struct {
	calls int
	// last is the number of the last call that was confirmed: it, and those that asked before, come too late from then on.
	last uint64
	// over is closed once none is under way.
	over chan struct{}
}

// adopt renews a lease, and keeps it, unless it is being released.
func (c *core) adopt(ctx context.Context, wanted *wanted) (*Lease, error) {
	over, err := c.ask(wanted)
	if err != nil {
		return nil, err
	}
	defer over()
	adopted, err := c.renew(ctx, wanted.leaseID, 0, false)
	if err != nil {
		return nil, err
	}
	// It may have ended while this answer was on its way, and whatever has it may have renewed it since.
	if c.clock().reached(adopted.until()) {
		return nil, &LostError{Unconfirmed}
	}
	return c.hold(ctx, adopted, wanted)
}

// ask begins a call that adopts a lease, unless that is being released. The returned function says that it is over.
func (c *core) ask(wanted *wanted) (func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for one := range c.works {
		if one.leaseID == wanted.leaseID {
			return nil, &LostError{Released}
		}
	}
	own := c.adoptions[wanted.leaseID]
	if own == nil {
		own = &adoption{over: make(chan struct{})}
		c.adoptions[wanted.leaseID] = own
	}
	own.calls++
	c.asked++
	wanted.asked = c.asked
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if own.calls--; own.calls == 0 {
			delete(c.adoptions, wanted.leaseID)
			close(own.over)
		}
	}, nil
}

// awaitAdoption waits until nobody is about to adopt this lease.
func (c *core) awaitAdoption(leaseID string) {
	c.mu.Lock()
	own := c.adoptions[leaseID]
	c.mu.Unlock()
	if own != nil {
		<-own.over
	}
}
