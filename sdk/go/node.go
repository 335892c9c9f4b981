package ringfence

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// A node of the cluster, by its URL. The fields below nodes are guarded by its mutex.
type node struct {
	// url is its name in errors, and begins that of each request.
	url          string
	address      string
	target       *target
	files        *files
	credential   string
	clock        Clock
	transport    *http.Transport
	pulse        *pulse
	batcher      *batcher
	isConfigured bool

	nodes    *nodes
	failedAt time.Time
	// silences is how many times in a row it did not answer.
	silences int
	// isMet: it has answered a probe since it was learned and failed, or answered for another cluster.
	isMet bool
	// meeting is a probe that is under way.
	meeting *meeting
	// isProven: its last outcome was definite.
	isProven bool
}

type meeting struct {
	done chan struct{}
	err  error
}

// recovered forgets its failures.
func (one *node) recovered() {
	one.failedAt, one.silences, one.isMet = time.Time{}, 0, true
}

func (one *node) isHealthy() bool {
	times := min(max(one.silences-1, 0), doublings)
	return one.failedAt.IsZero() || time.Since(one.failedAt) > avoided<<times
}

func (one *node) isUsable() bool {
	return one.isMet && one.isHealthy() && one.target.isResolved()
}

// addressOf is the host and the port of a node.
func addressOf(parsed *url.URL) string {
	return strings.ToLower(parsed.Hostname()) + " " + portOf(parsed)
}

func portOf(parsed *url.URL) string {
	switch {
	case parsed.Port() != "":
		return parsed.Port()
	case parsed.Scheme == "https":
		return "443"
	default:
		return "80"
	}
}

func parseURL(text, field string, isEncrypted bool) (*url.URL, error) {
	parsed, err := url.Parse(text)
	switch {
	case err != nil || parsed.Host == "" || parsed.Hostname() == "":
		return nil, &InvalidError{field, fmt.Sprintf("%q is no URL of the form https://host:port", text)}
	case parsed.Scheme != "https" && parsed.Scheme != "http":
		return nil, &InvalidError{field, fmt.Sprintf("%q does not begin with https:// or http://", text)}
	case (parsed.Scheme == "https") != isEncrypted && isEncrypted:
		return nil, &InvalidError{field, fmt.Sprintf("%q is plain: with TLS, all URLs begin with https://", text)}
	case (parsed.Scheme == "https") != isEncrypted:
		return nil, &InvalidError{field, fmt.Sprintf("%q: other URLs are plain, and all must be, or none", text)}
	case parsed.User != nil || strings.Trim(parsed.Path, "/") != "" || parsed.RawQuery != "" || parsed.Fragment != "":
		return nil, &InvalidError{field, "a node's URL is of the form https://host:port"}
	}
	return parsed, nil
}
