// A list of any length of which only the rows on the screen are elements.
//
// The rows are laid over an empty element as high as the whole list. Scrolling moves and fills a few dozen of them
// again; what has not changed in a row is not touched.

import { bar, draw } from "./bar.js";
import { el, put } from "./dom.js";
import { count, visible } from "./text.js";

/** Rows above and below the screen that are ready before they are scrolled to. */
const SPARE = 6;
/** Browsers do not lay out elements of any height. */
const MAX_HEIGHT_PX = 15_000_000;

const COLUMNS = [
  ["key", "Key"], ["mode", "Mode"], ["holder", "Holder"], ["token", "Token"], ["time", "Time left"], ["waiters", "Waiters"],
];

export class KeyList {
  #table;
  #rows = new Map();
  #selected = null;
  #height = 0;
  #spacer = el("div", { class: "spacer", role: "rowgroup" });

  /** A list of `table`. `open` is called with the key that was chosen, `scrolled` when others came into sight; `now` is the clock. */
  constructor(table, { open, scrolled, now }) {
    this.#table = table;
    this.open = open;
    this.scrolled = scrolled;
    this.now = now;
    const head = el("div", { class: "row head", role: "row", "aria-rowindex": "1" },
      ...COLUMNS.map(([name, title]) => el("span", { class: name, role: "columnheader", text: title })));
    this.body = el("div", { class: "rows", role: "presentation" }, this.#spacer);
    this.element = el("div", {
      class: "list", role: "grid", tabindex: "0", "aria-label": "Keys that are held or waited for", "aria-colcount": COLUMNS.length,
      onkeydown: (event) => this.#pressed(event),
    }, head, this.body);
    this.body.addEventListener("scroll", () => { this.render(); this.scrolled(); }, { passive: true });
    this.#spacer.addEventListener("click", (event) => this.#clicked(event));
    this.resized = new ResizeObserver(() => this.#resize());
    this.resized.observe(this.body);
  }

  /** The indices of the first row on the screen and of the one after the last. */
  range() {
    const height = this.#rowHeight();
    const first = Math.floor(this.body.scrollTop / height);
    const many = Math.ceil(this.body.clientHeight / height) + 1;
    return [Math.min(first, this.#table.keys.length), Math.min(first + many, this.#table.keys.length)];
  }

  isSeen(key) {
    const [first, end] = this.range();
    const place = this.#table.place(key);
    return place >= first && place < end;
  }

  /** Draws the rows of the screen, after the table or the place has changed. */
  render() {
    const height = this.#rowHeight();
    const total = Math.min(this.#table.keys.length * height, MAX_HEIGHT_PX);
    if (total !== this.#height) {
      this.#height = total;
      this.#spacer.style.setProperty("--height", `${total}px`);
      this.element.setAttribute("aria-rowcount", String(this.#table.complete ? this.#table.keys.length + 1 : -1));
    }
    const [first, end] = this.range();
    const [from, to] = [Math.max(0, first - SPARE), Math.min(this.#table.keys.length, end + SPARE)];
    const free = [];
    for (const [index, row] of this.#rows) {
      if (index >= from && index < to) continue;
      this.#rows.delete(index);
      free.push(row);
    }
    const now_ms = this.now();
    for (let index = from; index < to; index++) {
      let row = this.#rows.get(index);
      if (!row) {
        row = free.pop() ?? this.#row();
        this.#rows.set(index, row);
        row.element.style.setProperty("--top", `${index * height}px`);
        row.element.setAttribute("aria-rowindex", String(index + 2));
      }
      this.#fill(row, this.#table.at(index), now_ms);
    }
    for (const row of free) row.element.remove();
    this.#tellSelected();
  }

  /** Draws the time that is left in the rows of the screen. */
  tick(now_ms) {
    for (const row of this.#rows.values()) draw(row.bar, row.next, now_ms);
  }

  /** Chooses `key`, and shows it. */
  select(key) {
    this.#selected = key;
    if (key !== null) this.#show(this.#table.place(key));
    this.render();
  }

  get selected() {
    return this.#selected;
  }

  /** Rows are of another height on small screens. */
  #resize() {
    this.rowHeight = null;
    for (const { element } of this.#rows.values()) element.remove();
    this.#rows.clear();
    this.render();
  }

  #row() {
    const link = el("a", { tabindex: "-1" });
    const cell = (name, content) => el("span", { class: name, role: "gridcell" }, content ?? "");
    const time = bar();
    const cells = { key: cell("key", link), time: cell("time", time.element) };
    for (const name of ["mode", "holder", "token", "waiters"]) cells[name] = cell(name);
    const element = el("div", { class: "row", role: "row" }, ...COLUMNS.map(([name]) => cells[name]));
    this.#spacer.append(element);
    return { element, link, cells, bar: time, next: null, key: null };
  }

  #fill(row, entry, now_ms) {
    const { element, link, cells } = row;
    if (row.key !== entry.key) {
      row.key = entry.key;
      link.textContent = visible(entry.key);
      link.title = entry.key;
      link.href = `#/key/${encodeURIComponent(entry.key)}`;
      element.id = `row-${encodeURIComponent(entry.key)}`;
    }
    const holders = entry.holders;
    row.next = next(holders);
    element.classList.toggle("ended", Boolean(entry.ended));
    element.classList.toggle("new", now_ms - entry.born_ms < 1000);
    element.classList.toggle("selected", this.#selected === entry.key);
    element.setAttribute("aria-selected", String(this.#selected === entry.key));
    const others = holders.length - 1 + (entry.more_holders ?? 0);
    const waiters = entry.waiters.length + (entry.more_waiters ?? 0);
    const more = others > 0 ? ` +${others}` : "";
    const held = holders[0] ?? entry.waiters[0];
    put(cells.mode, mode(held));
    cells.mode.classList.toggle("usual", held?.mode === "exclusive");
    put(cells.holder, entry.ended ? entry.ended.how : holders.length ? label(holders[0].holder) + more : entry.more_holders ? `${count(entry.more_holders)} more` : "nobody yet");
    cells.holder.classList.toggle("unnamed", holders.length > 0 && !holders[0].holder);
    cells.holder.title = holders[0]?.by ? `by ${holders[0].by}, the principal that the nodes have authenticated` : "";
    put(cells.token, holders.length ? String(holders[0].token) + more : "");
    put(cells.waiters, waiters ? count(waiters) : "");
    draw(row.bar, row.next, now_ms);
  }

  #clicked(event) {
    const row = event.target.closest(".row");
    if (!row || event.target.closest("a") || getSelection().toString()) return;
    this.open([...this.#rows.values()].find(({ element }) => element === row).key);
  }

  #pressed(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const keys = this.#table.keys;
    const page = Math.max(1, Math.floor(this.body.clientHeight / this.#rowHeight()) - 1);
    const at = this.#selected === null ? -1 : this.#table.place(this.#selected);
    const to = { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, PageDown: at + page, PageUp: at - page,
      Home: 0, End: keys.length - 1 }[event.key];
    if (to !== undefined && keys.length) {
      event.preventDefault();
      this.select(keys[Math.min(keys.length - 1, Math.max(0, to))]);
    } else if (event.key === "Enter" && this.#selected !== null) {
      event.preventDefault();
      this.open(this.#selected);
    }
  }

  #show(index) {
    const height = this.#rowHeight();
    const [top, bottom] = [index * height, (index + 1) * height];
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    else if (bottom > this.body.scrollTop + this.body.clientHeight) this.body.scrollTop = bottom - this.body.clientHeight;
  }

  #tellSelected() {
    const row = [...this.#rows.values()].find(({ key }) => key === this.#selected);
    if (row) this.element.setAttribute("aria-activedescendant", row.element.id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  #rowHeight() {
    return this.rowHeight ??= parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 32;
  }
}

/** How a key is held, as a word. */
export function mode(held) {
  if (!held) return "";
  return held.limit ? `shared ≤ ${held.limit}` : held.mode;
}

/** The label of a holder; it may have given none. */
export function label(holder) {
  return holder ? visible(holder) : "unnamed";
}

/** Of several holders, the one whose lease ends first. */
function next(holders) {
  return holders.reduce((first, other) => (first === null || other.ends_ms < first.ends_ms ? other : first), null);
}
