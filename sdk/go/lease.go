package ringfence

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mostClaims is how many bytes the claims of a connection to PostgreSQL may take.
const mostClaims = 8192

// A Lease is a granted lease. It is renewed until it is released: by its holder, by [Client.Close], or once the collector finds that nobody has it any
// more, nor its context, which is logged. Any goroutine may use it.
type Lease struct {
	*handle
}

// A handle is what copies of a Lease share.
type handle struct {
	release *release
	// values are those of the context that the lease was acquired with. They may refer to the handle.
	values context.Context
}

func newLease(r *release, values context.Context) *Lease {
	own := &handle{r, values}
	runtime.AddCleanup(own, func(r *release) { go r.drop() }, r)
	return &Lease{own}
}

// ID is its id. Anyone who knows it can renew and release the lease: keep it out of logs.
func (l *Lease) ID() string { return l.release.held.leaseID }

// Token is the fencing token: send it with every access to what the lease protects.
func (l *Lease) Token() uint64 { return l.release.held.grant().token }

// Keys are its keys, in the order of the request.
func (l *Lease) Keys() []string { return l.release.held.keys() }

// String names its keys and its token. Its id is a secret.
func (l *Lease) String() string {
	return fmt.Sprintf("the lease of %s with token %d", quoted(l.Keys()), l.Token())
}

// GoString is as String.
func (l *Lease) GoString() string { return l.String() }

// Fence is the lowest token that may still be live on the key, as of the last confirmation: a guard raises its number to this. With an exclusive lease
// it is the token itself. The error says that the lease has no such key.
func (l *Lease) Fence(key string) (uint64, error) {
	for _, granted := range l.release.held.grant().keys {
		if granted.key == key {
			return granted.fence, nil
		}
	}
	return 0, &InvalidError{"key", fmt.Sprintf("the lease has no key %q", key)}
}

// SetHeaders sets the headers that carry the claim to a guarded resource. The error is a [LostError] if the lease is lost.
func (l *Lease) SetHeaders(header http.Header, key string) error {
	fence, err := l.Fence(key)
	if err != nil {
		return err
	}
	if err := l.Err(); err != nil {
		return err
	}
	header.Set("Ringfence-Key", escaped(key))
	header.Set("Ringfence-Token", strconv.FormatUint(l.Token(), 10))
	header.Set("Ringfence-Fence", strconv.FormatUint(fence, 10))
	return nil
}

// PostgresOptions are the options of a connection to PostgreSQL, or the variable PGOPTIONS of a program, whose writes then claim by themselves.
//
// The table is to be protected by_connection. Connect anew for each lease, and CALL ringfence.touch_all() before the first read. The error is a
// [LostError], or an [InvalidError] if an older holder shares a key, as its fence rises and options do not, or if the keys take more than 8 KiB.
func (l *Lease) PostgresOptions() (string, error) {
	if err := l.Err(); err != nil {
		return "", err
	}
	var claims []string
	for _, granted := range l.release.held.grant().keys {
		if granted.fence != l.Token() {
			return "", &InvalidError{"fence", "it rises, and the options of a connection do not: an older holder shares a key"}
		}
		claims = append(claims, fmt.Sprintf("%s=%d", escaped(granted.key), l.Token()))
	}
	slices.Sort(claims)
	text := strings.Join(claims, ",")
	if len(text) > mostClaims {
		return "", &InvalidError{"keys", fmt.Sprintf("they take %d of %d bytes as options of a connection", len(text), mostClaims)}
	}
	return "-c ringfence.may_claim=" + text, nil
}

// State says how it stands now. It reads the clock, so it is right whatever timers and goroutines did.
func (l *Lease) State() State {
	at := l.release.held.clock()
	l.release.held.look(at)
	return l.release.held.lifetime.Load().stateAt(at)
}

// Remaining is for how long it certainly lives; 0 once it is lost.
func (l *Lease) Remaining() time.Duration {
	at := l.release.held.clock()
	l.release.held.look(at)
	return l.release.held.lifetime.Load().remaining(at)
}

// Err is a [LostError] once the lease is lost or released, and nil before.
func (l *Lease) Err() error {
	if loss := l.release.held.look(l.release.held.clock()); loss != "" {
		return &LostError{loss}
	}
	return nil
}

// Context is cancelled when the lease is lost or released, before another client can have it; [context.Cause] has the [LostError] then. It has the
// values of the context that the lease was acquired with, and not its end. [context.AfterFunc] calls a function after a loss.
//
// The lease is kept as long as somebody has the context, or one that derives from it, until that is cancelled, or AfterFunc stopped. Who only waits for
// its end has it no more, and keeps nothing: with `defer lease.Release(ctx)`, the lease is kept until the function returns.
func (l *Lease) Context() context.Context {
	return leaseContext{l.release.held.ended, l.handle}
}

// A leaseContext keeps the handle from being collected.
type leaseContext struct {
	context.Context
	handle *handle
}

func (c leaseContext) Value(key any) any {
	if own := c.Context.Value(key); own != nil {
		return own
	}
	return c.handle.values.Value(key)
}

// Renew renews it now, for its own time-to-live if ttl is 0. There is no need to if the lease renews itself.
func (l *Lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl != 0 {
		if err := checkTTL(ttl); err != nil {
			return err
		}
	}
	if err := l.Err(); err != nil {
		return err
	}
	own := l.release
	ctx, done, err := own.core.call(ctx)
	if err != nil {
		return err
	}
	defer done()
	renewed, err := own.core.renew(ctx, l.ID(), ttl, true)
	if err == nil {
		own.held.confirm(renewed, own.held.clock())
	} else if reason := lossIn(err); reason != "" {
		own.held.lose(reason, own.held.clock())
	} else {
		return err
	}
	return l.Err()
}

// Release releases the keys, once: a repeat has the same result. From now on the lease is lost for all who look at it.
//
// A [LostError] says that it was lost before: what was done under it may have met another holder. After an [UnknownError], an [UnavailableError], or if the
// context ends, the release goes on in the background; a context that has ended already counts as one that ends in a second, so that what ended the
// work does not keep the keys taken. With HoldAtLeast, the keys stay taken until that time is over.
func (l *Lease) Release(ctx context.Context) error {
	// Whoever releases it has not dropped it.
	defer runtime.KeepAlive(l.handle)
	return l.release.end(ctx)
}

// Detach leaves the lease to its id, for [Client.Adopt] in another process: nothing renews it here any more, and it ends with its time-to-live unless
// somebody renews or releases it by this id. [Client.Close] ends its context. Release does nothing any more, but tells a loss. A repeat has the same
// result. A [LostError] says that it is lost, or is being released.
func (l *Lease) Detach() (string, error) {
	// Whoever detaches it has not dropped it.
	defer runtime.KeepAlive(l.handle)
	if err := l.Err(); err != nil {
		return "", err
	}
	switch l.release.detach() {
	case isDetached:
		return l.ID(), nil
	case isAdopted:
		return "", &LostError{Unconfirmed}
	default:
		return "", &LostError{Released}
	}
}

// escaped encodes a key as one segment of a path.
func escaped(key string) string {
	return strings.ReplaceAll(url.QueryEscape(key), "+", "%20")
}
