package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	ringfence "ringfence.dev/sdk/go"
)

// A call is a request. Each operation has fields of its own.
type call struct {
	ID          int               `json:"id"`
	Op          string            `json:"op"`
	Client      string            `json:"client"`
	Lease       string            `json:"lease"`
	URLs        []string          `json:"urls"`
	Credential  string            `json:"credential"`
	CA          string            `json:"ca"`
	Cert        string            `json:"cert"`
	Key         string            `json:"key"`
	Clock       string            `json:"clock"`
	Keys        []json.RawMessage `json:"keys"`
	TTL         int64             `json:"ttl_ms"`
	Wait        *int64            `json:"wait_ms"`
	HoldAtLeast *int64            `json:"hold_at_least_ms"`
	MaxHold     *int64            `json:"max_hold_ms"`
	Deadline    *int64            `json:"deadline_ms"`
	Within      *int64            `json:"within_ms"`
	Metadata    map[string]string `json:"metadata"`
	Holder      string            `json:"holder"`
	OnLost      string            `json:"on_lost"`
	LeaseID     string            `json:"lease_id"`
	Target      int               `json:"target"`
	Body        string            `json:"body"`
	Millis      int64             `json:"ms"`
	Advance     json.RawMessage   `json:"advance_ms"`
	Requests    []json.RawMessage `json:"requests"`
}

func claims(one call) []ringfence.Claim {
	var all []ringfence.Claim
	for _, text := range one.Keys {
		var claim struct {
			Key    string
			Shared bool
			Limit  int
		}
		if json.Unmarshal(text, &claim.Key) != nil {
			_ = json.Unmarshal(text, &claim)
		}
		all = append(all, ringfence.Claim(claim))
	}
	return all
}

func options(one call) []ringfence.Option {
	all := []ringfence.Option{ringfence.TTL(time.Duration(one.TTL) * time.Millisecond)}
	if one.Op == "try" {
		all = append(all, ringfence.Wait(0))
	} else if one.Wait != nil {
		all = append(all, ringfence.Wait(ms(one.Wait)))
	}
	if one.HoldAtLeast != nil {
		all = append(all, ringfence.HoldAtLeast(ms(one.HoldAtLeast)))
	}
	if one.MaxHold != nil {
		all = append(all, ringfence.MaxHold(ms(one.MaxHold)))
	}
	return append(all, ringfence.Holder(one.Holder), ringfence.Metadata(one.Metadata))
}

func ms(n *int64) time.Duration {
	return time.Duration(*n) * time.Millisecond
}

func problem(err error) object {
	answer := object{"kind": "Internal", "reason": nil, "lease_id": nil, "retry_after_ms": nil, "holders": nil, "message": err.Error()}
	var (
		lost     *ringfence.LostError
		timedOut *ringfence.TimedOutError
		unknown  *ringfence.UnknownError
		rejected *ringfence.RejectedError
		held     *ringfence.HeldError
	)
	switch {
	case errors.As(err, &lost):
		answer["kind"], answer["reason"] = "Lost", lost.Reason
	case errors.As(err, &timedOut):
		answer["kind"], answer["reason"] = "TimedOut", timedOut.Reason
	case errors.As(err, &unknown):
		answer["kind"], answer["lease_id"] = "Unknown", unknown.LeaseID
	case errors.As(err, &rejected):
		answer["kind"], answer["retry_after_ms"] = "Rejected", rejected.RetryAfter.Milliseconds()
	case errors.As(err, &held):
		var holders []object
		for _, one := range held.Holders {
			holders = append(holders, object{"key": one.Key, "token": one.Token, "holder": one.Label, "mode": one.Mode, "expires_in_ms": one.ExpiresIn.Milliseconds()})
		}
		answer["kind"], answer["holders"] = "Held", holders
	case errors.Is(err, context.Canceled):
		answer["kind"] = "Cancelled"
	default:
		answer["kind"] = plain(err)
	}
	return answer
}

func plain(err error) string {
	var (
		invalid      *ringfence.InvalidError
		unavailable  *ringfence.UnavailableError
		unauthorized *ringfence.UnauthorizedError
		stale        *ringfence.StaleError
	)
	switch {
	case errors.Is(err, errBody):
		return "Body"
	case errors.Is(err, ringfence.ErrClosed):
		return "Closed"
	case errors.As(err, &invalid):
		return "Invalid"
	case errors.As(err, &unavailable):
		return "Unavailable"
	case errors.As(err, &unauthorized):
		return "Unauthorized"
	case errors.As(err, &stale):
		return "Stale"
	default:
		return "Internal"
	}
}
