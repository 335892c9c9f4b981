package ringfence

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// connectLimit is how long connecting may take, and with TLS the handshake as long again.
	connectLimit = time.Second
	// stagger is how long the next address waits for the one before it.
	stagger = 250 * time.Millisecond
	// freshLookup is how long addresses are used without another lookup.
	freshLookup = time.Second
	// retransmitted is how long the kernel repeats what is not acknowledged.
	retransmitted = 2 * time.Second
)

// A target is a host by its name. A name server may be slow, or hang, and a name may have addresses that lead nowhere. So a lookup is apart from
// connecting: it goes on when its caller gives up, at most one per name, and the last good addresses are used at once while another lookup renews
// them. All addresses are tried, 250 ms apart, without giving up the earlier ones (RFC 8305), the one that was of use last first.
type target struct {
	host, port string
	// ends is the client's end.
	ends   context.Context
	dialer net.Dialer

	mu         sync.Mutex
	addresses  []string
	lookedUp   time.Time
	lookup     *lookup
	last       string
	distrusted map[string]bool
}

// A lookup that is under way, or over: then done is closed.
type lookup struct {
	done chan struct{}
	err  error
}

func newTarget(ends context.Context, host, port string) *target {
	t := &target{host: host, port: port, ends: ends, distrusted: make(map[string]bool)}
	if net.ParseIP(host) != nil {
		t.addresses = []string{host}
	}
	t.dialer = net.Dialer{
		// A machine that vanishes closes no connection.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2},
		Control: func(_, _ string, raw syscall.RawConn) error {
			// Without it, an abandoned connection is still reset.
			return raw.Control(func(fd uintptr) { _ = limitRetransmission(fd) })
		},
	}
	return t
}

// isResolved says whether a connection needs no lookup first.
func (t *target) isResolved() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.addresses) > 0
}

// resolve begins a lookup of the name, unless one is under way or its addresses are fresh. It returns what to wait for, or nil.
func (t *target) resolve() *lookup {
	t.mu.Lock()
	defer t.mu.Unlock()
	if net.ParseIP(t.host) != nil || (!t.lookedUp.IsZero() && time.Since(t.lookedUp) < freshLookup) {
		return nil
	}
	if t.lookup == nil {
		t.lookup = &lookup{done: make(chan struct{})}
		go t.look(t.lookup)
	}
	return t.lookup
}

func (t *target) look(own *lookup) {
	found, err := net.DefaultResolver.LookupHost(t.ends, t.host)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil && len(found) > 0 {
		t.lookedUp, t.addresses = time.Now(), found
	}
	if len(t.addresses) == 0 {
		own.err = fmt.Errorf("%s was not resolved: %w", t.host, errors.Join(err))
	}
	t.lookup = nil
	close(own.done)
}

// distrust notes that the last connection brought nothing: other addresses are tried first next time, as the process at its address may hang.
func (t *target) distrust() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last != "" {
		t.distrusted[t.last] = true
		t.last = ""
	}
	if !slices.ContainsFunc(t.addresses, func(address string) bool { return !t.distrusted[address] }) {
		clear(t.distrusted)
	}
}

func (t *target) ranked() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	rank := func(address string) int {
		switch {
		case address == t.last:
			return 0
		case t.distrusted[address]:
			return 2
		default:
			return 1
		}
	}
	addresses := slices.Clone(t.addresses)
	slices.SortStableFunc(addresses, func(a, b string) int { return rank(a) - rank(b) })
	return addresses
}

// connect connects to the first address that accepts.
func (t *target) connect(ctx context.Context) (net.Conn, error) {
	// It ends whenever it ends, for the next connection.
	t.resolve()
	addresses := t.ranked()
	if len(addresses) == 0 {
		return nil, fmt.Errorf("%s is not resolved yet", t.host)
	}
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	conn, address, err := t.race(ctx, addresses)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.last = address
	t.mu.Unlock()
	if tcp, isTCP := conn.(*net.TCPConn); isTCP {
		// What is abandoned is reset, which takes back what the kernel has not delivered.
		_ = tcp.SetLinger(0)
	}
	return conn, nil
}

func (t *target) race(ctx context.Context, addresses []string) (net.Conn, string, error) {
	type attempt struct {
		conn    net.Conn
		address string
		err     error
	}
	results := make(chan attempt, len(addresses))
	next, pending := 0, 0
	begin := func() {
		if next < len(addresses) {
			address := addresses[next]
			next++
			pending++
			go func() {
				conn, err := t.dialer.DialContext(ctx, "tcp", net.JoinHostPort(address, t.port))
				results <- attempt{conn, address, err}
			}()
		}
	}
	begin()
	ticks := time.NewTicker(stagger)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			begin()
		case got := <-results:
			pending--
			if got.err == nil {
				// They end with the context.
				go func(losers int) {
					for range losers {
						if loser := <-results; loser.err == nil {
							_ = loser.conn.Close()
						}
					}
				}(pending)
				return got.conn, got.address, nil
			}
			begin()
			if pending == 0 {
				return nil, "", got.err
			}
		}
	}
}
