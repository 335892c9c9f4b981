// An operator ends a lease. The dialog says what that does and what not, and wants the key typed again.

import { call, keyPath, reason } from "./api.js";
import { bar } from "./bar.js";
import { el, facts } from "./dom.js";
import { label, mode } from "./key_list.js";
import { count, visible } from "./text.js";

/**
 * Asks, and ends the lease of `holder` on `key` if that is wanted. `left` draws a bar of what it has left; `done` is called
 * when something may have changed. Once `signal` is aborted nothing is asked any more.
 */
export function revoke(key, holder, { left, done, signal }) {
  const time = bar();
  // Whether an earlier try may have been done.
  let isUnknown = false;
  const title = el("h2", { id: "revoke-title", text: "Revoke this lease?" });
  const input = el("input", {
    id: "typed", type: "text", autocomplete: "off", spellcheck: "false", autocapitalize: "none", "aria-describedby": "consequence",
    autofocus: true, oninput: () => { button.disabled = !isKey(input.value, key); },
  });
  const button = el("button", { class: "danger", disabled: true, text: "Revoke the lease" });
  const cancel = el("button", { type: "button", text: "Cancel", onclick: () => dialog.close() });
  const result = el("p", { class: "result", role: "status" });
  const form = el("form", { onsubmit: (event) => { event.preventDefault(); submit(); } },
    el("label", { for: "typed", text: "Type the key again" }), input,
    el("div", { class: "buttons" }, cancel, button));
  const dialog = el("dialog", { class: "revoke", "aria-labelledby": "revoke-title", onclose: () => { clearInterval(timer); dialog.remove(); } },
    title,
    facts(
      ["Key", el("code", { class: "key-name", text: visible(key) })],
      ...(others(holder) ? [["Its other keys", others(holder)]] : []),
      ["Holder", el("span", { class: holder.holder ? "label" : "label unnamed", text: label(holder.holder) })],
      ["Token", el("span", { class: "number", text: String(holder.token) })],
      ["Mode", mode(holder)],
      ["Time left", time.element],
    ),
    el("p", { id: "consequence" },
      others(holder) ? "It ends the lease on this key and on the others, and the next in each queue is granted. " :
        "It ends the lease, and the next in the queue is granted. ",
      el("strong", { text: "It does not stop the writer" }),
      ", who may not notice for a while: raise the guard too, so that storage rejects its token."),
    form, result);
  const timer = setInterval(() => left(time), 100);
  left(time);
  signal.addEventListener("abort", () => dialog.close(), { once: true });
  document.body.append(dialog);
  dialog.showModal();

  async function submit() {
    if (button.disabled) return;
    button.disabled = true;
    dialog.setAttribute("aria-busy", "true");
    const answer = await call("POST", "v1/revoke", { body: { key, token: holder.token } });
    dialog.removeAttribute("aria-busy");
    const [text, isFinal] = await outcome(answer);
    result.className = `result ${answer.status === 204 ? "good" : "bad"}`;
    result.textContent = text;
    button.disabled = isFinal;
    if (isFinal) {
      title.textContent = answer.status === 204 ? "The lease is revoked" : isUnknown ? "The lease has ended" : "Nothing was revoked";
      form.hidden = true;
      clearInterval(timer);
      time.element.closest("div").hidden = true;
      cancel.textContent = "Close";
      result.after(el("div", { class: "buttons" }, cancel));
      cancel.focus();
    }
    done();
  }

  /** What became of it, and whether that is the end. */
  async function outcome(answer) {
    switch (answer.status) {
      case 204: {
        const { status, body } = await call("GET", keyPath(key));
        const fence = status === 200 ? ` The fence is ${body.fence} now: raise the guard to it.` : "";
        return [`Revoked: token ${holder.token} is dead.${fence}`, true];
      }
      case 409:
        return [isUnknown ?
          `Token ${holder.token} is dead, perhaps by the try before: the lease was no longer live.` :
          `Nothing was done: token ${holder.token} was no longer live. The lease had ended by itself, or somebody was faster.`, true];
      case 503:
        return [`Certainly not done${isUnknown ? " this time" : ""}: ${reason(answer)} Try again.`, false];
      case 0:
      case 504:
        isUnknown = true;
        return [`It may or may not have been done: ${reason(answer)} To repeat it is harmless.`, false];
      default:
        return [reason(answer), false];
    }
  }
}

/** The other keys of a lease; `null` if it has none. Nodes of older versions tell of none. */
export function others({ other_keys: keys = [], more_keys: more = 0 }) {
  if (keys.length + more === 0) return null;
  const links = keys.map((key) => el("li", {}, el("a", { class: "key", href: `#/key/${encodeURIComponent(key)}`, text: visible(key) })));
  return el("ul", { class: "keys" }, ...links, more > 0 ? el("li", { class: "unnamed", text: `${count(more)} more` }) : null);
}

/** As it is, or as it is written where it has characters that cannot be seen. */
function isKey(typed, key) {
  return typed === key || typed === visible(key);
}
