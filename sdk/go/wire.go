package ringfence

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// largest is the largest fence. Tokens have 53 bits, so that every language can read them.
const largest = 1 << 53

// longestDetail is how many bytes of a detail are of use.
const longestDetail = 1 << 10

const urn = "urn:ringfence:problem:"

// A Problem is why a node refused a request (RFC 9457).
type Problem struct {
	// Name is as in "held".
	Name   string
	Status int
	Detail string

	reason  LossReason
	holders []HolderView
	waiters int
}

// A grant is a granted lease. Everything is checked before it is believed: something in between may have answered.
type grant struct {
	leaseID   string
	token     uint64
	ttl       time.Duration
	expiresIn time.Duration
	keys      []grantedKey
}

type grantedKey struct {
	key string
	// fence is the lowest token that may still be live on the key.
	fence uint64
}

func (g *grant) names() []string {
	names := make([]string, len(g.keys))
	for i, key := range g.keys {
		names[i] = key.key
	}
	return names
}

// An integer is a number from 0 to 2^53.
type integer struct {
	value uint64
	isSet bool
}

func (n *integer) UnmarshalJSON(text []byte) error {
	if err := json.Unmarshal(text, &n.value); err != nil {
		return err
	}
	n.isSet = string(text) != "null" && n.value <= largest
	return nil
}

func (n integer) duration() time.Duration {
	// The longest time-to-live is a day.
	return time.Duration(min(n.value, 1<<40)) * time.Millisecond
}

func readGrant(body []byte, leaseID string) (grant, error) {
	var given struct {
		LeaseID   string  `json:"lease_id"`
		State     string  `json:"state"`
		Token     integer `json:"token"`
		TTL       integer `json:"ttl_ms"`
		ExpiresIn integer `json:"expires_in_ms"`
		Keys      []struct {
			Key   string  `json:"key"`
			Fence integer `json:"fence"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(body, &given); err != nil {
		return grant{}, err
	}
	isWhole := given.Token.isSet && given.TTL.isSet && given.ExpiresIn.isSet && len(given.Keys) > 0
	if given.State != "granted" || given.LeaseID != leaseID || !isWhole {
		return grant{}, errors.New("it is no grant of this lease")
	}
	keys := make([]grantedKey, len(given.Keys))
	for i, key := range given.Keys {
		if key.Key == "" || !key.Fence.isSet {
			return grant{}, errors.New("a key of the grant has no name or no fence")
		}
		keys[i] = grantedKey{key.Key, key.Fence.value}
	}
	return grant{leaseID, given.Token.value, given.TTL.duration(), given.ExpiresIn.duration(), keys}, nil
}

// readWaiting checks that a 202 says that this lease is in the queue.
func readWaiting(body []byte, leaseID string) error {
	var given struct {
		LeaseID string `json:"lease_id"`
		State   string `json:"state"`
	}
	if err := json.Unmarshal(body, &given); err != nil {
		return err
	}
	if given.State != "waiting" || given.LeaseID != leaseID {
		return errors.New("it is not about this lease")
	}
	return nil
}

// A result is that of one operation of several.
type result struct {
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"`
}

// readResults reads the results of so many operations.
func readResults(body []byte, count int) ([]result, error) {
	var given struct {
		Results []result `json:"results"`
	}
	if err := json.Unmarshal(body, &given); err != nil {
		return nil, err
	}
	if len(given.Results) != count {
		return nil, fmt.Errorf("%d results of %d operations", len(given.Results), count)
	}
	return given.Results, nil
}

// A renewal is the result of the renewal of one lease of several: a grant, or a problem.
type renewal struct {
	grant   grant
	problem *Problem
}

func readRenewals(body []byte, leaseIDs []string) ([]renewal, error) {
	results, err := readResults(body, len(leaseIDs))
	if err != nil {
		return nil, err
	}
	renewals := make([]renewal, len(results))
	for i, result := range results {
		if problem := readProblem(result.Body, result.Status); problem != nil {
			renewals[i].problem = problem
		} else if renewals[i].grant, err = readGrant(result.Body, leaseIDs[i]); err != nil {
			return nil, err
		}
	}
	return renewals, nil
}

// A holding is who has a key.
type holding struct {
	token uint64
	label string
}

func readKey(body []byte, key string) ([]holding, error) {
	var given struct {
		Key     string `json:"key"`
		Holders []struct {
			Token  integer `json:"token"`
			Holder string  `json:"holder"`
		} `json:"holders"`
	}
	if err := json.Unmarshal(body, &given); err != nil {
		return nil, err
	}
	if given.Key != key {
		return nil, errors.New("it is another key")
	}
	var holders []holding
	for _, holder := range given.Holders {
		if !holder.Token.isSet {
			return nil, errors.New("a holder has no token")
		}
		holders = append(holders, holding{holder.Token.value, holder.Holder})
	}
	return holders, nil
}

// readProblem is the problem that a node describes in a response of this status; nil if no node wrote it.
func readProblem(body []byte, status int) *Problem {
	var given struct {
		Type    string `json:"type"`
		Status  int    `json:"status"`
		Detail  string `json:"detail"`
		Reason  string `json:"reason"`
		Waiters int    `json:"waiters"`
		Holders []struct {
			Key       string  `json:"key"`
			Token     integer `json:"token"`
			Holder    string  `json:"holder"`
			Mode      string  `json:"mode"`
			ExpiresIn integer `json:"expires_in_ms"`
		} `json:"holders"`
	}
	if json.Unmarshal(body, &given) != nil || given.Status != status {
		return nil
	}
	name, isOurs := strings.CutPrefix(given.Type, urn)
	if !isOurs {
		return nil
	}
	problem := &Problem{Name: name, Status: status, Detail: shown(given.Detail), reason: LossReason(given.Reason), waiters: given.Waiters}
	for _, one := range given.Holders {
		problem.holders = append(problem.holders, HolderView{one.Key, one.Token.value, one.Holder, one.Mode, one.ExpiresIn.duration()})
	}
	return problem
}

// shown is what errors and logs may have of a text that something in between may have written.
func shown(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text[:min(len(text), longestDetail)])
}

// isDenial says whether the problem is that something was not allowed, whatever it was.
func (p *Problem) isDenial() bool {
	return p.Name == "unauthenticated" || p.Name == "forbidden"
}

// loss is the loss that the problem reports, if it reports one.
func (p *Problem) loss() LossReason {
	switch p.Name {
	case "unknown-lease":
		return Forgotten
	case "lease-gone":
		switch p.reason {
		case Released, Expired, Revoked, Abandoned:
			return p.reason
		}
		return Forgotten
	}
	return ""
}
