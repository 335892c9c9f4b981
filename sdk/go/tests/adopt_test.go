package tests

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	ringfence "ringfence.dev/sdk/go"
	"ringfence.dev/sdk/go/ringfencetest"
)

// A delay is between a client and its cluster, and keeps back the answers to so many renewals of one lease.
type delay struct {
	keeps   atomic.Int32
	arrived chan struct{}
	opens   chan struct{}
}

func behind(t *testing.T, cluster *ringfencetest.Cluster) (*ringfence.Client, *delay) {
	t.Helper()
	own := &delay{arrived: make(chan struct{}, 10), opens: make(chan struct{})}
	target, err := url.Parse(cluster.URL())
	if err != nil {
		t.Fatal(err)
	}
	proxy, transport := httputil.NewSingleHostReverseProxy(target), &http.Transport{}
	proxy.Transport = transport
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {}
	proxy.ModifyResponse = func(answered *http.Response) error {
		if strings.HasSuffix(answered.Request.URL.Path, "/renew") && own.keeps.Add(-1) >= 0 {
			own.arrived <- struct{}{}
			select {
			case <-own.opens:
			case <-answered.Request.Context().Done():
			}
		}
		return nil
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
	})
	client, err := ringfence.New([]string{server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client, own
}

// An adopting is a call to Adopt that is under way.
type adopting struct {
	cancel context.CancelFunc
	over   chan struct{}
	lease  *ringfence.Lease
	err    error
}

// adopts begins one, whose answer is kept back.
func (d *delay) adopts(t *testing.T, client *ringfence.Client, leaseID string) *adopting {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	own := &adopting{cancel: cancel, over: make(chan struct{})}
	d.keeps.Add(1)
	go func() {
		defer close(own.over)
		own.lease, own.err = client.Adopt(ctx, leaseID)
	}()
	select {
	case <-d.arrived:
	case <-own.over:
		t.Fatal("it was not asked for: ", own.err)
	}
	return own
}

func acquired(t *testing.T, client *ringfence.Client) *ringfence.Lease {
	t.Helper()
	lease, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func isLost(err error, reason ringfence.LossReason) bool {
	lost := (*ringfence.LostError)(nil)
	return errors.As(err, &lost) && lost.Reason == reason
}

func TestAnAdoptionThatFailsTakesTheLeaseFromNobody(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client, delay := behind(t, cluster)
	holder := acquired(t, client)
	first := delay.adopts(t, client, holder.ID())
	second := delay.adopts(t, client, holder.ID())
	second.cancel()
	<-second.over
	if second.err == nil || holder.Err() != nil {
		t.Error("the holder has lost it to a call that failed: ", second.err, holder.Err())
	}
	close(delay.opens)
	<-first.over
	if first.err != nil || !isLost(holder.Err(), ringfence.Unconfirmed) {
		t.Fatal("the other call has not adopted it: ", first.err, holder.Err())
	}
	if err := first.lease.Release(t.Context()); err != nil || !isFree(cluster, "a")() {
		t.Error(err)
	}
}

func TestCloseReleasesWhatIsAboutToBeAdopted(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client, delay := behind(t, cluster)
	holder := acquired(t, client)
	call := delay.adopts(t, client, holder.ID())
	if err := client.Close(t.Context()); err != nil || !isFree(cluster, "a")() {
		t.Error("it was left: ", err, cluster.Holders("a"))
	}
	<-call.over
	if call.err != ringfence.ErrClosed {
		t.Error(call.err)
	}
	runtime.KeepAlive(holder)
}

func TestAnAdoptionThatIsAnsweredTooLateHasNothing(t *testing.T) {
	for what, overtake := range map[string]func(*ringfence.Client, *ringfence.Lease) error{
		"a release": func(_ *ringfence.Client, holder *ringfence.Lease) error { return holder.Release(t.Context()) },
		"a later adoption that has ended": func(client *ringfence.Client, holder *ringfence.Lease) error {
			later, err := client.Adopt(t.Context(), holder.ID())
			if err != nil {
				return err
			}
			return later.Release(t.Context())
		},
	} {
		client, delay := behind(t, ringfencetest.Start(t))
		holder := acquired(t, client)
		call := delay.adopts(t, client, holder.ID())
		if err := overtake(client, holder); err != nil {
			t.Error(what, err)
		}
		close(delay.opens)
		<-call.over
		if !isLost(call.err, ringfence.Released) {
			t.Error(what, call.err)
		}
	}
}

func TestWhatIsAboutToBeAdoptedIsNotDropped(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client, delay := behind(t, cluster)
	call := delay.adopts(t, client, acquired(t, client).ID())
	collected := make(chan struct{})
	runtime.AddCleanup(new(*int), func(int) { close(collected) }, 0)
	until(t, "handles are collected", func() bool {
		runtime.GC()
		select {
		case <-collected:
			return true
		default:
			return false
		}
	})
	runtime.GC()
	close(delay.opens)
	<-call.over
	if call.err != nil || call.lease.Err() != nil || isFree(cluster, "a")() {
		t.Error("it was dropped: ", call.err)
	}
	runtime.KeepAlive(call)
}

func TestWhoHasDetachedALeaseIsToldThatItIsAdopted(t *testing.T) {
	cluster := ringfencetest.Start(t)
	client := cluster.Client()
	holder := acquired(t, client)
	leaseID, err := holder.Detach()
	if again, repeated := holder.Detach(); err != nil || repeated != nil || again != leaseID {
		t.Error("a repeat has another result: ", err, repeated)
	}
	adopted, err := client.Adopt(t.Context(), leaseID)
	if err != nil {
		t.Fatal(err)
	}
	if !isLost(context.Cause(holder.Context()), ringfence.Unconfirmed) || adopted.Err() != nil {
		t.Error("nobody was told: ", holder.Err(), adopted.Err())
	}
	if _, err := holder.Detach(); !isLost(err, ringfence.Unconfirmed) {
		t.Error(err)
	}
	if err := adopted.Release(t.Context()); err != nil || !isFree(cluster, "a")() {
		t.Error(err)
	}
}
