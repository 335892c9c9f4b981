//! Faults of the TypeScript client.

use super::mutants;

mutants! {
    "fresh-id-for-each-attempt" "acquire.ts"
        "    const putAt = performance.now();\n"
        => "    this.#leaseId = randomUUID();\n    const putAt = performance.now();\n"
        fails ["grant-answer-lost-found-by-repeat" "wait-sliced-keeping-place" "many-calls-answers-lost-found-by-repeat"];
    "refused-connection-is-doubt" "outcome.ts"
        r#"is: failure.wasSent ? "ambiguous" : "not-done""#
        => r#"is: "ambiguous""#
        fails ["refused-connection-is-unavailable"];
    "503-is-final" "outcome.ts"
        r#"return { is: "not-done", why: problem.detail };"#
        => r#"return { is: "refused", problem };"#
        fails ["503-then-grant-elsewhere"];
    "doubt-is-forgotten" "attempts.ts"
        r#"this.maybeDone ||= outcome.is === "ambiguous" && !this.onlyReads;"#
        => "this.maybeDone = false;"
        fails ["504-then-503s-is-unknown-and-deleted" "refusal-after-doubt-still-deletes"];
    "proxy-errors-are-not-done" "outcome.ts"
        r#"return { is: "ambiguous", why: `unreadable"#
        => r#"return { is: status < 500 ? "ambiguous" : "not-done", why: `unreadable"#
        fails ["proxy-502-is-unknown"];
    "half-an-answer-is-not-sent" "server.ts"
        "=> broken(`half a response: ${error.message}`)"
        => "=> fail(new Failure(false, `half a response: ${error.message}`))"
        fails ["half-answer-is-unknown"];
    "unreadable-200-is-not-done" "outcome.ts"
        r#"return { is: "ambiguous", why: `unreadable"#
        => r#"return { is: "not-done", why: `unreadable"#
        fails ["html-200-is-unknown"];
    "follows-redirects" "server.ts"
        "      outgoing.once(\"response\", (response) => {\n"
        => "      outgoing.once(\"response\", (response) => {\n        if (response.statusCode === 307) {\n          end();\n          const there = new Server(new URL(new URL(response.headers.location).origin), undefined, this.#clock);\n          there.send(request, timeMs, signal).then(resolve, reject);\n          return;\n        }\n"
        fails ["redirect-not-followed"];
    "held-names-nobody" "acquire.ts"
        "throw new HeldError(problem.holders, problem.waiters);"
        => "throw new HeldError([], 0);"
        fails ["held-names-holders"];
    "refusal-ends-doubt" "acquire.ts"
        "    this.#isArmed = this.#attempts.maybeDone;\n    if (isDenial(problem)) {"
        => "    this.#isArmed = false;\n    if (isDenial(problem)) {"
        fails ["refusal-after-doubt-still-deletes"];
    "429-is-asked-again-at-once" "acquire.ts"
        "await sleep(outcome.retryAfterMs, this.#stop);"
        => "await sleep(0, this.#stop);"
        fails ["429-waits"];
    "stale-grant-is-handed-out" "acquire.ts"
        "if (new Lifetime(confirmation).isFresh(now(this.#cluster.clock))) {"
        => "if (true) {"
        fails ["doubtful-grant-renewed-first" "waited-grant-renewed-first"];
    "keeps-no-place" "acquire.ts"
        "keep_place: waitMs > 0,"
        => "keep_place: false,"
        fails ["wait-sliced-keeping-place"];
    "place-is-forgotten" "acquire.ts"
        "        // The place may still stand.\n        this.#attempts.maybeDone ||= this.#hasPlace;\n"
        => ""
        fails ["place-then-no-leader-is-given-back"];
    "ended-id-is-final" "acquire.ts"
        r#"(problem.reason === "expired" || problem.reason === "abandoned")"#
        => "false"
        fails ["id-ended-unseen-takes-new-id"];
    "revoked-is-asked-again" "acquire.ts"
        r#"(problem.reason === "expired" || problem.reason === "abandoned")"#
        => r#"["expired", "abandoned", "revoked"].includes(problem.reason)"#
        fails ["revoked-not-retried"];
    "cancelled-is-not-released" "acquire.ts"
        "      if (this.#isArmed) {\n"
        => "      if (false) {\n"
        fails ["cancel-while-waiting-deletes" "cancel-racing-grant-deletes"];
    "leader-is-ignored" "nodes.ts"
        "this.#preferred = leader?.isMet ? leader : node;"
        => "this.#preferred = node;"
        fails ["leader-hint-followed"];
    "leader-is-believed" "nodes.ts"
        "return this.#add(url, false);"
        => "return this.#add(url, true);"
        fails ["failed-hint-passed-over"];
    "waits-for-the-vanished" "server.ts"
        "const ANSWERS_WITHIN_MS = 1_500;"
        => "const ANSWERS_WITHIN_MS = 600_000;"
        fails ["vanished-node-is-left"];
    "no-thread-may-hang-is-not-asked" "server.ts"
        "const THREADS_RUN = { \"ringfence-within-ms\": \"1000\" };"
        => "const THREADS_RUN = {};"
        fails ["node-with-a-hung-thread-is-left"];
    "wait-is-left-for-nothing" "attempts.ts"
        "      this.#left.push(broken);\n"
        => "      broken.stop(new Failure(true, \"it is left\"));\n"
        fails ["wait-is-left-only-for-another"];
    "checks-no-key" "options.ts"
        "  const checked = text(key, field, 512);\n"
        => "  return key;\n  const checked = text(key, field, 512);\n"
        fails ["invalid-key-sends-nothing"];
    "renews-each-lease-alone" "keeper.ts"
        "const MAX_BATCH = 1_000;"
        => "const MAX_BATCH = 1;"
        fails ["many-leases-one-renewal"];
    "late-confirmation-revives" "lifetime.ts"
        "    if (this.loss(at) !== undefined) {\n      return false;\n    }\n"
        => "    this.#lost = undefined;\n"
        fails ["renew-answered-past-deadline-stays-lost"];
    "last-answer-counts" "lifetime.ts"
        "if (sent.monotonic < this.#lastSent.monotonic) {"
        => "if (false) {"
        fails ["older-answer-late-changes-nothing"];
    "hung-renewal-is-waited-for" "keeper.ts"
        "const timeMs = Math.min(ttlMs / 4, ATTEMPT_MS);"
        => "const timeMs = 600_000;"
        fails ["hung-renewal-tries-next-in-time"];
    "reported-end-is-ignored" "keeper.ts"
        "    held.lose(loss, at);\n"
        => "    void at;\n"
        fails ["410-lost-with-reason-others-live"];
    "never-unsure" "lifetime.ts"
        r#"this.#ttlMs / 3 ? "unsure" : "held""#
        => r#"this.#ttlMs / 3 ? "held" : "held""#
        fails ["unknown-then-held-again"];
    "state-of-the-last-timer" "held.ts"
        "    const at = now(this.#clock);\n    this.look(at);\n    return this.lifetime.state(at);"
        => "    return this.#isTold ? \"lost\" : \"held\";"
        fails ["suspend-lost-before-timers"];
    "clock-of-the-processor" "clock.ts"
        "  monotonic: () => performance.now(),\n  uptime: sparingly(\n    readUptime,"
        => "  monotonic: () => process.cpuUsage().user / 1_000,\n  uptime: sparingly(\n    () => 0 * readUptime(),"
        fails ["stopped-process-lost-at-first-look"];
    "loss-is-told-to-nobody" "held.ts"
        "        this.#hook?.(\"lost\", this.#view, loss);\n"
        => ""
        fails ["blocked-loop-lost-and-told"];
    "max-hold-is-ignored" "client.ts"
        "new Lifetime(confirmation, request.renews, request.maxHoldMs)"
        => "new Lifetime(confirmation, request.renews)"
        fails ["max-hold-is-the-end"];
    "release-masks-the-body" "client.ts"
        "    await lease.release().catch(() => undefined);\n    clearInterval(awake);"
        => "    await lease.release();\n    clearInterval(awake);"
        fails ["body-error-not-masked"];
    "held-for-no-time" "release.ts"
        "const isKept = this.#leftMs(at) > 0 && "
        => "const isKept = false && "
        fails ["hold-at-least-outlives-the-body" "hold-at-least-by-release" "hold-at-least-by-close-and-drop"];
    "lost-is-not-released" "release.ts"
        "    held.lose(\"released\", at);\n"
        => "    held.lose(\"released\", at);\n    if (loss !== undefined) {\n      throw new LostError(loss);\n    }\n"
        fails ["release-after-expiry-raises-and-deletes"];
    "second-release-fails" "release.ts"
        "    if (this.#end === undefined) {\n      const { cluster }"
        => "    if (true) {\n      const { cluster }"
        fails ["double-release-harmless"];
    "unknown-release-is-dropped" "release.ts"
        "      if (successor === undefined && !(error instanceof LostError)) {\n"
        => "      if (false) {\n"
        fails ["unknown-release-goes-on-and-close-waits"];
    "tokens-of-52-bits" "wire.ts"
        "value > 2 ** 53"
        => "value > 2 ** 52"
        fails ["token-2^53-1-exact"];
    "key-is-not-encoded" "lease.ts"
        "\"Ringfence-Key\": encodeURIComponent(name),"
        => "\"Ringfence-Key\": name,"
        fails ["headers-encode-key-and-renewed-fence"];
    "asks-the-first-node-only" "nodes.ts"
        "return this.#preferred.isUsable ? this.#preferred : this.#failedLongestAgo();"
        => "return this.#nodes[0];"
        fails ["leader-killed-lease-and-place-survive"];
    "outage-is-a-loss" "lease.ts"
        "      if (!(error instanceof LostError)) {\n        throw error;\n      }\n      this.#held.lose(error.reason);"
        => "      this.#held.lose(error.reason ?? \"unconfirmed\");"
        fails ["all-nodes-killed-lease-survives"];
    "waiters-give-up-as-others" "acquire.ts"
        "const retries = this.#hasWaited && this.#leftMs() > 0;"
        => "const retries = false;"
        fails ["waiter-survives-an-outage"];
    "believes-for-too-long" "lifetime.ts"
        "return expiresInMs - expiresInMs * DRIFT - LATE_MS;"
        => "return expiresInMs * 4;"
        fails ["cut-off-holder-stops-before-successor-and-guard-rejects-it"];
    "credential-over-http" "options.ts"
        "    if (given !== undefined) {\n"
        => "    if (false) {\n"
        fails ["credential-only-over-verified-https"];
    "verifies-nobody" "connections.ts"
        "rejectUnauthorized: true,"
        => "rejectUnauthorized: false,"
        fails ["wrong-authority-is-unavailable-and-says-why"];
    "adopted-is-not-kept" "client.ts"
        "new Lifetime(confirmation, renews, maxHoldMs), 0)"
        => "new Lifetime(confirmation, false, maxHoldMs), 0)"
        fails ["adopted-lease-renews-and-is-released-once"];
    "one-result-for-all" "batch.ts"
        "new Part(response, result.status, result.body)"
        => "new Part(response, result.status, { ...readResults(JSON.parse(body), count)[0].body, lease_id: result.body?.lease_id })"
        fails ["many-calls-each-their-own-answer"];
    "one-takes-all-along" "batch.ts"
        "        if (left === 0) {\n"
        => "        if (left < calls.length) {\n"
        fails ["many-calls-one-cancelled"];
    "one-refusal-is-that-of-all" "batch.ts"
        "call.resolve(responses[index]);"
        => "call.resolve(responses.find((one) => one?.status === 409) ?? responses[index]);"
        fails ["many-calls-half-refused"];
    "a-place-is-no-grant" "acquire.ts"
        "          if (this.#leftMs() === 0) {\n            throw await"
        => "          if (true) {\n            throw await"
        fails ["many-calls-half-wait"];
    "loss-under-work-is-success" "client.ts"
        "      if (error instanceof LostError) {\n        throw error;\n      }\n"
        => ""
        fails ["block-left-elsewhere-is-released" "loss-swallowed-is-still-lost"];
    "dropped-is-kept" "release.ts"
        "    DROPPED.register(handle, this, this);\n"
        => ""
        fails ["dropped-handle-is-released"];
    "dropped-in-silence" "release.ts"
        "    if (this.held.look() === undefined) {\n"
        => "    if (false) {\n"
        fails ["dropped-handle-is-reported"];
    "callback-in-place-of-the-signal" "held.ts"
        "      this.#ended?.abort(new LostError(loss));\n"
        => ""
        fails ["on-lost-raises-body-is-stopped"];
    "ended-once-by-both-clocks" "clock.ts"
        "return Math.max(0, up - monotonic > COARSE_MS ? up : monotonic);"
        => "return Math.max(0, Math.min(up, monotonic));"
        fails ["ended-once-by-either-clock"];
    "every-error-is-survived" "client.ts"
        "if (!(isStale || isLost) || release.isTaken"
        => "if (release.isTaken"
        fails ["lead-ends-with-its-work"];
    "errors-after-a-loss-end-the-race" "client.ts"
        "const isLost = (await lossOf(lease)) !== undefined;"
        => "const isLost = false;"
        fails ["lead-goes-on-after-a-loss"];
    "stale-ends-the-race" "client.ts"
        r#"?.kind === "Stale";"#
        => r#"?.kind === "";"#
        fails ["lead-goes-on-after-stale"];
    "stale-and-lost-ends-the-race" "client.ts"
        "if (!(isStale || isLost) || release.isTaken"
        => "if (isStale === isLost || release.isTaken"
        fails ["lead-goes-on-after-stale-and-a-late-loss"];
    "timeout-is-ignored" "client.ts"
        "this.#call(options.signal, request.timeoutMs, (stop) =>"
        => "this.#call(options.signal, undefined, (stop) =>"
        fails ["deadline-bounds-acquire-and-gives-back"];
    "wait-and-timeout-are-one" "errors.ts"
        r#"reason: "wait" | "timeout" = "wait") {"#
        => r#"reason: "wait" | "timeout" = "timeout") {"#
        fails ["deadline-and-wait-say-which-was-over"];
    "release-is-not-bounded" "timers.ts"
        "return await orStop(work(stop), stop);"
        => "return await work(undefined);"
        fails ["deadline-bounds-renew-and-release"];
    "outage-ends-the-hold" "release.ts"
        "      if (!(error instanceof LostError)) {\n        cluster.background(this.#keepLater(held), held);\n      }\n"
        => "      keeper.remove(held);\n"
        fails ["hold-at-least-in-an-outage"];
    "close-releases-nothing" "client.ts"
        "      for (const release of leases.values()) {\n"
        => "      for (const release of leases.values().slice(0, 0)) {\n"
        fails ["close-releases-what-is-held" "close-tells-whoever-works-under-a-lease"];
    "close-says-nothing" "client.ts"
        "    return { left };\n"
        => "    return { left: [] };\n"
        fails ["close-within-says-what-it-left" "close-by-itself-is-bounded"];
}
