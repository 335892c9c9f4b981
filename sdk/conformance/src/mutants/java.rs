//! Faults of the Java client.

use super::mutants;

mutants! {
    "fresh-id-for-each-attempt" "Acquire.java"
        "      String acquire = options.acquire(waitMs);\n"
        => "      String leaseId = UUID.randomUUID().toString();\n      String acquire = options.acquire(waitMs);\n"
        fails ["grant-answer-lost-found-by-repeat" "wait-sliced-keeping-place" "many-calls-answers-lost-found-by-repeat"];
    "refused-connection-is-doubt" "Attempts.java"
        "      outcome = new Outcome.NotDone<>(error.getMessage(), -1);\n"
        => "      outcome = new Outcome.Ambiguous<>(error.getMessage());\n"
        fails ["refused-connection-is-unavailable"];
    "503-is-final" "Outcome.java"
        "case \"unavailable\" -> new NotDone<>(refused.why(), -1);"
        => "case \"unavailable\" -> refused;"
        fails ["503-then-grant-elsewhere"];
    "doubt-is-forgotten" "Attempts.java"
        "maybeDone |= outcome instanceof Outcome.Ambiguous;"
        => "maybeDone = false;"
        fails ["504-then-503s-is-unknown-and-deleted" "refusal-after-doubt-still-deletes"];
    "proxy-errors-are-not-done" "Outcome.java"
        "return new Ambiguous<>(\"a \" + status + \" that no node wrote\");"
        => "return new NotDone<>(\"a \" + status + \" that no node wrote\", -1);"
        fails ["proxy-502-is-unknown"];
    "half-an-answer-is-not-sent" "Exchange.java"
        ": new NoAnswer.Broken(text);"
        => ": new NoAnswer.NotSent(text);"
        fails ["half-answer-is-unknown"];
    "unreadable-200-is-not-done" "Outcome.java"
        "return new Ambiguous<>(\"unreadable \" + status + \": \" + error.getMessage());"
        => "return new NotDone<>(\"unreadable \" + status + \": \" + error.getMessage(), -1);"
        fails ["html-200-is-unknown"];
    "follows-redirects" "Server.java"
        "      return got(exchange.result);\n"
        => "      Response told = got(exchange.result);\n      if (told.status() == 307) {\n        String[] parts = told.headers().get(\"location\").split(\"[/:]+\");\n        Url there = new Url(false, parts[1], Integer.parseInt(parts[2]), parts[1] + \":\" + parts[2]);\n        return new Server(there, names, workers, null, null, clock).send(request, nanos, hasAnother, patience);\n      }\n      return told;\n"
        fails ["redirect-not-followed"];
    "held-names-nobody" "Acquire.java"
        "Blocker.read(refused.problem().get(\"holders\"), null)"
        => "java.util.List.of()"
        fails ["held-names-holders"];
    "refusal-ends-doubt" "Acquire.java"
        "      isArmed = attempts.maybeDone;\n      String kind"
        => "      isArmed = false;\n      String kind"
        fails ["refusal-after-doubt-still-deletes"];
    "429-is-asked-again-at-once" "Attempts.java"
        "askAfter = notDone.retryAfter();"
        => "askAfter = 0;"
        fails ["429-waits"];
    "stale-grant-is-handed-out" "Acquire.java"
        "if (confirmation.isFresh(cluster.clock.now())) {"
        => "if (true) {"
        fails ["doubtful-grant-renewed-first" "waited-grant-renewed-first"];
    "keeps-no-place" "Options.java"
        "\",\\\"keep_place\\\":\" + (waits > 0)"
        => "\",\\\"keep_place\\\":\" + false"
        fails ["wait-sliced-keeping-place"];
    "place-is-forgotten" "Acquire.java"
        "      attempts.maybeDone |= hasPlace;\n"
        => ""
        fails ["place-then-no-leader-is-given-back"];
    "ended-id-is-final" "Acquire.java"
        "if (refused.loss() == LossReason.EXPIRED || refused.loss() == LossReason.ABANDONED) {"
        => "if (false) {"
        fails ["id-ended-unseen-takes-new-id"];
    "revoked-is-asked-again" "Acquire.java"
        "if (refused.loss() == LossReason.EXPIRED || refused.loss() == LossReason.ABANDONED) {"
        => "if (refused.loss() != null) {"
        fails ["revoked-not-retried"];
    "leader-is-ignored" "Nodes.java"
        "preferred = leader != null && leader.isMet ? leader : node;"
        => "preferred = node;"
        fails ["leader-hint-followed"];
    "leader-is-believed" "Nodes.java"
        "known = new Node(url, false);"
        => "known = new Node(url, true);"
        fails ["failed-hint-passed-over"];
    "waits-for-the-vanished" "Server.java"
        "ANSWERS_WITHIN = 1_500 * Checks.MS;"
        => "ANSWERS_WITHIN = 600_000 * Checks.MS;"
        fails ["vanished-node-is-left"];
    "no-thread-may-hang-is-not-asked" "Request.java"
        "      head.append(\"ringfence-within-ms: 1000\\r\\n\");\n"
        => ""
        fails ["node-with-a-hung-thread-is-left"];
    "wait-is-left-for-nothing" "Attempts.java"
        "Exchange before = left.put(node, wait.open);"
        => "wait.open.abort();\n        Exchange before = null;"
        fails ["wait-is-left-only-for-another"];
    "checks-no-key" "Checks.java"
        "    if (key == null || key.isEmpty()) {\n"
        => "    if (!field.isEmpty()) {\n      return key;\n    }\n    if (key == null || key.isEmpty()) {\n"
        fails ["invalid-key-sends-nothing"];
    "renews-each-lease-alone" "Keeper.java"
        "MAX_BATCH = 1_000;"
        => "MAX_BATCH = 1;"
        fails ["many-leases-one-renewal"];
    "late-confirmation-revives" "Held.java"
        "    if (loss() != null) {\n      return;\n    }\n    seen.updateAndGet("
        => "    end.set(null);\n    seen.updateAndGet("
        fails ["renew-answered-past-deadline-stays-lost"];
    "last-answer-counts" "Held.java"
        "fences.merge(key, fence, Math::max)"
        => "fences.put(key, fence)"
        fails ["older-answer-late-changes-nothing"];
    "hung-renewal-is-waited-for" "Keeper.java"
        "long nanos = Math.min(ttl / 4, Cluster.ATTEMPT_WITHIN);"
        => "long nanos = 600_000 * Checks.MS;"
        fails ["hung-renewal-tries-next-in-time"];
    "reported-end-is-ignored" "Keeper.java"
        "held.lose(loss);"
        => "held.failed(\"\");"
        fails ["410-lost-with-reason-others-live"];
    "never-unsure" "Lifetime.java"
        "isDoubtful ? LeaseState.UNSURE"
        => "isDoubtful ? LeaseState.HELD"
        fails ["unknown-then-held-again"];
    "state-of-the-last-timer" "Held.java"
        "    if (loss() != null) {\n      return isReleased()"
        => "    if (end.get() != null) {\n      return isReleased()"
        fails ["suspend-lost-before-timers"];
    "clock-of-the-processor" "Clock.java"
        "      return new Moment(nanos(), known.uptime);\n"
        => "      long used = ProcessHandle.current().info().totalCpuDuration().orElseThrow().toNanos();\n      return new Moment(used, used);\n"
        fails ["stopped-process-lost-at-first-look"];
    "max-hold-is-ignored" "Engine.java"
        "options.maxHoldMs == null ? null : confirmation.sent().plus(options.maxHoldMs * Checks.MS);"
        => "null;"
        fails ["max-hold-is-the-end"];
    "block-ends-in-peace" "Lease.java"
        "      if (error != null) {\n        throw error;"
        => "      if (error != null && !(error instanceof LostException)) {\n        throw error;"
        fails ["body-error-not-masked"];
    "held-for-no-time" "Leaving.java"
        "boolean isOver = until == null || until.since(cluster.clock.now()) == 0;"
        => "boolean isOver = true;"
        fails ["hold-at-least-outlives-the-body" "hold-at-least-by-release" "hold-at-least-by-close-and-drop"];
    "lost-is-not-released" "Lease.java"
        "      CompletableFuture<RingfenceException> told = engine.release(held, Held.By.HOLDER);\n"
        => "      if (lost != null) {\n        throw new LostException(lost);\n      }\n      CompletableFuture<RingfenceException> told = engine.release(held, Held.By.HOLDER);\n"
        fails ["release-after-expiry-raises-and-deletes"];
    "second-release-fails" "Lease.java"
        "    if (drop.isLeft.compareAndSet(false, true) && !held.isReleased()) {\n      LossReason"
        => "    if (!drop.isLeft.compareAndSet(false, true)) {\n      throw new LostException(LossReason.RELEASED);\n    }\n    if (!held.isReleased()) {\n      LossReason"
        fails ["double-release-harmless"];
    "unknown-release-is-dropped" "Releases.java"
        "boolean isOpen = error instanceof UnknownException || error instanceof UnavailableException;"
        => "boolean isOpen = false;"
        fails ["unknown-release-goes-on-and-close-waits"];
    "tokens-of-52-bits" "Grant.java"
        "(1L << 53) - 1"
        => "(1L << 52) - 1"
        fails ["token-2^53-1-exact"];
    "key-is-not-encoded" "Lease.java"
        "headers.put(\"Ringfence-Key\", Text.segment(key));"
        => "headers.put(\"Ringfence-Key\", key);"
        fails ["headers-encode-key-and-renewed-fence"];
    "asks-the-first-node-only" "Nodes.java"
        "    if (isUsable(preferred, now)) {\n      return preferred;\n"
        => "    if (now > 0) {\n      return all.get(0);\n"
        fails ["leader-killed-lease-and-place-survive"];
    "outage-is-a-loss" "Engine.java"
        "    } catch (LostException lost) {\n      held.lose(lost.reason());\n    }\n    keeper.wake();"
        => "    } catch (RingfenceException lost) {\n      held.lose(LossReason.UNCONFIRMED);\n    }\n    keeper.wake();"
        fails ["all-nodes-killed-lease-survives"];
    "waiters-give-up-as-others" "Acquire.java"
        "boolean retries = hasWaited && !isOver();"
        => "boolean retries = false;"
        fails ["waiter-survives-an-outage"];
    "believes-for-too-long" "Confirmation.java"
        "Math.max(0, nanos - nanos / DRIFT - LATE)"
        => "nanos * 4"
        fails ["cut-off-holder-stops-before-successor-and-guard-rejects-it"];
    "credential-over-http" "Ringfence.java"
        "if (plain != null && !isHttps) {"
        => "if (false) {"
        fails ["credential-only-over-verified-https"];
    "asks-the-distrusted-again" "Attempts.java"
        "return distrusted.containsAll(nodes.configured());"
        => "return false;"
        fails ["wrong-authority-is-unavailable-and-says-why"];
    "adopted-is-not-kept" "Engine.java"
        "Lifetime.of(first, null, true)"
        => "Lifetime.of(first, null, false)"
        fails ["adopted-lease-renews-and-is-released-once"];
    "one-result-for-all" "Response.java"
        "      results.add(new Response(sent, number.intValue(), headers, \"\", result.get(\"body\")));\n"
        => "      Object body = result.get(\"body\");\n      if (((Map<?, ?>) list.get(0)).get(\"body\") instanceof Map<?, ?> first && body instanceof Map<?, ?> own) {\n        Map<Object, Object> mixed = new java.util.HashMap<>(own);\n        mixed.computeIfPresent(\"token\", (name, token) -> first.get(name));\n        body = mixed;\n      }\n      results.add(new Response(sent, number.intValue(), headers, \"\", body));\n"
        fails ["many-calls-each-their-own-answer"];
    "one-refusal-is-that-of-all" "Batcher.java"
        "        calls.get(i).told.complete(parts.get(i));\n"
        => "        Optional<Response> own = parts.get(i);\n        calls.get(i).told.complete(\n            parts.stream().filter(part -> part.isPresent() && part.get().status() == 409).findFirst().orElse(own));\n"
        fails ["many-calls-half-refused"];
    "a-place-is-no-grant" "Acquire.java"
        "        if (isOver()) {\n          // The caller"
        => "        if (true) {\n          // The caller"
        fails ["many-calls-half-wait"];
    "loss-under-work-is-success" "Lease.java"
        "RejectedException error) {"
        => "RejectedException | LostException error) {\n      lost = null;"
        fails ["loss-swallowed-is-still-lost" "block-left-elsewhere-is-released"];
    "dropped-is-kept" "Lease.java"
        "    CLEANER.register(this, drop);\n"
        => ""
        fails ["dropped-handle-is-released" "end-after-a-drop-has-released"];
    "dropped-in-silence" "Drop.java"
        "boolean isLeak = held.loss() == null;"
        => "boolean isLeak = false;"
        fails ["dropped-handle-is-reported"];
    "callback-in-place-of-the-wait" "Held.java"
        "      if (told.await(nap, TimeUnit.NANOSECONDS)) {\n        return loss();\n      }\n      reason = loss();\n"
        => "      if (told.await(nap, TimeUnit.NANOSECONDS)) {\n        Thread.sleep(5);\n      }\n      reason = reaction.onLost == null ? loss() : null;\n"
        fails ["on-lost-raises-body-is-stopped"];
    "callback-on-the-thread-that-renews" "Held.java"
        "teller.callback(reaction.onLost, new Loss(view.keys(), token, known.reason));"
        => "reaction.onLost.accept(new Loss(view.keys(), token, known.reason));"
        fails ["on-lost-blocks-others-are-renewed"];
    "ended-once-by-both-clocks" "Moment.java"
        "monotonic >= other.monotonic || uptime >= other.uptime"
        => "monotonic >= other.monotonic && uptime >= other.uptime"
        fails ["ended-once-by-either-clock"];
    "every-error-is-survived" "Term.java"
        "return !isLost && !(failure instanceof StaleException);"
        => "return !isLost && failure == null;"
        fails ["lead-ends-with-its-work"];
    "errors-after-a-loss-end-the-race" "Term.java"
        "return !isLost && !(failure instanceof StaleException);"
        => "return failure == null ? !isLost : !(failure instanceof StaleException);"
        fails ["lead-goes-on-after-a-loss"];
    "stale-ends-the-race" "Term.java"
        "return !isLost && !(failure instanceof StaleException);"
        => "return !isLost;"
        fails ["lead-goes-on-after-stale"];
    "stale-and-lost-ends-the-race" "Term.java"
        "return !isLost && !(failure instanceof StaleException);"
        => "return isLost == failure instanceof StaleException;"
        fails ["lead-goes-on-after-stale-and-a-late-loss"];
    "timeout-is-ignored" "LockRequest.java"
        "engine.call(bound, patience -> engine.acquire(wanted, patience))"
        => "engine.call(null, patience -> engine.acquire(wanted, patience))"
        fails ["deadline-bounds-acquire-and-gives-back"];
    "wait-and-timeout-are-one" "Patience.java"
        "TimedOutException.Reason.TIMEOUT"
        => "TimedOutException.Reason.WAIT"
        fails ["deadline-and-wait-say-which-was-over"];
    "release-is-not-bounded" "Lease.java"
        "long most = Math.min(bound == null ? TOLD_WITHIN : bound,"
        => "long most = Math.min(TOLD_WITHIN,"
        fails ["deadline-bounds-renew-and-release"];
    "outage-ends-the-hold" "Leaving.java"
        "        // It goes on.\n"
        => "        end();\n"
        fails ["hold-at-least-in-an-outage"];
    "close-releases-nothing" "Engine.java"
        "for (Held held : cluster.register.handles()) {"
        => "for (Held held : List.<Held>of()) {"
        fails ["close-releases-what-is-held" "close-tells-whoever-works-under-a-lease"];
    "close-says-nothing" "Engine.java"
        "closed.complete(left);"
        => "closed.complete(0);"
        fails ["close-within-says-what-it-left" "close-by-itself-is-bounded"];
    "interrupted-is-not-released" "Acquire.java"
        "        if (isArmed) {\n          leaveBriefly();\n        }\n        throw error;"
        => "        isArmed = false;\n        throw error;"
        fails ["interrupted-acquire-gives-back-its-grant"];
    "queue-swallows-interrupts" "Patience.java"
        "        lastOrStopped.get(most, TimeUnit.NANOSECONDS);\n"
        => "        try {\n          lastOrStopped.get(most, TimeUnit.NANOSECONDS);\n        } catch (InterruptedException swallowed) {\n          return something.isDone();\n        }\n"
        fails ["interrupted-wait-leaves-the-queue"];
    "wait-swallows-interrupts" "Held.java"
        "      if (told.await(nap, TimeUnit.NANOSECONDS)) {\n"
        => "      boolean isTold = false;\n      try {\n        isTold = told.await(nap, TimeUnit.NANOSECONDS);\n      } catch (InterruptedException swallowed) {\n        isTold = false;\n      }\n      if (isTold) {\n"
        fails ["interrupted-body-is-released"];
    "interrupt-ends-releases" "Lease.java"
        "    } catch (InterruptedException error) {\n      wasInterrupted = true;\n"
        => "    } catch (InterruptedException error) {\n      engine.cluster.releases.close();\n      wasInterrupted = true;\n"
        fails ["interrupted-twice-is-released" "interrupted-release-goes-on"];
    "interrupted-close-ends-releases" "Ringfence.java"
        "      wasInterrupted = true;\n      return"
        => "      wasInterrupted = true;\n      engine.cluster.releases.close();\n      return"
        fails ["interrupted-close-goes-on"];
    "interrupted-term-is-kept" "Term.java"
        "        lease.close();\n"
        => "        lease.check();\n"
        fails ["interrupted-lead-is-released"];
    "end-forgets-who-waits" "Engine.java"
        "      engine.pending.forEach(patience -> patience.stop(new ClosedException()));\n"
        => ""
        fails ["end-in-the-queue-leaves-no-place" "end-before-the-grant-gives-it-back"];
    "end-waits-for-nothing" "Engine.java"
        "      engine.settle(until);\n"
        => ""
        fails ["end-during-a-release-has-released"];
}
