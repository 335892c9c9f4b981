package ringfence

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// answersWithin is how long a sign of life may take.
	answersWithin = 1500 * time.Millisecond
	// threadsRun: a node of which a thread has not run for so many milliseconds does not live. That thread may have the request that waits.
	threadsRun = "1000"
	// maxBody is the longest body that is read: the results of 1,000 renewals take 8 MiB at most.
	maxBody = 16 << 20
)

// A request that any node can take.
type request struct {
	method, path string
	body         []byte
	// operation is the same in a batch; nil if it cannot be in one.
	operation []byte
	// wait is how long it waits in the cluster's queue.
	wait time.Duration
	// isWait says that it has a connection of those for waits, and isApart that it shares none with other calls.
	isWait, isApart bool
	within          string
}

// takesTurn says whether it needs one of the connections of what is sent alone.
func (r *request) takesTurn() bool { return !r.isWait && !r.isApart }

// A response, read in full.
type response struct {
	sent   Moment
	status int
	// leader is the leader's URL, and cluster the id of the node's cluster, if the node knows them.
	leader, cluster string
	retryAfter      time.Duration
	body            []byte
}

// A failure is why there is no response.
type failure struct {
	why string
	// wasSent: some of the request may have been sent.
	wasSent bool
	// isDistrust: with the same files on both sides nothing will be sent, as one side does not trust the certificate of the other.
	isDistrust bool
	// isUnasked: nothing was sent, for want of something of this client's, which says nothing of the node.
	isUnasked bool
}

func (f *failure) Error() string { return f.why }

// asFailure is the failure that an error is or wraps; nil if there is none.
func asFailure(err error) *failure {
	var failed *failure
	if errors.As(err, &failed) {
		return failed
	}
	return nil
}

func newTransport(n *node) *http.Transport {
	return &http.Transport{
		// No proxy, whatever the environment says: what is between a client and its cluster decides how soon a loss is known.
		Proxy:       nil,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return n.target.connect(ctx) },
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return n.connectTLS(ctx)
		},
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
		DisableCompression:     true,
		MaxIdleConnsPerHost:    mostWaits + mostAlone,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

func (n *node) connectTLS(ctx context.Context) (net.Conn, error) {
	raw, err := n.target.connect(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	config := n.files.current().Clone()
	config.ServerName = n.target.host
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		if why := n.files.distrusted(err); why != nil {
			return nil, &failure{why: why.Error(), isDistrust: true}
		}
		return nil, err
	}
	return conn, nil
}

// exchange sends a request and reads the whole response, within this time of being connected. The error is a failure, or nobody waits any more.
//
// A failure tells whether any byte of the request may have been sent, which separates *not done* from *maybe done*. A request that is abandoned
// resets its connection, so that it does not arrive later, and its response reaches nobody.
func (n *node) exchange(ctx context.Context, asked *request, limit time.Duration) (*response, error) {
	x := &exchange{node: n, limit: limit}
	ctx, x.cancel = context.WithCancelCause(ctx)
	defer x.cancel(nil)
	connect := min(limit, connectLimit)
	if n.files != nil {
		connect *= 2
	}
	x.timer = time.AfterFunc(connect, x.late)
	defer x.timer.Stop()
	outgoing, err := n.outgoing(x.traced(ctx), asked)
	if err != nil {
		return nil, &failure{why: err.Error()}
	}
	answered, err := n.transport.RoundTrip(outgoing)
	if err != nil {
		return nil, x.failed(ctx, err)
	}
	body, err := io.ReadAll(io.LimitReader(answered.Body, maxBody+1))
	_ = answered.Body.Close()
	if err == nil && len(body) > maxBody {
		err = errors.New("it is too long")
	}
	if err != nil {
		return nil, x.failed(ctx, fmt.Errorf("half a response: %w", err))
	}
	sent, _ := x.sentAt()
	return &response{
		sent:       sent,
		status:     answered.StatusCode,
		leader:     answered.Header.Get("Ringfence-Leader"),
		cluster:    answered.Header.Get("Ringfence-Cluster"),
		retryAfter: retryAfter(answered.Header.Get("Retry-After")),
		body:       body,
	}, nil
}

func (n *node) outgoing(ctx context.Context, asked *request) (*http.Request, error) {
	outgoing, err := http.NewRequestWithContext(ctx, asked.method, n.url+asked.path, bytes.NewReader(asked.body))
	if err != nil {
		return nil, err
	}
	outgoing.Header.Set("User-Agent", "ringfence-go")
	if len(asked.body) > 0 {
		outgoing.Header.Set("Content-Type", "application/json")
	}
	if asked.within != "" {
		outgoing.Header.Set("Ringfence-Within-Ms", asked.within)
	}
	if n.credential != "" {
		outgoing.Header.Set("Authorization", "Bearer "+n.credential)
	}
	return outgoing, nil
}

// An exchange is one request on its way.
type exchange struct {
	node   *node
	limit  time.Duration
	cancel context.CancelCauseFunc
	timer  *time.Timer

	mu     sync.Mutex
	isSent bool
	// isReused: its connection had other requests before.
	isReused bool
	sent     Moment
}

func (x *exchange) traced(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// The transport asks again only if nothing was written to the connection that it had.
		GetConn: func(string) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.isSent = false
		},
		GotConn: func(got httptrace.GotConnInfo) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.isSent, x.isReused, x.sent = true, got.Reused, x.node.clock()
			x.timer.Reset(x.limit)
		},
	})
}

func (x *exchange) sentAt() (Moment, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sent, x.isSent
}

// isFirst says whether its connection had no requests before.
func (x *exchange) isFirst() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.isReused
}

func (x *exchange) late() {
	if _, isSent := x.sentAt(); isSent {
		x.node.target.distrust()
		x.cancel(&failure{why: fmt.Sprintf("no response within %d ms", x.limit.Milliseconds())})
	} else {
		x.cancel(&failure{why: "no connection in time"})
	}
}

// failed says what this error came to.
func (x *exchange) failed(ctx context.Context, err error) error {
	_, isSent := x.sentAt()
	why := func(text string) string { return x.node.url + ": " + text }
	if cause := asFailure(context.Cause(ctx)); cause != nil {
		return &failure{why: why(cause.why), wasSent: isSent}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if refused := asFailure(err); refused != nil {
		return &failure{why: why(refused.why), isDistrust: refused.isDistrust}
	}
	if isRefusal(err) && x.isFirst() {
		return &failure{why: why("the node refused this client's certificate: " + err.Error()), isDistrust: true}
	}
	return &failure{why: why(err.Error()), wasSent: isSent}
}

// probe asks whether the node lives. It fails unless the node answers that it does, or that it has no room; nothing that matters was sent.
func (n *node) probe(ctx context.Context) (*response, error) {
	answered, err := n.exchange(ctx, &request{method: http.MethodGet, path: "/livez", within: threadsRun}, answersWithin)
	if failed := asFailure(err); failed != nil {
		if failed.isDistrust {
			return nil, failed
		}
		return nil, &failure{why: n.url + ": it does not answer"}
	}
	if err != nil {
		return nil, err
	}
	// A node without room for another connection does not say of which cluster it is. One that hangs does.
	hasNoRoom := answered.cluster == "" && bytes.Contains(answered.body, []byte(urn))
	if answered.status >= 500 && !hasNoRoom {
		return nil, &failure{why: fmt.Sprintf("%s: %d of a probe", n.url, answered.status)}
	}
	return answered, nil
}

// retryAfter is how many seconds a response asks to wait; negative if it does not.
func retryAfter(header string) time.Duration {
	seconds, err := strconv.ParseFloat(strings.TrimSpace(header), 64)
	if err != nil || !(seconds >= 0 && seconds < 1e6) {
		return -1
	}
	return time.Duration(seconds * float64(time.Second))
}
