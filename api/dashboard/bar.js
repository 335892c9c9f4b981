// The time that a lease has left, as a bar and a number.

import { el, put } from "./dom.js";
import { time } from "./text.js";

/** The parts of a bar, to be drawn again by `draw`. */
export function bar() {
  const fill = el("span", { class: "fill" });
  const number = el("span", { class: "left" });
  return { element: el("span", { class: "time-left" }, el("span", { class: "bar", "aria-hidden": "true" }, fill), number), fill, number };
}

/** Draws what `holder` has left at `now_ms`, on the clock of this page. */
export function draw({ fill, number }, holder, now_ms) {
  const left_ms = holder ? left(holder, now_ms) : null;
  if (left_ms === null) {
    put(number, holder ? "–" : "");
    set(fill, 0);
    return;
  }
  // A lease may end late, when the cluster stalls or changes its leader; never early.
  put(number, left_ms > 0 ? time(left_ms) : "due");
  set(fill, Math.min(1, Math.max(0, left_ms / holder.ttl_ms)));
}

/** What a holder has left, `null` where it is not known. */
export function left(holder, now_ms) {
  return holder.ends_ms === null ? null : holder.ends_ms - now_ms;
}

/** The holders of a key as they were answered, with the end of each on the clock of this page. */
export function dated(holders, answered_ms) {
  return holders.map((holder) => {
    const known = typeof holder.expires_in_ms === "number";
    return { ...holder, ends_ms: known ? answered_ms + holder.expires_in_ms : null };
  });
}

function set(fill, share) {
  const text = share.toFixed(3);
  if (fill.dataset.share === text) return;
  fill.dataset.share = text;
  fill.style.setProperty("--share", text);
}
