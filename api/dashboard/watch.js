// Changes as they happen, by server-sent events. Read with fetch: an EventSource does not tell why it was refused.
//
//   load: a list and its revision ─▶ watch after it ─▶ changes ─▶ dropped: again after the last one
//                 ▲                                                   │
//                 └──────────── what was missed is not kept (410) ◀───┘

import { access } from "./access.js";
import { pause } from "./api.js";

/** Nodes send something every 15 s or so; after this the connection is dead. */
const SILENCE_MS = 45_000;
/** Pauses before the next try: after a connection that ended, where nobody leads, and where the node has no watch. */
const PAUSE_MS = { dropped: 500, "cut-off": 500, refused: 5000, absent: 60_000 };

/**
 * Loads and then follows what changes under `prefix`, until `signal` is aborted.
 *
 * `load(gone, oldest)` gives the revision to go on after, or `null` where nothing could be read. The node refused the last
 * `gone` revisions that it gave, and had all changes after `oldest` (`null`: unknown). `changed` takes changes, all of one
 * frame at once; `live` is told whether they come.
 */
export async function follow({ prefix, load, changed, live, signal }) {
  let [after, gone, oldest] = [null, 0, null];
  for (;;) {
    after ??= await load(gone, oldest);
    if (after === null) {
      await pause(PAUSE_MS.refused, signal);
      continue;
    }
    await seen(signal);
    const at = { revision: after };
    const ended = await listen(prefix, at, { changed, live, signal }).catch((error) => {
      signal.throwIfAborted();
      return "dropped";
    });
    live(false);
    if (ended === "gone") {
      [after, gone, oldest] = [null, gone + 1, at.oldest];
      continue;
    }
    // Whoever was too slow may find what followed kept no longer.
    [after, gone] = [at.revision, ended === "cut-off" ? gone : 0];
    await pause(PAUSE_MS[ended], signal);
  }
}

/** One connection. Gives how it ended: `gone`, `cut-off`, `absent`, `refused` or `dropped`. */
async function listen(prefix, at, { changed, live, signal }) {
  const cut = new AbortController();
  const silent = () => cut.abort(new Error("nothing came"));
  let timer = setTimeout(silent, SILENCE_MS);
  // Browsers have few connections to a node: one that nobody looks at would hold one of them.
  document.addEventListener("visibilitychange", () => document.hidden && cut.abort(), { signal: cut.signal });
  const batch = new Batch(changed);
  try {
    const query = new URLSearchParams({ prefix, after: at.revision });
    const response = await fetch(`v1/watch?${query}`, {
      headers: { accept: "text/event-stream", ...access.headers() },
      signal: AbortSignal.any([signal, cut.signal]),
      cache: "no-store",
    });
    if (response.status === 410) {
      const problem = await response.json().catch(() => null);
      at.oldest = problem?.oldest ?? null;
      return "gone";
    }
    if (response.status === 404) return "absent";
    const type = response.headers.get("content-type") ?? "";
    if (!response.ok || !type.startsWith("text/event-stream")) return "refused";
    live(true);
    const lines = new Lines();
    let event = {};
    for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
      clearTimeout(timer);
      timer = setTimeout(silent, SILENCE_MS);
      for (const line of lines.of(text)) {
        if (line !== "") {
          field(event, line);
          continue;
        }
        if (event.event === "cut-off") return "cut-off";
        if (event.data) batch.add(read(event));
        // What keeps a quiet connection alive has an id and no data: everything up to there was told.
        if (event.id) at.revision = Number(event.id);
        event = {};
      }
    }
    return "dropped";
  } finally {
    clearTimeout(timer);
    batch.flush();
    cut.abort();
  }
}

/** Resolves when somebody looks. */
async function seen(signal) {
  while (document.hidden) {
    const cut = new AbortController();
    await new Promise((resolve) => {
      const signals = { signal: cut.signal };
      document.addEventListener("visibilitychange", resolve, signals);
      signal.addEventListener("abort", resolve, signals);
    });
    cut.abort();
    signal.throwIfAborted();
  }
}

/** Gathers changes until the next frame: hundreds a second are drawn at once. */
class Batch {
  constructor(changed) {
    this.changed = changed;
    this.changes = [];
  }

  add(change) {
    if (this.changes.push(change) === 1) this.frame = requestAnimationFrame(() => this.flush());
  }

  flush() {
    cancelAnimationFrame(this.frame);
    const changes = this.changes;
    this.changes = [];
    if (changes.length) this.changed(changes);
  }
}

/** Cuts a stream of texts into lines. */
class Lines {
  rest = "";

  of(text) {
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop();
    return lines;
  }
}

function field(event, line) {
  const colon = line.indexOf(":");
  if (colon === 0) return;
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
  event[name] = name === "data" && "data" in event ? `${event.data}\n${value}` : value;
}

function read(event) {
  const change = JSON.parse(event.data);
  return { ...change, name: event.event, keys: change.keys ?? [], revision: change.revision ?? Number(event.id) };
}
