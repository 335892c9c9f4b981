package ringfence

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// The codes of warnings, as the attribute "code" of a record. A warning tells what no call can tell.
const (
	// WarnRenewal: the cluster refuses to renew leases.
	WarnRenewal = "ringfence.renewal"
	// WarnDropped: a handle was dropped without a release.
	WarnDropped = "ringfence.dropped"
	// WarnLead: the work of a leader failed after its lease was lost, or a campaign failed for now.
	WarnLead = "ringfence.lead"
	// WarnClose: what was not released when the client was closed.
	WarnClose = "ringfence.close"
	// WarnFiles: files of TLS that changed cannot be used.
	WarnFiles = "ringfence.files"
	// WarnHook: a hook has failed, or does not return.
	WarnHook = "ringfence.hook"
	// WarnQueue: an acquire has been in the queue for some seconds.
	WarnQueue = "ringfence.queue"
)

// Hooks are told what becomes of leases, for logs, metrics and traces. Each may be nil. They are called in order, on a goroutine of their own, so none
// holds up a lease: one that panics is a warning, and one that has not returned after a second is left behind, and the next is called beside it: what they
// share needs a lock.
type Hooks struct {
	// Waited: an acquire has stood in the queue for this long, whatever came of it.
	Waited func(keys []string, d time.Duration)
	// Granted: a lease was granted, this long after it was asked for.
	Granted func(lease LeaseView, d time.Duration)
	// Renewed: a lease was renewed.
	Renewed func(lease LeaseView)
	// Failed: a lease could not be renewed for now.
	Failed func(lease LeaseView, why string)
	// Lost: a lease is lost. Its context was cancelled before.
	Lost func(lease LeaseView, reason LossReason)
	// Released: a lease was released, by its holder, by Close, or since its handle was dropped.
	Released func(lease LeaseView)
}

// A LeaseView is a lease, as hooks see it. Its id is a secret.
type LeaseView struct {
	Keys  []string
	Token uint64
}

const (
	// hookLimit is how long a hook may take.
	hookLimit = time.Second
	// mostBehind is how many that did not return are left behind, and mostTold how much waits to be told. What is beyond is not told.
	mostBehind = 16
	mostTold   = 10_000
	// lastLimit is how long the last warning may take, whatever waits to be told: the program may end.
	lastLimit = 250 * time.Millisecond
)

// What is told is a call, and says whether that is of a hook, or of the logger.
type told struct {
	call   func()
	isHook bool
}

// A teller calls hooks and the logger, which are the user's code.
type teller struct {
	hooks  Hooks
	logger *slog.Logger

	mu        sync.Mutex
	queue     []told
	isTelling bool
	behind    int
	// idle is closed once nothing waits to be told.
	idle chan struct{}
}

func newTeller(hooks Hooks, logger *slog.Logger) *teller {
	idle := make(chan struct{})
	close(idle)
	return &teller{hooks: hooks, logger: logger, idle: idle}
}

func (t *teller) waited(keys []string, d time.Duration) {
	if hook := t.hooks.Waited; hook != nil {
		t.tell(func() { hook(keys, d) })
	}
}

func (t *teller) granted(lease LeaseView, d time.Duration) {
	if hook := t.hooks.Granted; hook != nil {
		t.tell(func() { hook(lease, d) })
	}
}

func (t *teller) renewed(lease LeaseView) {
	if hook := t.hooks.Renewed; hook != nil {
		t.tell(func() { hook(lease) })
	}
}

func (t *teller) failed(lease LeaseView, why string) {
	if hook := t.hooks.Failed; hook != nil {
		t.tell(func() { hook(lease, why) })
	}
}

func (t *teller) lost(lease LeaseView, reason LossReason) {
	if hook := t.hooks.Released; hook != nil && reason == Released {
		t.tell(func() { hook(lease) })
	}
	if hook := t.hooks.Lost; hook != nil && reason != Released {
		t.tell(func() { hook(lease, reason) })
	}
}

func (t *teller) warn(code, message string) {
	t.enqueue(false, func() { t.logger.Warn(message, "code", code) })
}

// warnNow has warned when it returns, unless the logger blocks.
func (t *teller) warnNow(code, message string) {
	written := make(chan struct{})
	go func() {
		defer close(written)
		defer func() { _ = recover() }()
		t.logger.Warn(message, "code", code)
	}()
	select {
	case <-written:
	case <-time.After(lastLimit):
	}
}

func (t *teller) tell(hook func()) {
	t.enqueue(true, hook)
}

func (t *teller) enqueue(isHook bool, call func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) >= mostTold || t.behind >= mostBehind {
		return
	}
	t.queue = append(t.queue, told{call, isHook})
	if !t.isTelling {
		t.isTelling = true
		t.idle = make(chan struct{})
		go t.run()
	}
}

func (t *teller) run() {
	for {
		t.mu.Lock()
		if len(t.queue) == 0 || t.behind >= mostBehind {
			t.queue = nil
			t.isTelling = false
			close(t.idle)
			t.mu.Unlock()
			return
		}
		what := t.queue[0]
		t.queue = t.queue[1:]
		t.mu.Unlock()
		t.guard(what)
	}
}

// guard calls it, and goes on without it if it does not return.
func (t *teller) guard(what told) {
	returned := make(chan any, 1)
	go func() {
		// A hook that ends its goroutine has returned, too.
		defer func() { returned <- recover() }()
		what.call()
	}()
	late := time.NewTimer(hookLimit)
	defer late.Stop()
	select {
	case failed := <-returned:
		// Of a logger that has failed there is nobody to tell.
		if failed != nil && what.isHook {
			t.warn(WarnHook, fmt.Sprintf("a hook has failed: %v", failed))
		}
	case <-late.C:
		t.mu.Lock()
		t.behind++
		t.mu.Unlock()
		if what.isHook {
			t.warn(WarnHook, "a hook has not returned within a second: the next is called")
		}
		go func() {
			<-returned
			t.mu.Lock()
			defer t.mu.Unlock()
			t.behind--
		}()
	}
}

// settle waits until everything is told, within a bound, and until the context ends.
func (t *teller) settle(ctx context.Context) {
	t.mu.Lock()
	idle := t.idle
	t.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(hookLimit):
	case <-ctx.Done():
	}
}
