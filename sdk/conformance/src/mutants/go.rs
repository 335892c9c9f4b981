//! Faults of the Go client. What a fault leaves unused must still compile.

use super::mutants;

mutants! {
    "fresh-id-for-each-attempt" "acquire.go"
        "	putAt, idle := time.Now(), a.attempts.idle\n"
        => "	a.leaseID = newID()\n	putAt, idle := time.Now(), a.attempts.idle\n"
        fails ["grant-answer-lost-found-by-repeat" "wait-sliced-keeping-place" "many-calls-answers-lost-found-by-repeat"];
    "refused-connection-is-doubt" "outcome.go"
        "	if failed.wasSent {\n"
        => "	if true {\n"
        fails ["refused-connection-is-unavailable"];
    "503-is-final" "outcome.go"
        "return outcome{is: notDone, response: response, why: problem.Detail}"
        => "return outcome{is: refused, response: response, problem: problem}"
        fails ["503-then-grant-elsewhere"];
    "doubt-is-forgotten" "attempts.go"
        "a.maybeDone = a.maybeDone || (got.is == ambiguous && !a.onlyReads)"
        => "a.maybeDone = false"
        fails ["504-then-503s-is-unknown-and-deleted" "refusal-after-doubt-still-deletes"];
    "proxy-errors-are-not-done" "outcome.go"
        "return outcome{is: ambiguous, response: response, why: \"a \" +"
        => "return outcome{is: notDone, response: response, why: \"a \" +"
        fails ["proxy-502-is-unknown" "html-200-is-unknown"];
    "half-an-answer-is-not-sent" "exchange.go"
        "		return nil, x.failed(ctx, fmt.Errorf(\"half a response: %w\", err))\n"
        => "		return nil, &failure{why: fmt.Sprintf(\"half a response: %v\", err)}\n"
        fails ["half-answer-is-unknown"];
    "follows-redirects" "exchange.go"
        "n.transport.RoundTrip(outgoing)"
        => "http.DefaultClient.Do(outgoing)"
        fails ["redirect-not-followed"];
    "held-names-nobody" "acquire.go"
        "return &HeldError{problem.holders, problem.waiters}"
        => "return &HeldError{}"
        fails ["held-names-holders"];
    "refusal-ends-doubt" "acquire.go"
        "	a.isArmed = a.attempts.maybeDone\n	switch {\n"
        => "	a.isArmed = false\n	switch {\n"
        fails ["refusal-after-doubt-still-deletes"];
    "429-is-asked-again-at-once" "acquire.go"
        "if sleep(ctx, got.wait) != nil {"
        => "if sleep(ctx, 0) != nil {"
        fails ["429-waits"];
    "stale-grant-is-handed-out" "lifetime.go"
        "return l.until.since(at) >= l.grant.ttl/2"
        => "return true"
        fails ["doubtful-grant-renewed-first" "waited-grant-renewed-first"];
    "keeps-no-place" "acquire.go"
        "KeepsIt: wait > 0,"
        => "KeepsIt: false,"
        fails ["wait-sliced-keeping-place"];
    "place-is-forgotten" "acquire.go"
        "			a.attempts.maybeDone = a.attempts.maybeDone || a.hasPlace\n"
        => ""
        fails ["place-then-no-leader-is-given-back"];
    "ended-id-is-final" "acquire.go"
        "(problem.reason == Expired || problem.reason == Abandoned)"
        => "false"
        fails ["id-ended-unseen-takes-new-id"];
    "revoked-is-asked-again" "acquire.go"
        "(problem.reason == Expired || problem.reason == Abandoned)"
        => "problem.reason != Released"
        fails ["revoked-not-retried"];
    "cancelled-is-not-released" "acquire.go"
        "	if a.isArmed {\n"
        => "	if false {\n"
        fails ["cancel-while-waiting-deletes" "cancel-racing-grant-deletes"];
    "leader-is-ignored" "nodes.go"
        "		n.preferred = leader\n"
        => ""
        fails ["leader-hint-followed"];
    "leader-is-believed" "nodes.go"
        "return n.add(parsed, false)"
        => "return n.add(parsed, true)"
        fails ["failed-hint-passed-over"];
    "waits-for-the-vanished" "exchange.go"
        "answersWithin = 1500 * time.Millisecond"
        => "answersWithin = 600 * time.Second"
        fails ["vanished-node-is-left"];
    "no-thread-may-hang-is-not-asked" "exchange.go"
        "threadsRun = \"1000\""
        => "threadsRun = \"\""
        fails ["node-with-a-hung-thread-is-left"];
    "wait-is-left-for-nothing" "attempts.go"
        "	a.left = append(a.left, cancel)\n"
        => "	cancel(nil)\n"
        fails ["wait-is-left-only-for-another"];
    "checks-no-key" "options.go"
        "	switch {\n	case key == \"\":"
        => "	switch {\n	case true:\n		return nil\n	case key == \"\":"
        fails ["invalid-key-sends-nothing"];
    "renews-each-lease-alone" "keeper.go"
        "mostRenewed = 1000"
        => "mostRenewed = 1"
        fails ["many-leases-one-renewal"];
    "late-confirmation-revives" "held.go"
        "	isNews := false\n	loss := h.update("
        => "	isNews := false\n	h.lifetime.Store(newLifetime(confirmation{c.grant, at}, true, forever))\n	loss := h.update("
        fails ["renew-answered-past-deadline-stays-lost"];
    "last-answer-counts" "lifetime.go"
        "if c.sent.Boot < l.lastSent.Boot {"
        => "if false {"
        fails ["older-answer-late-changes-nothing"];
    "hung-renewal-is-waited-for" "keeper.go"
        "limit := min(ttl/4, attemptLimit)"
        => "limit := 600 * time.Second"
        fails ["hung-renewal-tries-next-in-time"];
    "reported-end-is-ignored" "keeper.go"
        "			own.held.lose(problem.loss(), at)\n"
        => ""
        fails ["410-lost-with-reason-others-live"];
    "never-unsure" "lifetime.go"
        "		return Unsure\n"
        => "		return Held\n"
        fails ["unknown-then-held-again"];
    "state-of-the-last-timer" "lease.go"
        "	at := l.release.held.clock()\n	l.release.held.look(at)\n	return l.release.held.lifetime.Load().stateAt(at)\n"
        => "	if l.release.held.lifetime.Load().loss != \"\" {\n		return Lost\n	}\n	return Held\n"
        fails ["suspend-lost-before-timers"];
    "clock-of-the-processor" "system_linux.go"
        "	return Moment{boot, raw + boot - monotonic}, true\n"
        => "	cpu, _ := read(2)\n	return Moment{cpu, cpu + 0*(raw+boot+monotonic)}, true\n"
        fails ["stopped-process-lost-at-first-look"];
    "max-hold-is-ignored" "core.go"
        "newLifetime(granted, wanted.renews, wanted.maxHold)"
        => "newLifetime(granted, wanted.renews, forever)"
        fails ["max-hold-is-the-end"];
    "release-masks-the-body" "client.go"
        "		case !hasEnded || err != nil:\n"
        => "		case !hasEnded:\n"
        fails ["body-error-not-masked"];
    "held-for-no-time" "release.go"
        "if r.left(at) > 0 && "
        => "if false && "
        fails ["hold-at-least-outlives-the-body" "hold-at-least-by-release" "hold-at-least-by-close-and-drop"];
    "lost-is-not-released" "release.go"
        "	var err error\n	if successor != nil {"
        => "	if loss != \"\" {\n		return &LostError{loss}\n	}\n	var err error\n	if successor != nil {"
        fails ["release-after-expiry-raises-and-deletes"];
    "second-release-fails" "release.go"
        "	switch left, _ := r.begin(isReleased); left {\n"
        => "	if r.held.look(r.held.clock()) == Released {\n		return &LostError{Released}\n	}\n	switch left, _ := r.begin(isReleased); left {\n"
        fails ["double-release-harmless"];
    "unknown-release-is-dropped" "release.go"
        "		r.core.releaseInBackground(r.held.leaseID, r.held.keys())\n	}\n	if loss"
        => "	}\n	if loss"
        fails ["unknown-release-goes-on-and-close-waits"];
    "tokens-of-52-bits" "wire.go"
        "largest = 1 << 53"
        => "largest = 1 << 52"
        fails ["token-2^53-1-exact"];
    "key-is-not-encoded" "lease.go"
        "header.Set(\"Ringfence-Key\", escaped(key))"
        => "header.Set(\"Ringfence-Key\", key)"
        fails ["headers-encode-key-and-renewed-fence"];
    "asks-the-first-node-only" "nodes.go"
        "	if n.preferred.isUsable() {\n		return n.preferred\n	}\n	best := n.all[0]\n"
        => "	best := n.all[0]\n	if best != nil {\n		return best\n	}\n"
        fails ["leader-killed-lease-and-place-survive"];
    "outage-is-a-loss" "lease.go"
        "	} else {\n		return err\n	}\n	return l.Err()"
        => "	} else {\n		own.held.lose(Unconfirmed, own.held.clock())\n	}\n	return l.Err()"
        fails ["all-nodes-killed-lease-survives"];
    "waiters-give-up-as-others" "acquire.go"
        "isToRetry := a.hasWaited && a.left() > 0"
        => "isToRetry := false"
        fails ["waiter-survives-an-outage"];
    "believes-for-too-long" "lifetime.go"
        "return c.sent.after(expires - expires/clockDrift - timerLate)"
        => "return c.sent.after(4*expires - expires/clockDrift - timerLate)"
        fails ["cut-off-holder-stops-before-successor-and-guard-rejects-it"];
    "credential-over-http" "options.go"
        "		if given.value != \"\" {\n"
        => "		if false {\n"
        fails ["credential-only-over-verified-https"];
    "verifies-nobody" "exchange.go"
        "	config.ServerName = n.target.host\n"
        => "	config.InsecureSkipVerify = true\n"
        fails ["wrong-authority-is-unavailable-and-says-why"];
    "adopted-is-not-kept" "adopt.go"
        "	adopted, err := c.renew(ctx, wanted.leaseID, 0, false)\n"
        => "	wanted.renews = false\n	adopted, err := c.renew(ctx, wanted.leaseID, 0, false)\n"
        fails ["adopted-lease-renews-and-is-released-once"];
    "one-result-for-all" "batch.go"
        "part.status, part.body = results[i].Status, results[i].Body\n"
        => "part.status, part.body = results[i].Status, results[i].Body\n		if own, err := readGrant(results[0].Body, calls[0].asked.path[len(\"/v1/leases/\"):]); err == nil && part.status < 202 {\n			part.body = encode(map[string]any{\"lease_id\": call.asked.path[len(\"/v1/leases/\"):], \"state\": \"granted\", \"token\": own.token, \"ttl_ms\": own.ttl.Milliseconds(), \"expires_in_ms\": own.expiresIn.Milliseconds(), \"keys\": []map[string]any{{\"key\": own.keys[0].key, \"fence\": own.keys[0].fence}}})\n		}\n"
        fails ["many-calls-each-their-own-answer"];
    "one-takes-all-along" "batch.go"
        "	if call.group != nil {\n		if call.group.left--; call.group.left == 0 {"
        => "	for _, other := range b.queue {\n		if other != call {\n			other.answered <- answer{nil, context.Canceled}\n		}\n	}\n	b.queue = nil\n	if call.group != nil {\n		if call.group.left--; true {"
        fails ["many-calls-one-cancelled"];
    "one-refusal-is-that-of-all" "batch.go"
        "	for i, call := range calls {\n		part := *whole\n"
        => "	for i := range results {\n		if results[i].Status == http.StatusConflict {\n			results[0], results[len(results)-1] = results[i], results[i]\n		}\n	}\n	for i, call := range calls {\n		part := *whole\n"
        fails ["many-calls-half-refused"];
    "a-place-is-no-grant" "acquire.go"
        "			if a.left() == 0 {\n				return confirmation{}, a.leave(ctx)"
        => "			if true {\n				return confirmation{}, a.leave(ctx)"
        fails ["many-calls-half-wait"];
    "loss-under-work-is-success" "client.go"
        "		case lossIn(released) != \"\":\n			err = released\n"
        => "		case released == nil:\n"
        fails ["block-left-elsewhere-is-released" "loss-swallowed-is-still-lost"];
    "dropped-is-kept" "release.go"
        "	if _, isOwn := r.begin(isTaken); isOwn && isLive {\n"
        => "	if isOwn := false; isOwn && isLive {\n"
        fails ["dropped-handle-is-released"];
    "dropped-in-silence" "release.go"
        "isOwn && isLive {"
        => "isOwn && !isLive {"
        fails ["dropped-handle-is-reported"];
    "hooks-on-the-goroutine-that-renews" "hooks.go"
        "	t.enqueue(true, hook)\n"
        => "	hook()\n"
        fails ["on-lost-blocks-others-are-renewed"];
    "callback-in-place-of-the-context" "held.go"
        "			h.cancel(&LostError{after.loss})\n"
        => ""
        fails ["on-lost-raises-body-is-stopped"];
    "ended-once-by-both-clocks" "clock.go"
        "return m.Boot >= other.Boot || m.Raw >= other.Raw"
        => "return m.Boot >= other.Boot && m.Raw >= other.Raw"
        fails ["ended-once-by-either-clock"];
    "every-error-is-survived" "client.go"
        "if !(isStale || loss != \"\") || own.wasTaken()"
        => "_ = isStale\n		if own.wasTaken()"
        fails ["lead-ends-with-its-work"];
    "errors-after-a-loss-end-the-race" "client.go"
        "if !(isStale || loss != \"\") || own.wasTaken()"
        => "if !isStale || own.wasTaken()"
        fails ["lead-goes-on-after-a-loss"];
    "stale-ends-the-race" "client.go"
        "isStale := errors.As(err, &stale)"
        => "isStale := errors.As(err, &stale) && false"
        fails ["lead-goes-on-after-stale"];
    "stale-and-lost-ends-the-race" "client.go"
        "if !(isStale || loss != \"\") || own.wasTaken()"
        => "if isStale == (loss != \"\") || own.wasTaken()"
        fails ["lead-goes-on-after-stale-and-a-late-loss"];
    "deadline-is-ignored" "client.go"
        "	granted, err := c.core.acquire(called, wanted)\n"
        => "	granted, err := c.core.acquire(context.WithoutCancel(called), wanted)\n"
        fails ["deadline-bounds-acquire-and-gives-back"];
    "wait-and-deadline-are-one" "errors.go"
        "return &TimedOutError{Reason: \"timeout\"}"
        => "return &TimedOutError{Reason: \"wait\"}"
        fails ["deadline-and-wait-say-which-was-over"];
    "release-is-not-bounded" "release.go"
        "	case <-ctx.Done():\n		return ended(ctx)\n"
        => "	case <-r.core.ends.Done():\n		return ended(ctx)\n"
        fails ["deadline-bounds-renew-and-release"];
    "outage-ends-the-hold" "release.go"
        "		r.core.background(r.held.leaseID, r.held.keys(), func() error { return r.keepLater(successor) })\n"
        => "		r.core.keeper.remove(successor)\n"
        fails ["hold-at-least-in-an-outage"];
    "close-releases-nothing" "core.go"
        "	for _, one := range leases {\n		one.begin(isTaken)\n"
        => "	for _, one := range leases[:0] {\n		one.begin(isTaken)\n"
        fails ["close-releases-what-is-held" "close-tells-whoever-works-under-a-lease"];
    "close-says-nothing" "core.go"
        "		c.closedErr = &LeftError{left}\n"
        => ""
        fails ["close-within-says-what-it-left" "close-by-itself-is-bounded"];
}
