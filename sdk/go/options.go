package ringfence

import (
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	minTTL      = 100 * time.Millisecond
	maxTTL      = 24 * time.Hour
	usualTTL    = 15 * time.Second
	mostKeys    = 64
	longestKey  = 512
	longestText = 256
	mostData    = 4096
)

// A Claim is a key, and how to hold it.
type Claim struct {
	Key string
	// Shared shares the key with other shared holders: a read lock.
	Shared bool
	// Limit shares the key with at most this many holders in all: a semaphore. 0 is no limit.
	Limit int
}

// An Option says how to hold keys.
type Option func(*wanted)

// TTL is how long others wait if this process vanishes: 100 ms to 24 h, 15 s by default. Below a few seconds, it survives no change of the leader.
func TTL(d time.Duration) Option { return func(w *wanted) { w.ttl, w.hasTTL = d, true } }

// Wait is how long to wait in the queue at most. By default, for as long as it takes. The deadline of the context bounds the whole call.
func Wait(d time.Duration) Option { return func(w *wanted) { w.wait, w.hasWait = d, true } }

// Holder is a public label of the holder, of at most 256 bytes.
func Holder(label string) Option { return func(w *wanted) { w.holder = label } }

// Metadata is public data of the holder, of at most 4 KiB.
func Metadata(data map[string]string) Option { return func(w *wanted) { w.metadata = data } }

// Shared shares the keys with other shared holders: read locks.
func Shared() Option { return func(w *wanted) { w.isShared = true } }

// Limit shares the keys with at most this many holders in all: a semaphore.
func Limit(holders int) Option {
	return func(w *wanted) { w.isShared, w.limit, w.hasLimit = true, holders, true }
}

// MaxHold has the lease be lost after this time, although it could be renewed. It is renewed on a goroutine of its own, also while the work hangs: this
// bounds for how long.
func MaxHold(d time.Duration) Option { return func(w *wanted) { w.maxHold, w.hasMaxHold = d, true } }

// HoldAtLeast keeps the keys taken for at least this long after the grant, also if the lease is released before. It says nothing to a client that takes the
// lease over by its id.
func HoldAtLeast(d time.Duration) Option { return func(w *wanted) { w.holdAtLeast = d } }

// NoRenew leaves it to the holder to renew the lease.
func NoRenew() Option { return func(w *wanted) { w.renews = false } }

// OnError is told why a campaign of [Client.Lead] failed for now, as in an outage, and what the work returned after its lease was lost, on the goroutine
// that called Lead. By default, these are warnings.
func OnError(told func(error)) Option { return func(w *wanted) { w.onError = told } }

// wanted is what an acquire wants, checked.
type wanted struct {
	claims      []claimed
	ttl         time.Duration
	wait        time.Duration
	holder      string
	metadata    map[string]string
	maxHold     time.Duration
	holdAtLeast time.Duration
	renews      bool

	isShared, hasLimit          bool
	limit                       int
	hasTTL, hasWait, hasMaxHold bool
	onError                     func(error)
	// leaseID is that of the lease to adopt, and asked the number of the call.
	leaseID string
	asked   uint64
	// isCandidate: it may wait for as long as others lead.
	isCandidate bool
}

// claimed is a claim as nodes read it.
type claimed struct {
	Key   string `json:"key"`
	Mode  string `json:"mode,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

func (w *wanted) keys() []string {
	keys := make([]string, len(w.claims))
	for i, claim := range w.claims {
		keys[i] = claim.Key
	}
	return keys
}

// parse checks an acquire. The error names the field.
func parse(claims []Claim, field func(int) string, options []Option) (*wanted, error) {
	w := &wanted{ttl: usualTTL, wait: forever, maxHold: forever, renews: true}
	for _, option := range options {
		if option == nil {
			return nil, &InvalidError{"options", "one is nil"}
		}
		option(w)
	}
	if len(claims) == 0 || len(claims) > mostKeys {
		return nil, &InvalidError{"claims", fmt.Sprintf("a lease has from 1 to %d keys, not %d", mostKeys, len(claims))}
	}
	seen := make(map[string]bool)
	for i, claim := range claims {
		if err := checkKey(claim.Key, field(i)); err != nil {
			return nil, err
		}
		if seen[claim.Key] {
			return nil, &InvalidError{field(i), "the same key stands there twice"}
		}
		seen[claim.Key] = true
		if !claim.Shared && claim.Limit == 0 {
			claim.Shared, claim.Limit = w.isShared, w.limit
		}
		own := claimed{Key: claim.Key, Limit: claim.Limit}
		if claim.Shared || claim.Limit != 0 {
			own.Mode = "shared"
		}
		if claim.Limit < 0 || int64(claim.Limit) > math.MaxUint32 || (w.hasLimit && w.limit == 0) {
			return nil, &InvalidError{"limit", "a limit is from 1 to 2^32 - 1"}
		}
		w.claims = append(w.claims, own)
	}
	return w, w.check()
}

func (w *wanted) check() error {
	if err := checkTTL(w.ttl); err != nil {
		return err
	}
	size := 0
	for name, value := range w.metadata {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return &InvalidError{"metadata", "is no UTF-8"}
		}
		size += len(name) + len(value)
	}
	switch {
	case w.wait < 0:
		return &InvalidError{"wait", "is negative"}
	case w.hasMaxHold && w.maxHold <= 0:
		return &InvalidError{"max-hold", "is no time: more than 0"}
	case w.holdAtLeast < 0 || w.holdAtLeast > maxTTL:
		return &InvalidError{"hold-at-least", "is from 0 to 24 h"}
	case len(w.holder) > longestText || !utf8.ValidString(w.holder):
		return &InvalidError{"holder", "is UTF-8 of at most 256 bytes"}
	case size > mostData:
		return &InvalidError{"metadata", "has at most 4,096 bytes in total"}
	case w.isCandidate && w.hasWait:
		return &InvalidError{"wait", "a candidate waits for as long as others lead: its context ends that"}
	case !w.isCandidate && w.onError != nil:
		return &InvalidError{"on-error", "is for Lead"}
	}
	w.wait, w.maxHold = min(w.wait, forever), min(w.maxHold, forever)
	return nil
}

func checkTTL(ttl time.Duration) error {
	if ttl < minTTL || ttl > maxTTL {
		return &InvalidError{"ttl", "a time-to-live is from 100 ms to 24 h"}
	}
	return nil
}

func checkKey(key, field string) error {
	switch {
	case key == "":
		return &InvalidError{field, "a key must not be empty"}
	case !utf8.ValidString(key):
		return &InvalidError{field, "is no UTF-8"}
	case len(key) > longestKey:
		return &InvalidError{field, "has more than 512 bytes of UTF-8"}
	case strings.ContainsFunc(key, unicode.IsControl):
		return &InvalidError{field, "a key must not contain control characters"}
	}
	for _, segment := range strings.Split(key, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return &InvalidError{field, "a key must not contain an empty, `.` or `..` segment between its slashes"}
		}
	}
	return nil
}

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// A ClientOption says how to reach a cluster.
type ClientOption func(*settings)

type settings struct {
	credential, ca, cert, key string
	logger                    *slog.Logger
	hooks                     Hooks
	clock                     Clock
}

// WithCredential is the secret that shows the nodes who the client is. It is sent to nodes whose certificates are verified, and never over plain http.
func WithCredential(secret string) ClientOption { return func(s *settings) { s.credential = secret } }

// WithCA is the file with the authorities that sign the nodes' certificates, in PEM. By default, those that this system trusts.
func WithCA(file string) ClientOption { return func(s *settings) { s.ca = file } }

// WithCertificate has the files with the client's certificate and its private key, in PEM, if the nodes require one. They are read again when they
// have changed.
func WithCertificate(certFile, keyFile string) ClientOption {
	return func(s *settings) { s.cert, s.key = certFile, keyFile }
}

// WithLogger gets warnings: what no call can tell, as a renewal that the cluster refuses. By default, [slog.Default], as
// it is when the client is made.
func WithLogger(logger *slog.Logger) ClientOption { return func(s *settings) { s.logger = logger } }

// WithHooks tells what becomes of leases.
func WithHooks(hooks Hooks) ClientOption { return func(s *settings) { s.hooks = hooks } }

// WithClock has another clock than the machine's, for tests.
func WithClock(clock Clock) ClientOption { return func(s *settings) { s.clock = clock } }

// files are those of TLS; nil if the URLs are plain.
func (s *settings) files(urls []string, tell *teller) (*files, error) {
	if strings.ContainsFunc(s.credential, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
		return nil, &InvalidError{"credential", "must be visible ASCII characters without spaces"}
	}
	if (s.cert == "") != (s.key == "") {
		return nil, &InvalidError{"key", "a certificate and its key belong together"}
	}
	for _, url := range urls {
		if strings.HasPrefix(strings.ToLower(url), "https:") {
			own := &files{ca: s.ca, cert: s.cert, key: s.key, warn: tell.warn}
			own.stamp = own.look()
			var err error
			own.config, err = own.load()
			return own, err
		}
	}
	for _, given := range []struct{ field, value string }{{"credential", s.credential}, {"ca", s.ca}, {"cert", s.cert}} {
		if given.value != "" {
			return nil, &InvalidError{given.field, "is for https, and the URLs are plain"}
		}
	}
	return nil, nil
}
