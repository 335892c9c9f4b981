package ringfence

import (
	"slices"
	"sync"
)

// turns sees to it that there are never more than so many of something at once. First come, first served.
type turns struct {
	mu    sync.Mutex
	free  int
	queue []*turn
}

// A turn is the right to do it, once it is ready. If it is of no use now, failed has what those whose turn it was before came to.
type turn struct {
	of     *turns
	isOver bool
	ready  chan struct{}
	failed chan error
}

func newTurns(most int) *turns {
	return &turns{free: most}
}

// ask asks for a turn. It has to be ended, also if it is not ready.
func (t *turns) ask() *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	asked := &turn{of: t, ready: make(chan struct{}), failed: make(chan error, 1)}
	t.queue = append(t.queue, asked)
	t.next()
	return asked
}

// end gives it to the next, or no longer waits for it. A repeat does nothing.
func (t *turn) end() {
	all := t.of
	all.mu.Lock()
	defer all.mu.Unlock()
	if t.isOver {
		return
	}
	t.isOver = true
	if t.isReady() {
		all.free++
		all.next()
		return
	}
	all.queue = slices.DeleteFunc(all.queue, func(other *turn) bool { return other == t })
}

func (t *turn) isReady() bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

// fail tells all that wait that it is of no use now.
func (t *turns) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, waiting := range t.queue {
		select {
		case waiting.failed <- err:
		default:
		}
	}
}

// waiting is how many wait.
func (t *turns) waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.queue)
}

func (t *turns) next() {
	for t.free > 0 && len(t.queue) > 0 {
		first := t.queue[0]
		t.queue = t.queue[1:]
		t.free--
		close(first.ready)
	}
}
