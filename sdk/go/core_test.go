package ringfence

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A gate lets nobody through that comes to it while it is shut.
type gate struct {
	isShut  atomic.Bool
	arrived chan struct{}
	opens   chan struct{}
}

func newGate() *gate {
	return &gate{arrived: make(chan struct{}, 1), opens: make(chan struct{})}
}

// clock stands still, and so does who reads it first while the gate is shut.
func (g *gate) clock() Moment {
	if g.isShut.CompareAndSwap(true, false) {
		g.arrived <- struct{}{}
		<-g.opens
	}
	return Moment{}
}

func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("not within a bound: ", what)
	}
}

func newClient(t *testing.T, clock Clock) *Client {
	t.Helper()
	client, err := New([]string{"http://127.0.0.1:1"}, WithClock(clock))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestWhatComesToAClosedClientIsNotKept(t *testing.T) {
	gate := newGate()
	c := newClient(t, gate.clock).core
	add := func() {
		c.keeper.add(newHeld(newLifetime(grantFor(time.Hour, Moment{}), false, forever), gate.clock, c.tell))
	}
	add()
	gate.isShut.Store(true)
	c.keeper.poke()
	await(t, "the keeper looks", gate.arrived)
	c.mu.Lock()
	c.isOver = true
	c.mu.Unlock()
	c.keeper.clear()
	add()
	close(gate.opens)
	over := make(chan struct{})
	go func() {
		c.goroutines.Wait()
		close(over)
	}()
	await(t, "the keeper ends", over)
}

func TestReleasesThatFailLeaveNothingBehind(t *testing.T) {
	client := newClient(t, SystemClock)
	failed := errors.New("an outage")
	for range 100 {
		client.core.background(newID(), []string{"a"}, func() error { return failed })
	}
	client.core.goroutines.Wait()
	if kept := len(client.core.failed); kept > 0 {
		t.Errorf("%d are kept", kept)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestHoldAtLeastCountsByTheLaterClock(t *testing.T) {
	now := Moment{Boot: 10 * time.Second, Raw: 4 * time.Second}
	c := newClient(t, func() Moment { return now }).core
	lease, err := c.hold(t.Context(), grantFor(time.Hour, at(0)), &wanted{maxHold: forever, holdAtLeast: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if left := lease.release.left(at(25_000)); left != 5*time.Second {
		t.Error("so much is left: ", left)
	}
}

func TestWhatIsBeingReleasedIsNotDetached(t *testing.T) {
	gate := newGate()
	c := newClient(t, gate.clock).core
	lease, err := c.hold(t.Context(), grantFor(time.Hour, at(0)), &wanted{maxHold: forever})
	if err != nil {
		t.Fatal(err)
	}
	gate.isShut.Store(true)
	lease.release.begin(isTaken)
	await(t, "the release begins", gate.arrived)
	lost := (*LostError)(nil)
	if _, err := lease.Detach(); !errors.As(err, &lost) || lost.Reason != Released {
		t.Error(err)
	}
	c.end(nil)
	close(gate.opens)
	c.keeper.clear()
	c.goroutines.Wait()
}

func TestAnAnswerThatComesTooLateTakesALeaseFromNobody(t *testing.T) {
	var now atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now.Store(int64(2 * time.Second))
		w.Header().Set("ringfence-cluster", "a")
		id := strings.Split(r.URL.Path, "/")[3]
		_, _ = fmt.Fprintf(w, `{"lease_id":%q,"state":"granted","token":1,"ttl_ms":1000,"expires_in_ms":1000,"keys":[{"key":"a","fence":1}]}`, id)
	}))
	defer server.Close()
	client, err := New([]string{server.URL}, WithClock(func() Moment { return at(int(now.Load() / int64(time.Millisecond))) }))
	if err != nil {
		t.Fatal(err)
	}
	c := client.core
	granted := grantFor(time.Hour, at(0))
	granted.grant.leaseID = newID()
	old, err := c.hold(t.Context(), granted, &wanted{maxHold: forever})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.adopt(t.Context(), &wanted{leaseID: old.ID(), maxHold: forever})
	if lost := (&LostError{}); !errors.As(err, &lost) || lost.Reason != Unconfirmed {
		t.Error("an answer of a lease that is over: ", err)
	}
	if err := old.Err(); err != nil {
		t.Error(err)
	}
}
