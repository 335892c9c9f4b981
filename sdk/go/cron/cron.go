// Package cron has the Locker and the Elector of gocron v2: of all programs that have the same job, one runs it.
//
//	gocron.NewScheduler(gocron.WithDistributedLocker(cron.Locker(client)))
//	gocron.NewScheduler(gocron.WithDistributedElector(elector))
package cron

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-co-op/gocron/v2"

	ringfence "ringfence.dev/sdk/go"
)

// ErrNotLeader says that this program does not lead.
var ErrNotLeader = errors.New("ringfence: this program does not lead")

const (
	prefix     = "cron/"
	longestKey = 512
	// apart is by how much the clocks of the programs may differ by default.
	apart = time.Second
)

// Locker has one program run a job each time. Where another has the job's key, it fails at once, and gocron skips that run.
//
// gocron does not tell when a run was due. So the key, "cron/" and the name of the job, stays taken for a second, or as HoldAtLeast of the options
// says, however short the run is: choose more than the clocks of the programs differ, and less than the time between two runs. Nor does it tell a job that the lease of its run is lost: a job that must know of that acquires a lease of its own.
func Locker(client *ringfence.Client, options ...ringfence.Option) gocron.Locker {
	return locker{client, append([]ringfence.Option{ringfence.HoldAtLeast(apart)}, options...)}
}

type locker struct {
	client  *ringfence.Client
	options []ringfence.Option
}

func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lease, err := l.client.TryAcquire(ctx, keyOf(key), l.options...)
	if err != nil {
		return nil, err
	}
	return lock{lease}, nil
}

// keyOf is a job's key: what a key forbids is percent-encoded in its name, and no name is too long.
func keyOf(job string) string {
	var key strings.Builder
	key.WriteString(prefix)
	areDots := job == "." || job == ".."
	for rest := job; rest != ""; {
		char, size := utf8.DecodeRuneInString(rest)
		isNone := char == utf8.RuneError && size == 1
		if areDots || isNone || char == '/' || char == '%' || unicode.IsControl(char) {
			for _, one := range []byte(rest[:size]) {
				fmt.Fprintf(&key, "%%%02X", one)
			}
		} else {
			key.WriteString(rest[:size])
		}
		rest = rest[size:]
	}
	if key.Len() > longestKey {
		// Nothing that is encoded begins so.
		return fmt.Sprintf("%s%%sha256:%x", prefix, sha256.Sum256([]byte(job)))
	}
	return key.String()
}

type lock struct {
	lease *ringfence.Lease
}

func (l lock) Unlock(ctx context.Context) error {
	return l.lease.Release(ctx)
}

// An Elector has the jobs of one program run, as long as it leads.
type Elector struct {
	lease atomic.Pointer[ringfence.Lease]
	done  chan struct{}
	err   error
}

// NewElector campaigns for the key until the context ends. The error is a [ringfence.InvalidError].
func NewElector(ctx context.Context, client *ringfence.Client, key string, options ...ringfence.Option) (*Elector, error) {
	// With a context that has ended, it only checks what it was given.
	ended, cancel := context.WithCancel(ctx)
	cancel()
	err := client.Lead(ended, key, nil, options...)
	// An error that one wraps is the cause of the caller's context.
	if invalid, isInvalid := err.(*ringfence.InvalidError); isInvalid {
		return nil, invalid
	}
	e := &Elector{done: make(chan struct{})}
	go func() {
		defer close(e.done)
		e.err = client.Lead(ctx, key, func(ctx context.Context, lease *ringfence.Lease) error {
			e.lease.Store(lease)
			<-ctx.Done()
			e.lease.Store(nil)
			return context.Cause(ctx)
		}, options...)
	}()
	return e, nil
}

// IsLeader is nil while this program leads, and says why once its campaign is over. It reads the clock, so it is right also after the program stood still.
func (e *Elector) IsLeader(context.Context) error {
	if lease := e.lease.Load(); lease != nil {
		return lease.Err()
	}
	select {
	case <-e.done:
		return fmt.Errorf("%w: %w", ErrNotLeader, e.err)
	default:
		return ErrNotLeader
	}
}

// Wait waits until the campaign is over, and the key released, and returns why.
func (e *Elector) Wait() error {
	<-e.done
	return e.err
}
