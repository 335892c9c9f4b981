//! Faults of the Python client.

use super::mutants;

mutants! {
    "fresh-id-for-each-attempt" "_acquire.py"
        "request = self._request(wait_ms, may_wait)"
        => "self._lease_id = str(uuid.uuid4())\n        request = self._request(wait_ms, may_wait)"
        fails ["grant-answer-lost-found-by-repeat" "wait-sliced-keeping-place" "many-calls-answers-lost-found-by-repeat"];
    "refused-connection-is-doubt" "_cluster.py"
        "outcome, silent_since = NotDone(str(error)), asked"
        => "outcome, silent_since = Ambiguous(str(error)), asked"
        fails ["refused-connection-is-unavailable"];
    "503-is-final" "_outcome.py"
        "if refused.kind == \"unavailable\":\n        # It asks for a second, and most elections take less.\n        return NotDone(detail)"
        => "if refused.kind == \"unavailable\":\n        return refused"
        fails ["503-then-grant-elsewhere"];
    "doubt-is-forgotten" "_cluster.py"
        "        if isinstance(outcome, Ambiguous):\n            self.maybe_done = True"
        => "        if isinstance(outcome, Ambiguous):\n            self.maybe_done = False"
        fails ["504-then-503s-is-unknown-and-deleted" "refusal-after-doubt-still-deletes"];
    "proxy-errors-are-not-done" "_outcome.py"
        "return Ambiguous(f\"a {status} that no node wrote\")"
        => "return NotDone(f\"a {status} that no node wrote\")"
        fails ["proxy-502-is-unknown"];
    "half-an-answer-is-not-sent" "_server.py"
        "raise Broken(f\"{self.url}: the connection was closed before the end of the response\")"
        => "raise NotSent(f\"{self.url}: the connection was closed before the end of the response\")"
        fails ["half-answer-is-unknown"];
    "unreadable-200-is-not-done" "_outcome.py"
        "return Ambiguous(f\"unreadable {status}: {error}\")"
        => "return NotDone(f\"unreadable {status}: {error}\")"
        fails ["html-200-is-unknown"];
    "follows-redirects" "_cluster.py"
        "            if response is not None:\n                self._odd +="
        => "            if response is not None and response.status == 307:\n                there = Entry(Url.parse(response.headers[\"location\"].split(\"/v1\")[0]), is_met=True)\n                response = await self._cluster.server(there).send(request, seconds, has_another)\n            if response is not None:\n                self._odd +="
        fails ["redirect-not-followed"];
    "held-names-nobody" "_acquire.py"
        "raise Held(*_wire.blockers(refused.problem))"
        => "raise Held([], 0)"
        fails ["held-names-holders"];
    "refusal-ends-doubt" "_acquire.py"
        "            self._attempts.maybe_done = True\n        self._is_armed = self._attempts.maybe_done"
        => "            self._attempts.maybe_done = True\n        self._is_armed = False"
        fails ["refusal-after-doubt-still-deletes"];
    "429-is-asked-again-at-once" "_acquire.py"
        "raise _UnusedError(refused.retry_after or 1.0)"
        => "raise _UnusedError(0.0)"
        fails ["429-waits"];
    "stale-grant-is-handed-out" "_acquire.py"
        "if confirmation.is_fresh(self._cluster.clock()):"
        => "if True:"
        fails ["doubtful-grant-renewed-first" "waited-grant-renewed-first"];
    "keeps-no-place" "_wire.py"
        "{\"true\" if wait_ms > 0 else \"false\"}"
        => "false"
        fails ["wait-sliced-keeping-place"];
    "place-is-forgotten" "_acquire.py"
        "self._attempts.maybe_done = self._attempts.maybe_done or self._has_place"
        => "pass"
        fails ["place-then-no-leader-is-given-back"];
    "ended-id-is-final" "_acquire.py"
        "if refused.loss in (\"expired\", \"abandoned\"):"
        => "if refused.loss == \"nothing\":"
        fails ["id-ended-unseen-takes-new-id"];
    "revoked-is-asked-again" "_acquire.py"
        "if refused.loss in (\"expired\", \"abandoned\"):"
        => "if refused.loss in (\"expired\", \"abandoned\", \"revoked\"):"
        fails ["revoked-not-retried"];
    "cancelled-is-not-released" "_acquire.py"
        "        except asyncio.CancelledError:\n            if self._is_armed:"
        => "        except asyncio.CancelledError:\n            self._is_armed = False\n            if self._is_armed:"
        fails ["cancel-while-waiting-deletes" "cancel-racing-grant-deletes" "end-in-the-queue-leaves-no-place" "end-before-the-grant-gives-it-back"];
    "leader-is-ignored" "_cluster.py"
        "outcome, leader = self._judge(node, response, read), response.leader"
        => "outcome, leader = self._judge(node, response, read), None"
        fails ["leader-hint-followed"];
    "leader-is-believed" "_nodes.py"
        "self.entries.append(Entry(url, is_met=False))"
        => "self.entries.append(Entry(url, is_met=True))"
        fails ["failed-hint-passed-over"];
    "waits-for-the-vanished" "_server.py"
        "_ANSWERS_WITHIN = 1.5"
        => "_ANSWERS_WITHIN = 600.0"
        fails ["vanished-node-is-left"];
    "no-thread-may-hang-is-not-asked" "_server.py"
        "_THREADS_RUN = {\"ringfence-within-ms\": \"1000\"}"
        => "_THREADS_RUN: dict[str, str] = {}"
        fails ["node-with-a-hung-thread-is-left"];
    "wait-is-left-for-nothing" "_server.py"
        "                call.is_left = True\n"
        => ""
        fails ["wait-is-left-only-for-another"];
    "checks-no-key" "_wire.py"
        "        check_key(claim.key, field)\n"
        => ""
        fails ["invalid-key-sends-nothing"];
    "renews-each-lease-alone" "_keeper.py"
        "if chunk and (len(chunk) == _MAX_BATCH"
        => "if chunk and (len(chunk) == 1"
        fails ["many-leases-one-renewal"];
    "late-confirmation-revives" "_held.py"
        "        if self.loss() is not None:\n            return\n        seen"
        => "        self._ends.clear()\n        seen"
        fails ["renew-answered-past-deadline-stays-lost"];
    "last-answer-counts" "_held.py"
        "is_latest = confirmation.until.has_reached(seen.lifetime.until)"
        => "is_latest = True"
        fails ["older-answer-late-changes-nothing"];
    "hung-renewal-is-waited-for" "_keeper.py"
        "seconds = min(min(held.read().ttl for held in leases) / 4e9, ATTEMPT_TIMEOUT)"
        => "seconds = 600.0"
        fails ["hung-renewal-tries-next-in-time"];
    "reported-end-is-ignored" "_keeper.py"
        "            held.lose(loss)\n"
        => "            pass\n"
        fails ["410-lost-with-reason-others-live"];
    "never-unsure" "_lifetime.py"
        "            return State.UNSURE"
        => "            return State.HELD"
        fails ["unknown-then-held-again"];
    "state-of-the-last-timer" "_held.py"
        "reason = self._seen.lifetime.loss(now)"
        => "reason = None"
        fails ["suspend-lost-before-timers"];
    "clock-of-the-processor" "_clock.py"
        "    if _BOOT is None or _RAW is None:\n        ns = time.monotonic_ns()"
        => "    if True:\n        ns = time.process_time_ns()"
        fails ["stopped-process-lost-at-first-look" "blocked-loop-lost-and-told"];
    "child-holds" "_held.py"
        "return _fork.process() != self._process"
        => "return False"
        fails ["fork-child-lost-and-silent"];
    "max-hold-is-ignored" "_engine.py"
        "held.give_up_at(confirmation.sent.after(spec.max_hold_ms * MS))"
        => "pass"
        fails ["max-hold-is-the-end"];
    "release-masks-the-body" "aio.py"
        "        except Error as failure:\n            if error is None:\n                raise"
        => "        except Error as failure:\n            if True:\n                raise"
        fails ["body-error-not-masked"];
    "held-for-no-time" "_leaving.py"
        "        if until is None or until.since"
        => "        if True or until is None or until.since"
        fails ["hold-at-least-outlives-the-body" "hold-at-least-by-release" "hold-at-least-by-close-and-drop"];
    "lost-is-not-released" "_engine.py"
        "        told = self.leaving.begin(held, lost)"
        => "        if lost is not None:\n            raise Lost(lost)\n        told = self.leaving.begin(held, lost)"
        fails ["release-after-expiry-raises-and-deletes"];
    "second-release-fails" "_engine.py"
        "        if held.is_released:\n            return\n        told"
        => "        self._check(held)\n        told"
        fails ["double-release-harmless"];
    "unknown-release-is-dropped" "_releases.py"
        "            _tell(told, error)\n            await self._go_on(lease_id)"
        => "            _tell(told, error)"
        fails ["unknown-release-goes-on-and-close-waits"];
    "tokens-of-52-bits" "_wire.py"
        "MAX_TOKEN = 2**53 - 1"
        => "MAX_TOKEN = 2**52 - 1"
        fails ["token-2^53-1-exact"];
    "key-is-not-encoded" "_lease.py"
        "\"Ringfence-Key\": quote(one, safe=\"\"),"
        => "\"Ringfence-Key\": one,"
        fails ["headers-encode-key-and-renewed-fence"];
    "asks-the-first-node-only" "_nodes.py"
        "        if self._is_usable(self._preferred, now):\n            return self._preferred\n"
        => "        if self.entries:\n            return self.entries[0]\n"
        fails ["leader-killed-lease-and-place-survive"];
    "outage-is-a-loss" "_engine.py"
        "        except Lost as lost:\n            held.lose(lost.reason)\n        self.keeper.wake()"
        => "        except Error:\n            held.lose(\"unconfirmed\")\n        self.keeper.wake()"
        fails ["all-nodes-killed-lease-survives"];
    "waiters-give-up-as-others" "_acquire.py"
        "retries = self._acquire._has_waited and not self._acquire.is_over()"
        => "retries = False"
        fails ["waiter-survives-an-outage"];
    "believes-for-too-long" "_lifetime.py"
        "return self.sent.after(max(0, ns - ns // _DRIFT - _LATE))"
        => "return self.sent.after(ns * 4)"
        fails ["cut-off-holder-stops-before-successor-and-guard-rejects-it"];
    "credential-over-http" "_engine.py"
        "if value is not None and not is_https:"
        => "if value is None and name is None:"
        fails ["credential-only-over-verified-https"];
    "verifies-nobody" "_tls.py"
        "        context.minimum_version = ssl.TLSVersion.TLSv1_2"
        => "        context.check_hostname = False\n        context.verify_mode = ssl.CERT_NONE"
        fails ["wrong-authority-is-unavailable-and-says-why"];
    "adopted-is-not-kept" "_engine.py"
        "held = self._hold(await self.cluster.renew(lease_id))\n        self.keeper.add(held)"
        => "held = self._hold(await self.cluster.renew(lease_id))"
        fails ["adopted-lease-renews-and-is-released-once"];
    "slash-is-not-encoded" "_lease.py"
        "quote(one, safe=\"\")"
        => "quote(one, safe=\"/\")"
        fails ["headers-encode-key-and-renewed-fence"];
    "only-the-first-is-answered" "_batch.py"
        "            _tell(call, part)"
        => "            _tell(calls[0], part)"
        fails ["many-calls-each-their-own-answer"];
    "cancelled-ends-all" "_engine.py"
        "            self._give_back(task)\n            # For a second"
        => "            self._is_settling = True\n            for one in list(self._pending):\n                one.cancel()\n            # For a second"
        fails ["many-calls-one-cancelled"];
    "one-refusal-is-for-all" "_batch.py"
        "        for call, part in zip(calls, _split(response, len(calls)), strict=True):"
        => "        parts = _split(response, len(calls))\n        refused = [one for one in parts if one is not None and one.status >= 400]\n        for call, part in zip(calls, refused * len(calls) if refused else parts):"
        fails ["many-calls-half-refused"];
    "few-may-wait" "_engine.py"
        "        confirmation = await acquire.run()"
        => "        async with self.__dict__.setdefault(\"turn\", asyncio.Semaphore(8)):\n            confirmation = await acquire.run()"
        fails ["many-calls-half-wait"];
    "block-of-its-task" "_blocks.py"
        "    for found in (here, opened):"
        => "    raise RuntimeError(\"another has entered it\")\n    for found in (here, opened):"
        fails ["block-left-elsewhere-is-released"];
    "dropped-is-kept" "aio.py"
        "self._dropped = weakref.finalize(self, _drop, engine, held)"
        => "self._dropped = weakref.finalize(self, id, held)"
        fails ["dropped-handle-is-released" "end-after-a-drop-has-released"];
    "dropped-in-silence" "aio.py"
        "    if is_leak:\n        report_leak(held)"
        => "    pass"
        fails ["dropped-handle-is-reported"];
    "release-ends-with-its-task" "_releases.py"
        "if task.cancelled() and self._left is None:"
        => "if False:"
        fails ["end-during-a-release-has-released"];
    "nobody-waits-at-the-end" "_engine.py"
        "                await self._settle(LAST_CHANCE)"
        => "                pass"
        fails ["end-after-a-drop-has-released"];
    "callback-in-place-of-the-cancellation" "_held.py"
        "for call in (*stops, *callbacks):"
        => "for call in callbacks or stops:"
        fails ["on-lost-raises-body-is-stopped"];
    "swallowed-is-success" "aio.py"
        "        is_ours = False\n        try:\n            if body is not None:"
        => "        is_ours = False\n        error = error or Error()\n        try:\n            if body is not None:"
        fails ["loss-swallowed-is-still-lost"];
    "ended-once-by-both-clocks" "_clock.py"
        "return self.boot >= other.boot or self.raw >= other.raw"
        => "return self.boot >= other.boot and self.raw >= other.raw"
        fails ["ended-once-by-either-clock"];
    "every-error-is-survived" "_lease.py"
        "        if not self._is_lost and not isinstance(failure, Stale):\n            raise failure\n"
        => ""
        fails ["lead-ends-with-its-work"];
    "errors-end-the-race" "_lease.py"
        "        if not self._is_lost and not isinstance(failure, Stale):"
        => "        if True:"
        fails ["lead-goes-on-after-a-loss" "lead-goes-on-after-stale"];
    "late-loss-ends-the-race" "_lease.py"
        "            self._is_lost = True"
        => "            raise"
        fails ["lead-goes-on-after-stale-and-a-late-loss"];
    "timeout-is-ignored" "_engine.py"
        "            await ended(task, left)"
        => "            await ended(task)"
        fails ["deadline-bounds-acquire-and-gives-back"];
    "wait-and-timeout-are-one" "errors.py"
        "self.reason: Literal[\"wait\", \"timeout\"] = reason"
        => "self.reason: Literal[\"wait\", \"timeout\"] = \"timeout\""
        fails ["deadline-and-wait-say-which-was-over"];
    "release-is-not-bounded" "_engine.py"
        "            await ended(told, timeout)"
        => "            await ended(told)"
        fails ["deadline-bounds-renew-and-release"];
    "outage-ends-the-hold" "_leaving.py"
        "        except Error:\n            # It goes on.\n            pass"
        => "        except Error:\n            self.is_sure = True\n            self._keeper.remove(self.held)"
        fails ["hold-at-least-in-an-outage"];
    "close-releases-nothing" "_engine.py"
        "                self.begin_release(held, by=\"client\")"
        => "                self.keeper.remove(held)"
        fails ["close-releases-what-is-held"];
    "close-in-silence" "_held.py"
        "        if end is None or end.released_by != \"holder\":"
        => "        if end is None or end.released_by is None:"
        fails ["close-tells-whoever-works-under-a-lease"];
    "close-says-nothing" "_cluster.py"
        "left = len(self.releases)"
        => "left = 0"
        fails ["close-within-says-what-it-left" "close-by-itself-is-bounded"];
    "distrust-is-retried" "_acquire.py"
        "if self._attempts.is_distrusted and not self._has_place:"
        => "if False:"
        fails ["wrong-authority-is-unavailable-and-says-why"];
}
