package ringfence

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"time"
)

const (
	// avoided is how long a node that failed is avoided. Others may name it as the leader for about a second after its death.
	avoided = 3 * time.Second
	// doublings is how often that time doubles while the node does not answer.
	doublings = 5
	// lookupLimit is how long a call waits until the addresses of a node are known.
	lookupLimit = 15 * time.Second
	// mostLearned are the nodes that are remembered beyond the configured ones: a cluster has no more.
	mostLearned = 16
	// mostAlone is how many calls that are sent alone have a connection at once, and mostWaits how many waits in the queue.
	mostAlone = 24
	mostWaits = 32
)

// nodes decides which node to ask next.
//
// Every node takes every request, but followers forward it. So the client asks the node that the last response named as the leader, and otherwise the
// one that responded last. It avoids a node that failed for a while: twice as long each time that it does not answer at all.
//
// A URL may lead to another cluster: a tunnel or a port mapping leads elsewhere. Two clusters grant the same key at once. So a client belongs for
// ever to the cluster of its first definite response, and the response of another cluster is none. A node that gave one, or whose URL was learned,
// which may lead nowhere, is used once it has *met* the client: it has answered a probe, and not for another cluster.
type nodes struct {
	files      *files
	credential string
	clock      Clock
	// ends is the client's end.
	ends context.Context
	// alone are calls that are sent alone, and waits those that wait in the queue.
	alone, waits *turns

	mu sync.Mutex
	// all are the configured nodes, then those learned from responses.
	all        []*node
	configured int
	preferred  *node
	leader     *node
	// named is the leader's URL in the last response, and leader its node.
	named string
	// cluster is the id of the client's cluster.
	cluster string
}

func newNodes(ends context.Context, urls []string, files *files, credential string, clock Clock) (*nodes, error) {
	n := &nodes{files: files, credential: credential, clock: clock, ends: ends, alone: newTurns(mostAlone), waits: newTurns(mostWaits)}
	for i, text := range urls {
		parsed, err := parseURL(text, fmt.Sprintf("urls[%d]", i), files != nil)
		if err != nil {
			return nil, err
		}
		if n.find(addressOf(parsed)) == nil {
			n.add(parsed, true)
		}
	}
	if len(n.all) == 0 {
		return nil, &InvalidError{"urls", "a client needs the URL of at least one node"}
	}
	n.configured = len(n.all)
	n.preferred = n.all[0]
	return n, nil
}

// best is the node to ask: the preferred one unless it failed lately, else the configured one that failed longest ago.
func (n *nodes) best() *node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.bestLocked()
}

func (n *nodes) bestLocked() *node {
	if n.preferred.isUsable() {
		return n.preferred
	}
	best := n.all[0]
	for _, other := range n.all[1:n.configured] {
		isResolved := other.target.isResolved()
		if isResolved != best.target.isResolved() {
			if isResolved {
				best = other
			}
		} else if other.failedAt.Before(best.failedAt) {
			best = other
		}
	}
	return best
}

// hasAnother says whether another node is asked if the best one fails.
func (n *nodes) hasAnother() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.configured > 1 || n.bestLocked() != n.all[0]
}

func (n *nodes) hasUsableBesides(one *node) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, other := range n.all {
		if other != one && other.isUsable() {
			return true
		}
	}
	return false
}

// list is all nodes, or those that were configured.
func (n *nodes) list(isAll bool) []*node {
	n.mu.Lock()
	defer n.mu.Unlock()
	if isAll {
		return append([]*node(nil), n.all...)
	}
	return n.all[:n.configured:n.configured]
}

// resolve waits until a node needs no lookup before a connection. If lookups fail, the next attempt says why.
func (n *nodes) resolve(ctx context.Context) error {
	if n.best().target.isResolved() {
		return nil
	}
	all := n.list(true)
	over := time.NewTimer(lookupLimit)
	defer over.Stop()
	resolved := make(chan struct{}, len(all))
	pending := 0
	for _, one := range all {
		if lookup := one.target.resolve(); lookup != nil {
			pending++
			// It ends with the lookup.
			go func() {
				<-lookup.done
				resolved <- struct{}{}
			}()
		}
	}
	for ; pending > 0 && !n.best().target.isResolved(); pending-- {
		select {
		case <-resolved:
		case <-over.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// checkCluster checks for which cluster a node has responded. If it is another than the client's, the response is none, and the failure says why. The
// first response that is definite decides which cluster that is.
func (n *nodes) checkCluster(one *node, cluster string, isDefinite bool) *failure {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case cluster == "" || cluster == n.cluster:
		return nil
	case n.cluster == "":
		if isDefinite {
			n.cluster = cluster
		}
		return nil
	}
	one.isMet = false
	return &failure{why: fmt.Sprintf("%s answers for cluster %q, this client belongs to cluster %q: if that was replaced, make a new client",
		one.url, cluster, n.cluster)}
}

// responded records a definite response, and the leader's URL in it. The leader, else this node, is preferred from now on.
func (n *nodes) responded(one *node, leaderURL string) {
	n.mu.Lock()
	one.recovered()
	one.isProven = true
	if leaderURL != n.named || n.leader == nil {
		n.named, n.leader = leaderURL, n.learn(leaderURL)
	}
	leader := n.leader
	n.preferred = one
	isToMeet := false
	if leader != nil && leader.isMet {
		n.preferred = leader
	} else if leader != nil && leader.isHealthy() {
		// Until it answers. A leader that cannot be reached from here is not asked.
		leader.failedAt = time.Now()
		leader.silences++
		isToMeet = true
	}
	n.mu.Unlock()
	if isToMeet {
		n.meet(leader)
	}
}

// failed records that a node gave no definite response. silentSince is when it was asked, if it gave none at all.
func (n *nodes) failed(one *node, silentSince time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// All that were sent before the first of them failed show one and the same outage.
	if silentSince.IsZero() {
		one.silences = 0
	} else if one.failedAt.Before(silentSince) {
		one.silences++
	}
	one.failedAt = time.Now()
	one.isMet = one.isMet && one.isConfigured
	one.isProven = false
}

// met waits for a sign of life of a node that has not met the client.
func (n *nodes) met(ctx context.Context, one *node) error {
	n.mu.Lock()
	isMet := one.isMet
	n.mu.Unlock()
	if isMet {
		return nil
	}
	meeting := n.meet(one)
	select {
	case <-meeting.done:
		return meeting.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// meet asks a node for a sign of life of the client's cluster. All that wait for one share it.
func (n *nodes) meet(one *node) *meeting {
	n.mu.Lock()
	defer n.mu.Unlock()
	if one.meeting == nil {
		one.meeting = &meeting{done: make(chan struct{})}
		go n.probe(one, one.meeting)
	}
	return one.meeting
}

func (n *nodes) probe(one *node, own *meeting) {
	answered, err := one.probe(n.ends)
	if err == nil {
		if stranger := n.checkCluster(one, answered.cluster, false); stranger != nil {
			err = stranger
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		one.recovered()
		if one == n.leader {
			n.preferred = one
		}
	}
	own.err = err
	one.meeting = nil
	close(own.done)
}

func (n *nodes) isProven(one *node) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return one.isProven
}

// end closes connections that are not in use, and asks for no more signs of life.
func (n *nodes) end() {
	for _, one := range n.list(true) {
		one.pulse.end()
		one.transport.CloseIdleConnections()
	}
}

func (n *nodes) find(address string) *node {
	for _, one := range n.all {
		if one.address == address {
			return one
		}
	}
	return nil
}

// learn finds the node at this URL, which may be new. With https, a new one is trusted only if the client was given the authority: any site has a
// certificate that this system trusts.
func (n *nodes) learn(text string) *node {
	isEncrypted := n.files != nil
	parsed, err := parseURL(text, "", isEncrypted)
	if text == "" || err != nil {
		return nil
	}
	known := n.find(addressOf(parsed))
	mayLearn := !isEncrypted || n.files.ca != ""
	if known != nil || !mayLearn || len(n.all) >= n.configured+mostLearned {
		return known
	}
	return n.add(parsed, false)
}

func (n *nodes) add(parsed *url.URL, isConfigured bool) *node {
	one := &node{
		url: parsed.Scheme + "://" + parsed.Host, address: addressOf(parsed),
		target: newTarget(n.ends, parsed.Hostname(), portOf(parsed)),
		files:  n.files, credential: n.credential, clock: n.clock,
		isConfigured: isConfigured, isMet: isConfigured, nodes: n,
	}
	one.transport = newTransport(one)
	one.pulse = newPulse(n.ends, func() error {
		_, err := one.probe(n.ends)
		return err
	})
	// A call whose own time is over does not report a silent node, so the pulse does.
	one.pulse.onSilent = func(since time.Time) {
		n.mu.Lock()
		isHealthy := one.isHealthy()
		n.mu.Unlock()
		if isHealthy && n.hasUsableBesides(one) {
			n.failed(one, since)
		}
	}
	one.batcher = newBatcher(one)
	n.all = append(n.all, one)
	return one
}
