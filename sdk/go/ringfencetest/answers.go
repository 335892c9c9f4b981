package ringfencetest

import (
	"fmt"
	"slices"
	"strings"
)

type object = map[string]any

// gone is told to who asks for a lease that has ended.
func gone(how string) reply {
	if how == "timed-out" {
		return problem("wait-timeout", 409, "the wait ended before the keys were free: use a new lease_id", nil)
	}
	return problem("lease-gone", 410, fmt.Sprintf("the lease has ended (%s): use a new lease_id", how), object{"reason": how})
}

// problem is what a node answers if it does not do it.
func problem(name string, status int, detail string, more object) reply {
	body := object{"type": "urn:ringfence:problem:" + name, "title": name, "status": status, "detail": detail}
	for field, value := range more {
		body[field] = value
	}
	return reply{status, body}
}

func (t *table) granted(one *lease) object {
	var keys []object
	for _, c := range one.claims {
		keys = append(keys, object{"key": c.Key, "mode": c.Mode, "limit": c.Limit, "fence": t.fence(c.Key)})
	}
	return object{
		"lease_id": one.id, "state": "granted", "token": one.token, "holder": one.holder,
		"ttl_ms": one.ttl.Milliseconds(), "expires_in_ms": t.left(one), "keys": keys,
	}
}

func (t *table) waiting(one *lease) reply {
	return reply{202, object{"lease_id": one.id, "state": "waiting", "ahead": 0}}
}

func (t *table) held(one *lease) reply {
	holders, waiters := []object{}, 0
	for _, c := range one.claims {
		taken := t.holders(c.Key)
		waiters = max(waiters, len(t.locks[c.Key])-len(taken))
		if goesWith(t.locks[c.Key], c) {
			continue
		}
		for _, holder := range taken {
			holders = append(holders, t.holder(holder, c.Key))
		}
	}
	return problem("held", 409, "another lease holds a key: set wait_ms to wait for it",
		object{"lease_id": one.id, "holders": holders, "waiters": waiters})
}

func (t *table) holder(one *lease, key string) object {
	c := one.claim(key)
	metadata := one.metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	return object{
		"key": key, "token": one.token, "holder": one.holder, "mode": c.Mode, "limit": c.Limit,
		"ttl_ms": one.ttl.Milliseconds(), "expires_in_ms": t.left(one), "metadata": metadata,
	}
}

// key is the public view of a key.
func (t *table) key(key string) object {
	holders, waiters := []object{}, []object{}
	for _, one := range t.holders(key) {
		holders = append(holders, t.holder(one, key))
	}
	for _, one := range t.locks[key] {
		if one.token == 0 {
			waiters = append(waiters, object{"holder": one.holder, "mode": one.claim(key).Mode, "waited_ms": (t.at - one.since).Milliseconds()})
		}
	}
	return object{"key": key, "fence": t.fence(key), "revision": t.number, "holders": holders, "waiters": waiters}
}

// keys are the views of all keys that begin so.
func (t *table) keys(prefix string) []object {
	var names []string
	for key := range t.locks {
		if strings.HasPrefix(key, prefix) {
			names = append(names, key)
		}
	}
	slices.Sort(names)
	views := []object{}
	for _, key := range names {
		views = append(views, t.key(key))
	}
	return views
}

// status is what a node says of itself.
func (t *table) status(id string) object {
	live := 0
	for _, one := range t.leases {
		if one.token != 0 {
			live++
		}
	}
	return object{
		"cluster_id": id, "node_id": 1, "role": "leader", "term": 1, "leader": 1, "members": object{}, "version": "fake",
		"last_log_index": nil, "committed_index": nil, "applied_index": nil, "mirror": nil,
		"live_leases": live, "waiters": len(t.leases) - live, "revision": t.number, "at_ms": 0,
	}
}
