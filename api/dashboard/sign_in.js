// Who the page is to the node, in the header, and the dialog that asks for a credential.

import { access } from "./access.js";
import { el, put } from "./dom.js";

const at = (id) => document.getElementById(id);

/** Draws the header when that changes, and asks for a credential where nothing can be seen without. */
export function start() {
  at("sign").addEventListener("click", () => (access.isSignedIn ? access.signOut() : ask()));
  access.addEventListener("change", () => {
    const { view, isSignedIn, isOpen } = access;
    put(at("principal"), view?.principal ?? "");
    put(at("sign"), isSignedIn ? "Sign out" : "Sign in");
    at("sign").hidden = isOpen && !isSignedIn;
    const seesNothing = view !== null && view.allow.length === 0 && view.cluster.length === 0;
    if (access.refusal || (seesNothing && view.principal === null && !isSignedIn)) ask();
    else if (isSignedIn) document.querySelector("dialog.sign-in")?.close();
  });
}

function ask() {
  const open = document.querySelector("dialog.sign-in");
  if (open) {
    put(open.querySelector(".result"), access.refusal ?? "");
    return;
  }
  const input = el("input", { id: "credential", type: "password", autocomplete: "off", spellcheck: "false", autofocus: true, required: true });
  const form = el("form", { onsubmit: (event) => { event.preventDefault(); access.signIn(input.value.trim()); } },
    el("label", { for: "credential", text: "Credential" }), input,
    el("p", { class: "result bad", role: "status", text: access.refusal ?? "" }),
    el("div", { class: "buttons" },
      el("button", { type: "button", text: "Cancel", onclick: () => dialog.close() }),
      el("button", { text: "Sign in" })));
  const dialog = el("dialog", { class: "sign-in", "aria-labelledby": "sign-in-title", onclose: () => dialog.remove() },
    el("h2", { id: "sign-in-title", text: "Sign in" }),
    el("p", { text: "This node has access rules. The credential is kept in this tab until you sign out or close it." }),
    form);
  document.body.append(dialog);
  dialog.showModal();
}
