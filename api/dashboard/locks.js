// The view of all keys that are held or waited for.
//
// The listing is read once; after that, changes come by the watch, and only the pages of what is on the screen are read
// again: renewals are no changes, and without a watch nothing else tells.

import { access } from "./access.js";
import { pause, reason, until } from "./api.js";
import { announce, el, put } from "./dom.js";
import { KeyList } from "./key_list.js";
import { KeyTable, START, order } from "./key_table.js";
import { count, several, visible } from "./text.js";
import { follow } from "./watch.js";

/** Keys of a page, and the most that are shown: more are found by a prefix. */
const PAGE = 200;
const MOST = 20_000;
/** How often the screen is read again, how soon after something on it changed, and the most pages at a time. */
const EVERY_MS = 2000;
const SOON_MS = 300;
const MOST_PAGES = 4;
const TYPING_MS = 200;
/** The longest pause before all is read again, where time after time the changes meanwhile were not kept. */
const MOST_PAUSE_MS = 30_000;

export class Locks {
  title = "Locks";

  constructor(page, prefix) {
    this.page = page;
    this.prefix = prefix;
    this.filter = el("input", {
      id: "filter", type: "search", value: prefix, placeholder: "Keys that begin with …", autocomplete: "off", spellcheck: "false",
      autocapitalize: "none", "aria-label": "Keys that begin with", oninput: () => this.#typed(), onkeydown: (event) => this.#left(event),
    });
    this.summary = el("p", { class: "summary" });
    this.place = el("div", { class: "place" });
    this.heading = el("h1", { text: "Locks", tabindex: "-1" });
    this.element = el("section", { class: "locks" },
      el("div", { class: "top" }, this.heading, this.filter, this.summary), this.place);
    page.signal.addEventListener("abort", () => { this.loading?.abort(); this.list?.resized.disconnect(); });
    this.#begin();
  }

  /** Where the focus goes when the view is opened. */
  focus() {
    (this.list?.element ?? this.heading).focus({ preventScroll: true });
  }

  toFilter() {
    this.filter.focus();
    this.filter.select();
  }

  tick(now_ms) {
    if (this.table.sweep(now_ms)) this.#draw();
    this.list.tick(now_ms);
  }

  /** The keys of the list move without it having the focus. */
  pressed(event) {
    if (["ArrowDown", "ArrowUp", "j", "k", "PageDown", "PageUp", "Home", "End"].includes(event.key)) {
      this.list.element.focus({ preventScroll: true });
      this.list.element.dispatchEvent(new KeyboardEvent("keydown", event));
      event.preventDefault();
    }
  }

  #begin() {
    this.loading?.abort();
    this.loading = new AbortController();
    const signal = this.loading.signal;
    this.list?.resized.disconnect();
    this.table = new KeyTable(MOST);
    this.list = new KeyList(this.table, {
      open: (key) => this.page.go(`#/key/${encodeURIComponent(key)}`),
      scrolled: () => this.#soon(),
      now: () => this.page.node.now(),
    });
    this.failure = null;
    this.reading = true;
    this.page.live(false);
    until(signal, () => follow({
      prefix: this.prefix,
      load: (gone) => this.#load(gone, signal),
      changed: (changes) => this.#changed(changes),
      live: (is) => this.page.live(is),
      signal,
    }));
    until(signal, () => this.#refresh(signal));
    this.#draw();
  }

  /** Reads all pages, or the first of very many. Gives the revision of the first. */
  async #load(gone, signal) {
    if (gone > 1) await pause(Math.min(250 * 2 ** gone, MOST_PAUSE_MS), signal);
    this.reading = true;
    let [mark, revision, read] = [START, null, 0];
    // The table may have keys of an earlier time: what counts is what was read now.
    while (mark && read < MOST) {
      const answer = await this.#page(mark, true, signal);
      if (!answer) return null;
      revision ??= answer.revision;
      read += answer.keys.length;
      mark = this.table.take(mark, answer, this.page.node.now(), () => false);
      this.#draw();
    }
    if (mark) this.table.cut(mark.last);
    this.reading = false;
    this.#draw();
    announce(`${several(this.table.keys.length, "key")}${this.table.complete ? "" : " and more"}`);
    return revision;
  }

  /** Reads what is on the screen again and again. */
  async #refresh(signal) {
    for (;;) {
      this.wake = new AbortController();
      await pause(EVERY_MS, AbortSignal.any([signal, this.wake.signal])).catch(() => signal.throwIfAborted());
      await pause(SOON_MS, signal);
      // Before the first page was read there is nothing to read again.
      if (document.hidden || (this.table.keys.length === 0 && !this.table.complete)) continue;
      const [first, end] = this.list.range();
      const keys = this.table.keys;
      const last = keys[Math.min(end, keys.length) - 1] ?? "";
      let mark = this.table.mark(keys[first] ?? "") ?? START;
      for (let pages = 0; mark && pages < MOST_PAGES; pages++) {
        const answer = await this.#page(mark, false, signal);
        if (!answer) break;
        mark = this.table.take(mark, answer, this.page.node.now(), (key) => this.list.isSeen(key));
        if (mark && order(mark.last, last) >= 0) break;
      }
      this.#draw();
    }
  }

  async #page(mark, isFirst, signal) {
    if (!access.mayUnder("read", this.prefix)) {
      this.failure = "denied";
      this.#draw();
      return null;
    }
    const query = new URLSearchParams({ prefix: this.prefix, limit: PAGE });
    if (mark.cursor) query.set("after", mark.cursor);
    const answer = await this.page.node.read(`v1/keys?${query}`, isFirst, signal);
    this.failure = answer.status === 200 ? null : reason(answer);
    if (answer.status === 200) return answer.body;
    this.#draw();
    return null;
  }

  #changed(changes) {
    const now_ms = this.page.node.now();
    const isSeen = (key) => this.list.isSeen(key);
    let touched = false;
    for (const change of changes) touched = this.table.apply(change, now_ms, isSeen) || touched;
    if (!touched) return;
    this.#draw();
    if (changes.some((change) => change.keys.some(({ key }) => isSeen(key)))) this.#soon();
  }

  #soon() {
    this.wake?.abort();
  }

  #draw() {
    const { keys, complete } = this.table;
    const loaded = complete || keys.length > 0;
    const what = keys.length > 0 ? this.list.element : this.failure ? this.#failed() : loaded ? this.#empty() : loading();
    if (this.shown !== what) {
      const hadFocus = this.place.contains(document.activeElement);
      if (typeof what.dataset.kind !== "string" || what.dataset.kind !== this.shown?.dataset.kind) {
        this.place.replaceChildren(what);
        this.shown = what;
        if (hadFocus || document.activeElement === document.body) this.focus();
      }
    }
    if (what === this.list.element) this.list.render();
    put(this.summary, this.#told());
  }

  #told() {
    if (!access.mayUnder("read", this.prefix)) return "";
    const { keys, complete } = this.table;
    const { live_leases, waiters } = this.page.node.view ?? {};
    const shown = complete ? several(keys.length, "key") :
      this.reading ? `${several(keys.length, "key")}, reading on …` : `the first ${several(keys.length, "key")}; a prefix finds more`;
    const all = live_leases === undefined ? "" : ` · cluster: ${several(live_leases, "lease")}, ${count(waiters)} waiting`;
    return shown + all;
  }

  #empty() {
    if (this.prefix) {
      return el("div", { class: "empty", "data-kind": "none" },
        el("p", {}, "No key that begins with ", el("code", { text: visible(this.prefix) }), " is held or waited for."));
    }
    const line = `curl -X PUT ${location.origin}/v1/leases/$(cat /proc/sys/kernel/random/uuid) \\\n` +
      `     -d '{"keys":["orders/42"],"holder":"me","ttl_ms":30000}'`;
    return el("div", { class: "empty", "data-kind": "none" },
      el("h2", { text: "Nobody holds a lock" }),
      el("p", { text: "Keys appear here while they are held or waited for. To take a first lease, for 30 s:" }),
      el("pre", { tabindex: "0" }, el("code", { text: line })),
      el("p", { text: "The answer has a token: a number that only rises. A key's fence is the lowest token that may still " +
        "be alive; storage that rejects every token below it is safe from holders that wake up too late." }));
  }

  #failed() {
    if (!access.mayUnder("read", this.prefix)) return denied(this.prefix);
    return el("div", { class: "empty", "data-kind": this.failure },
      el("h2", { text: "The keys could not be read" }), el("p", { text: this.failure }),
      el("p", { text: "They are asked for again by themselves." }));
  }

  #typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => {
      if (this.prefix === this.filter.value || this.page.signal.aborted) return;
      this.prefix = this.filter.value;
      this.page.rename(`#/locks${this.prefix ? `?prefix=${encodeURIComponent(this.prefix)}` : ""}`);
      this.#begin();
    }, TYPING_MS);
  }

  #left(event) {
    if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      this.list.element.focus();
      if (event.key === "ArrowDown" && this.list.selected === null && this.table.keys.length) this.list.select(this.table.keys[0]);
    }
  }
}

/** What may be read instead. */
function denied(prefix) {
  const links = access.readable.filter((keys) => keys !== "*").map((keys) => {
    const hash = keys.startsWith("=") ? `#/key/${encodeURIComponent(keys.slice(1))}` : `#/locks?prefix=${encodeURIComponent(keys)}`;
    return el("li", {}, el("a", { href: hash, text: visible(keys.replace(/^=/, "")) }));
  });
  const what = prefix ? ["You may not read all keys that begin with ", el("code", { text: visible(prefix) }), "."] : ["You may not read all keys."];
  return el("div", { class: "empty", "data-kind": `denied ${links.length} ${prefix}` },
    el("p", {}, ...what, links.length ? " These you may read:" : ""), el("ul", {}, ...links));
}

function loading() {
  return el("p", { class: "empty", "data-kind": "loading", text: "Reading the keys …" });
}
