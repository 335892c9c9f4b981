// Package ringfencetest has a cluster in the memory of this process, for tests of programs that use package ringfence: no other program is needed.
//
//	func TestTwoNeverWorkAtOnce(t *testing.T) {
//		cluster := ringfencetest.Start(t)
//		lease, err := cluster.Client().Acquire(t.Context(), "a")
//		…
//		cluster.Advance(20 * time.Second)
//		// lease.State() is ringfence.Lost
//	}
//
// It answers on a port of the loopback interface as a node does, so the whole client runs, with all that it does in an outage. Not in it: rights,
// limits of rate, watches, and the administration of a cluster.
package ringfencetest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	ringfence "ringfence.dev/sdk/go"
)

// A Cluster is one of one node, in memory.
type Cluster struct {
	server *httptest.Server
	id     string
	// ends is cancelled with the cluster, so that what is silent ends.
	ends context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	table   *table
	jumped  time.Duration
	away    away
	timer   *time.Timer
	clients []*ringfence.Client
}

type away int

const (
	isBack away = iota
	refuses
	isSilent
)

// Start starts a cluster, which ends with the test, after the clients that it made.
func Start(tb testing.TB) *Cluster {
	c := New()
	tb.Cleanup(c.Close)
	return c
}

// New starts a cluster, until Close.
func New() *Cluster {
	c := &Cluster{table: newTable(), id: fmt.Sprintf("%08x-0000-4000-8000-%012x", rand.Uint32(), rand.Uint64()>>16)}
	c.ends, c.end = context.WithCancel(context.Background())
	c.timer = time.AfterFunc(never, c.run)
	c.server = httptest.NewServer(c)
	return c
}

// URL is where it answers. A client that is made with this alone does not see Advance.
func (c *Cluster) URL() string { return c.server.URL }

// Client is one more client, on the clock of the cluster. It is closed with the cluster. It panics if the options are invalid.
func (c *Cluster) Client(options ...ringfence.ClientOption) *ringfence.Client {
	options = append(options[:len(options):len(options)], ringfence.WithClock(c.clock))
	client, err := ringfence.New([]string{c.URL()}, options...)
	if err != nil {
		panic(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = append(c.clients, client)
	return client
}

// Holders are the tokens of the leases that hold a key, the oldest first.
func (c *Cluster) Holders(key string) []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runLocked()
	var tokens []uint64
	for _, one := range c.table.holders(key) {
		tokens = append(tokens, one.token)
	}
	return tokens
}

// Waiters is how many wait for a key.
func (c *Cluster) Waiters(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runLocked()
	return len(c.table.locks[key]) - len(c.table.holders(key))
}

// Revoke ends the leases that hold a key, as an operator does. Their holders learn of it with their next renewals, after a third of their time.
func (c *Cluster) Revoke(key string) { c.endAll(key, "revoked") }

// Expire ends the leases that hold a key as if their time was over here, and not yet there. Their holders learn of it with their next renewals.
func (c *Cluster) Expire(key string) { c.endAll(key, "expired") }

// Advance moves the time of leases, in the cluster and in its clients, as if this process had stood still for so long. States are right at once, and
// contexts within a second. Waits, deadlines and repeats take real time.
func (c *Cluster) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jumped += d
	c.runLocked()
}

// Away takes the cluster away: it refuses everything, as one without a leader does.
func (c *Cluster) Away() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = refuses
	c.table.letGo()
}

// Silent takes the cluster away: it answers nothing, as one whose network has failed.
func (c *Cluster) Silent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = isSilent
}

// Back brings it back, with all leases that have not ended meanwhile.
func (c *Cluster) Back() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = isBack
}

// Close ends it, and the clients that it made.
func (c *Cluster) Close() {
	c.mu.Lock()
	clients := c.clients
	isAway := c.away != isBack
	c.mu.Unlock()
	ctx := context.Background()
	if isAway {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
	}
	for _, client := range clients {
		// What is left of its leases ends with the cluster.
		_ = client.Close(ctx)
	}
	c.end()
	c.timer.Stop()
	c.server.CloseClientConnections()
	c.server.Close()
}

func (c *Cluster) clock() ringfence.Moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := ringfence.SystemClock()
	return ringfence.Moment{Boot: now.Boot + c.jumped, Raw: now.Raw + c.jumped}
}

func (c *Cluster) endAll(key, how string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runLocked()
	for _, one := range c.table.holders(key) {
		c.table.end(one, how)
	}
	c.runLocked()
}

func (c *Cluster) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runLocked()
}

// runLocked does what is due, and comes back when more is.
func (c *Cluster) runLocked() {
	now := ringfence.SystemClock().Boot + c.jumped
	c.table.run(now)
	c.timer.Reset(max(c.table.due()-now, time.Millisecond))
}

func (c *Cluster) isAway() away {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.away
}

// ServeHTTP answers as a node does.
func (c *Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := c.answer(r)
	if c.isAway() == isSilent {
		select {
		case <-r.Context().Done():
		case <-c.ends.Done():
		}
		return
	}
	w.Header().Set("Ringfence-Cluster", c.id)
	w.Header().Set("Content-Type", "application/json")
	if answer.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	var body []byte
	if answer.body != nil {
		var err error
		if body, err = json.Marshal(answer.body); err != nil {
			panic("strings, numbers and maps of them are JSON: " + err.Error())
		}
		// As nodes do: the server would send a long body in chunks.
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	}
	w.WriteHeader(answer.status)
	_, _ = w.Write(body)
}

func (c *Cluster) answer(r *http.Request) reply {
	switch {
	case c.isAway() == isSilent:
		return reply{}
	case r.URL.Path == "/livez" || r.URL.Path == "/readyz":
		return reply{200, object{"status": "live"}}
	case c.isAway() == refuses:
		return problem("unavailable", 503, "no leader accepted the request in time: it was not done", nil)
	}
	var body struct {
		wanted
		revoked
		LeaseIDs   []string    `json:"lease_ids"`
		Operations []operation `json:"operations"`
	}
	if r.ContentLength > 0 {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return problem("invalid-request", 400, err.Error(), nil)
		}
	}
	if r.Method == http.MethodPut {
		body.LeaseID = strings.TrimPrefix(r.URL.Path, "/v1/leases/")
		return c.put(r.Context(), body.wanted)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runLocked()
	// What is due may have changed.
	defer c.runLocked()
	id, isRenewal := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/v1/leases/"), "/renew")
	key, isKey := strings.CutPrefix(r.URL.EscapedPath(), "/v1/keys/")
	switch {
	case r.Method == http.MethodDelete:
		return c.table.release(id)
	case r.URL.Path == "/v1/renew":
		return all(body.LeaseIDs, func(id string) reply { return c.table.renew(id, 0) })
	case isRenewal:
		return c.table.renew(id, body.TTL)
	case r.URL.Path == "/v1/batch":
		return all(body.Operations, c.operate)
	case r.URL.Path == "/v1/revoke":
		return c.table.revoke(body.revoked)
	case r.URL.Path == "/v1/keys":
		return reply{200, object{"keys": c.table.keys(r.URL.Query().Get("prefix")), "next": nil, "revision": c.table.number}}
	case r.URL.Path == "/v1/cluster":
		return reply{200, c.table.status(c.id)}
	case isKey && r.Method == http.MethodGet:
		name, err := url.PathUnescape(key)
		if err != nil {
			return problem("invalid-request", 400, err.Error(), nil)
		}
		return reply{200, c.table.key(name)}
	default:
		return problem("not-found", 404, "a fake cluster has no "+r.Method+" "+r.URL.Path, nil)
	}
}

// put acquires, and waits in the queue if that is asked for, unless the client hangs up.
func (c *Cluster) put(ctx context.Context, w wanted) reply {
	later := make(chan reply, 1)
	c.mu.Lock()
	c.runLocked()
	answer, request := c.table.acquire(w, later)
	c.runLocked()
	c.mu.Unlock()
	if answer.status != 0 {
		return answer
	}
	select {
	case answer = <-later:
		return answer
	case <-ctx.Done():
	case <-c.ends.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runLocked()
	c.table.hungUp(request)
	c.runLocked()
	return reply{status: 503}
}

// An operation is one of a batch.
type operation struct {
	Acquire *wanted `json:"acquire"`
	Renew   *struct {
		LeaseID string `json:"lease_id"`
		TTL     int64  `json:"ttl_ms"`
	} `json:"renew"`
	Release struct {
		LeaseID string `json:"lease_id"`
	} `json:"release"`
}

func (c *Cluster) operate(one operation) reply {
	switch {
	case one.Acquire != nil:
		own := *one.Acquire
		own.Wait = 0
		answer, _ := c.table.acquire(own, nil)
		return answer
	case one.Renew != nil:
		return c.table.renew(one.Renew.LeaseID, one.Renew.TTL)
	default:
		return c.table.release(one.Release.LeaseID)
	}
}

func all[T any](many []T, do func(T) reply) reply {
	results := make([]object, len(many))
	for i, one := range many {
		answer := do(one)
		results[i] = object{"status": answer.status, "body": answer.body}
	}
	return reply{200, object{"results": results}}
}
