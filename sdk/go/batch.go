package ringfence

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"runtime"
	"sync"
	"time"
)

const (
	// permits is how many requests of a batcher are under way at a node.
	permits = 2
	// mostInBatch and mostBatchBytes are what one request may have: a node takes 1,000 operations and 1 MiB.
	mostInBatch    = 1000
	mostBatchBytes = 512 << 10
)

// errAlone: nothing was done, and the call has to be sent alone.
var errAlone = errors.New("it has to be sent alone")

// A batcher has acquires, renewals and releases share requests to a node: most of a call's cost, here and at the leader, is per request.
//
//	a call --> the queue --once a permit is free--> alone, by itself --> its own request
//	                                                '-- several -----> POST /v1/batch
//
// A *permit* is the right to have a request under way. Two are enough: while one is answered, the other is filled, and a busy client sends ever
// larger batches instead of more of them. Nothing waits in a batch. An acquire that waits is answered with a place in the cluster's queue, where it
// waits with a request of its own; one that is alone may wait briefly in its own request, but never with the last permit.
//
// Each call gets the response that it would have got alone. If a batch gets none, none of its calls does. If it is refused as a whole, for example by a
// proxy's limit or by a node that does not know a field, each call is sent alone. A call that is given up leaves the others alone; only when all
// are given up, the request is.
type batcher struct {
	node *node

	mu      sync.Mutex
	queue   []*batched
	permits int
	// isWaiting: one permit waits in the cluster's queue.
	isWaiting bool
	// isAboutTo: a goroutine is about to send what is in the queue.
	isAboutTo bool
}

// A batched call, in the queue or under way.
type batched struct {
	asked      *request
	limit      time.Duration
	hasAnother func() bool
	answered   chan answer
	isGone     bool
	group      *group
}

type answer struct {
	response *response
	err      error
}

// A group of calls has one request.
type group struct {
	// left is how many of its calls are not given up.
	left   int
	cancel context.CancelFunc
}

func newBatcher(n *node) *batcher {
	return &batcher{node: n, permits: permits}
}

// send sends it, perhaps with others. The error is errAlone, a failure, or nobody waits any more. hasAnother says whether another node would do if this
// one is silent.
func (b *batcher) send(ctx context.Context, asked *request, limit time.Duration, hasAnother func() bool) (*response, error) {
	call := &batched{asked: asked, limit: limit, hasAnother: hasAnother, answered: make(chan answer, 1)}
	b.mu.Lock()
	b.queue = append(b.queue, call)
	b.soon()
	b.mu.Unlock()
	select {
	case answer := <-call.answered:
		return answer.response, answer.err
	case <-ctx.Done():
		b.giveUp(call)
		return nil, ctx.Err()
	}
}

func (b *batcher) giveUp(call *batched) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if call.isGone {
		return
	}
	call.isGone = true
	if call.group != nil {
		if call.group.left--; call.group.left == 0 {
			call.group.cancel()
		}
	}
}

// soon sends what is in the queue once the goroutines that can run now have asked, too.
func (b *batcher) soon() {
	if b.isAboutTo || b.permits == 0 || len(b.queue) == 0 {
		return
	}
	b.isAboutTo = true
	go func() {
		runtime.Gosched()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.isAboutTo = false
		b.flush()
	}()
}

// flush sends what is in the queue, as far as there are permits.
func (b *batcher) flush() {
	for b.permits > 0 {
		calls := b.take()
		if len(calls) == 0 {
			return
		}
		waits := calls[0].asked.wait > 0
		isAlone := len(calls) == 1 && !(waits && b.isWaiting)
		b.permits--
		isWait := isAlone && waits
		b.isWaiting = b.isWaiting || isWait
		ctx, cancel := context.WithCancel(b.node.nodes.ends)
		own := &group{len(calls), cancel}
		for _, call := range calls {
			call.group = own
		}
		go func() {
			defer cancel()
			b.perform(ctx, calls, isAlone)
			b.mu.Lock()
			defer b.mu.Unlock()
			b.permits++
			b.isWaiting = b.isWaiting && !isWait
			b.soon()
		}()
	}
}

// take takes what fits into one request, without those that were given up.
func (b *batcher) take() []*batched {
	var calls []*batched
	size, taken := 0, 0
	for _, call := range b.queue {
		if !call.isGone {
			size += len(call.asked.operation) + 1
			if len(calls) == mostInBatch || (size > mostBatchBytes && len(calls) > 0) {
				break
			}
			calls = append(calls, call)
		}
		taken++
	}
	b.queue = append([]*batched(nil), b.queue[taken:]...)
	return calls
}

func (b *batcher) perform(ctx context.Context, calls []*batched, isAlone bool) {
	asked, limit := calls[0].asked, calls[0].limit
	if !isAlone {
		asked, limit = together(calls)
	}
	answered, err := b.exchange(ctx, calls[0], asked, limit)
	switch {
	case err != nil:
		b.fail(calls, err)
	case isAlone:
		calls[0].answered <- answer{answered, nil}
	default:
		b.split(calls, answered)
	}
}

func together(calls []*batched) (*request, time.Duration) {
	var body bytes.Buffer
	limit := time.Duration(0)
	body.WriteString(`{"operations":[`)
	for i, call := range calls {
		if i > 0 {
			body.WriteByte(',')
		}
		body.Write(call.asked.operation)
		limit = max(limit, call.limit-call.asked.wait)
	}
	body.WriteString("]}")
	return &request{method: http.MethodPost, path: "/v1/batch", body: body.Bytes()}, limit
}

// exchange sends a request, unless the node is silent while another may answer.
func (b *batcher) exchange(ctx context.Context, first *batched, asked *request, limit time.Duration) (*response, error) {
	broken, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	unwatch := b.node.pulse.watch(func() {
		if first.hasAnother() {
			cancel(&failure{why: "it does not answer"})
		}
	})
	answered, err := b.node.exchange(broken, asked, limit)
	unwatch(ctx.Err() != nil)
	return answered, err
}

// fail tells these calls, and those in the queue, which do not wait for the same again: they go elsewhere at once.
func (b *batcher) fail(calls []*batched, err error) {
	for _, call := range calls {
		call.answered <- answer{nil, err}
	}
	failed := asFailure(err)
	if failed == nil {
		return
	}
	b.mu.Lock()
	queue := b.queue
	b.queue = nil
	b.mu.Unlock()
	unsent := *failed
	unsent.wasSent = false
	for _, call := range queue {
		call.answered <- answer{nil, &unsent}
	}
}

// split tells each call its own part of the response.
func (b *batcher) split(calls []*batched, whole *response) {
	// Any other 2xx is no node's, and would be read as that of each call.
	if whole.status < 200 || whole.status >= 300 {
		isRefused := whole.status >= 400 && whole.status < 500 && whole.status != http.StatusTooManyRequests
		own := answer{whole, nil}
		if isRefused && readProblem(whole.body, whole.status) != nil {
			own = answer{nil, errAlone}
		}
		for _, call := range calls {
			call.answered <- own
		}
		return
	}
	// Who wrote it is judged here, once: no part of what no node wrote is believed.
	results, err := readResults(whole.body, len(calls))
	if whole.cluster == "" {
		err = errors.New("no node wrote it")
	}
	if err != nil {
		b.fail(calls, &failure{why: b.node.url + ": unreadable response to a batch: " + err.Error(), wasSent: true})
		return
	}
	for i, call := range calls {
		part := *whole
		part.status, part.body = results[i].Status, results[i].Body
		if part.status == http.StatusRequestEntityTooLarge {
			// The others' results left no room for this one, which was not done.
			call.answered <- answer{nil, errAlone}
			continue
		}
		call.answered <- answer{&part, nil}
	}
}

// encode makes JSON of what is always JSON.
func encode(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic("ringfence: strings, numbers and maps of them are JSON: " + err.Error())
	}
	return text
}
