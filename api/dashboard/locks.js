// The view of all keys that are held or waited for.
//
// The listing is read once; after that, changes come by the watch, and only the pages of what is on the screen are read
// again: renewals are no changes, and without a watch nothing else tells.

import { access } from "./access.js";
import { pause, reason, until } from "./api.js";
import { announce, el, put } from "./dom.js";
import { KeyList } from "./key_list.js";
import { KeyTable, START } from "./key_table.js";
import { ORDERS, Selection, isNarrow, isWished } from "./selection.js";
import { count, several, visible } from "./text.js";
import { follow } from "./watch.js";

/** Keys of a page, and the most that are shown: more are found by a prefix. */
const PAGE = 200;
const MOST = 20_000;
/** The most pages that are read once: where keys are searched for, many have none. */
const MOST_SEARCHED = 1000;
/** How often the screen is read again, how soon after something on it changed, and the most pages at a time. */
const EVERY_MS = 2000;
const SOON_MS = 300;
const MOST_PAGES = 8;
const TYPING_MS = 200;
/** The longest pause before all is read again, where time after time the changes meanwhile were not kept. */
const MOST_PAUSE_MS = 30_000;

export class Locks {
  title = "Locks";

  watches = true;

  /** `query` is that of the URL, which keeps what is looked at. */
  constructor(page, query) {
    this.page = page;
    this.prefix = query.get("prefix") ?? "";
    const sort = query.get("sort") ?? "key";
    this.wish = { find: query.get("find") ?? "", contended: query.get("contended") === "true", sort: sort in ORDERS ? sort : "key" };
    this.filter = el("input", {
      id: "filter", type: "search", value: this.prefix, placeholder: "Keys that begin with …", autocomplete: "off", spellcheck: "false",
      autocapitalize: "none", "aria-label": "Keys that begin with", oninput: () => this.#typed(), onkeydown: (event) => this.#left(event),
    });
    this.search = el("input", {
      id: "find", type: "search", value: this.wish.find, placeholder: "In key or holder …", autocomplete: "off", spellcheck: "false",
      autocapitalize: "none", "aria-label": "Text in the key or a holder", oninput: () => this.#typed(), onkeydown: (event) => this.#left(event),
    });
    this.contended = el("input", { id: "contended", type: "checkbox", checked: this.wish.contended, onchange: () => this.#wished() });
    this.order = el("select", { id: "sort", "aria-label": "Order", onchange: () => this.#wished() },
      ...Object.entries(ORDERS).map(([value, text]) => el("option", { value, text, selected: value === this.wish.sort })));
    this.summary = el("p", { class: "summary" });
    this.place = el("div", { class: "place" });
    this.heading = el("h1", { text: "Locks", tabindex: "-1" });
    this.element = el("section", { class: "locks" },
      el("div", { class: "top" }, this.heading, this.filter, this.search,
        el("label", { for: "contended" }, this.contended, " only contended"), this.order, this.summary), this.place);
    page.signal.addEventListener("abort", () => { this.loading?.abort(); this.list?.resized.disconnect(); });
    this.#begin();
  }

  /** Whether anything stands here that was read. */
  get isShowing() {
    return this.table.keys.length > 0;
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
    const wish = this.wish;
    this.table = new KeyTable(MOST, (entry) => isWished(entry, wish));
    this.selection = new Selection(this.table, wish.sort);
    this.list = new KeyList(this.selection, {
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
    for (let pages = 0; mark && read < MOST && pages < MOST_SEARCHED; pages++) {
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
    announce(`${several(this.selection.keys.length, "key")}${this.table.complete ? "" : " and more"}`);
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
      for (const mark of this.#seen()) {
        const answer = await this.#page(mark, false, signal);
        if (!answer) break;
        // What is not found any more has not ended for that.
        this.table.take(mark, answer, this.page.node.now(), (key) => !isNarrow(this.wish) && this.list.isSeen(key));
      }
      this.#draw();
    }
  }

  /** Where the pages begin that have what is on the screen. Some of very many: those of the leases that end soonest, if nobody renews them. */
  #seen() {
    const ends_ms = (key) => Math.min(...this.table.entry(key).holders.map((holder) => holder.ends_ms ?? 0));
    const keys = this.selection.keys.slice(...this.list.range()).filter((key) => this.table.entry(key));
    const marks = new Set(keys.sort((one, other) => ends_ms(one) - ends_ms(other)).map((key) => this.table.mark(key)));
    return marks.size ? [...marks].slice(0, MOST_PAGES) : [START];
  }

  async #page(mark, isFirst, signal) {
    if (!access.mayUnder("read", this.prefix)) {
      this.failure = "denied";
      this.#draw();
      return null;
    }
    const { find, contended } = this.wish;
    const query = new URLSearchParams({ prefix: this.prefix, limit: PAGE, ...(find && { find }), ...(contended && { contended }) });
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
    this.selection.update();
    const { keys, complete } = this.selection;
    const loaded = complete || !this.reading;
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
    const { keys, complete } = this.selection;
    const { live_leases, waiters } = this.page.node.view ?? {};
    const shown = complete ? several(keys.length, "key") :
      this.reading ? `${several(keys.length, "key")}, reading on …` : `the first ${several(keys.length, "key")}; a prefix finds more`;
    const all = live_leases === undefined ? "" : ` · cluster: ${several(live_leases, "lease")}, ${count(waiters)} waiting`;
    return shown + all;
  }

  #empty() {
    const { find, contended } = this.wish;
    if (this.prefix || isNarrow(this.wish)) {
      const quoted = (words, text, after = "") => (text ? [words, el("code", { text: visible(text) }), after] : []);
      return el("div", { class: "empty", "data-kind": `none ${contended} ${this.prefix} ${find}` },
        el("p", {}, "No key", ...quoted(" that begins with ", this.prefix), ...quoted(" with ", find, " in its name or a holder"),
          contended ? " is waited for." : " is held or waited for."));
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
    this.typing = setTimeout(() => this.#wished(), TYPING_MS);
  }

  /** Shows what the inputs say, and keeps that in the URL. */
  #wished() {
    const wish = { find: this.search.value, contended: this.contended.checked, sort: this.order.value };
    const isOther = this.prefix !== this.filter.value || Object.keys(wish).some((name) => wish[name] !== this.wish[name]);
    if (!isOther || this.page.signal.aborted) return;
    [this.prefix, this.wish] = [this.filter.value, wish];
    const query = new URLSearchParams({
      ...(this.prefix && { prefix: this.prefix }), ...(wish.find && { find: wish.find }),
      ...(wish.contended && { contended: true }), ...(wish.sort !== "key" && { sort: wish.sort }),
    });
    this.page.rename(`#/locks${query.size ? `?${query}` : ""}`);
    this.#begin();
  }

  #left(event) {
    if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      this.list.element.focus();
      if (event.key === "ArrowDown" && this.list.selected === null && this.selection.keys.length) this.list.select(this.selection.keys[0]);
    }
  }
}

/** What may be read instead. */
function denied(prefix) {
  const links = access.readable.filter((keys) => keys !== "*").map((keys) => {
    const hash = keys.startsWith("=") ? `#/key/${encodeURIComponent(keys.slice(1))}` : `#/locks?prefix=${encodeURIComponent(keys)}`;
    return el("li", {}, el("a", { href: hash, text: visible(keys.replace(/^=/, "")) }));
  });
  const may = access.isAnonymous ? "Sign in: without, you may not" : "You may not";
  const what = prefix ? [`${may} read all keys that begin with `, el("code", { text: visible(prefix) }), "."] : [`${may} read all keys.`];
  return el("div", { class: "empty", "data-kind": `denied ${may} ${links.length} ${prefix}` },
    el("p", {}, ...what, links.length ? " These you may read:" : ""), el("ul", {}, ...links));
}

function loading() {
  return el("p", { class: "empty", "data-kind": "loading", text: "Reading the keys …" });
}
