// Who this page is to the node, and what it may do. The node decides; the page only shows no more than that.

const CREDENTIAL = "ringfence-credential";
const UNRESTRICTED = {
  principal: null, allow: [{ keys: "*", may: ["read", "acquire", "revoke"] }], cluster: ["metrics", "operate"],
};
const INCLUDED_IN = { validate: ["read"], observe: ["operate"] };

class Access extends EventTarget {
  /** The response to `GET /v1/access`; `null` before there is one. */
  view = null;
  /** Why a credential was not accepted. */
  refusal = null;

  /** The headers of a request. The credential is in no cookie: no other page can send it. */
  headers() {
    const credential = sessionStorage.getItem(CREDENTIAL);
    return credential ? { authorization: `Bearer ${credential}` } : {};
  }

  get isSignedIn() {
    return sessionStorage.getItem(CREDENTIAL) !== null;
  }

  /** Whether the node knows nobody behind this page. */
  get isAnonymous() {
    return this.view !== null && this.view.principal === null;
  }

  /** Whether everybody may do everything. */
  get isOpen() {
    return this.isAnonymous && this.mayUnder("revoke", "") && this.mayWithCluster("operate");
  }

  signIn(credential) {
    // What is no header cannot be a credential.
    const isCredential = /^[\x21-\x7e]+$/.test(credential);
    if (!isCredential) return this.#told(this.view, "A credential is visible ASCII characters without spaces.");
    sessionStorage.setItem(CREDENTIAL, credential);
    return this.ask();
  }

  signOut() {
    sessionStorage.removeItem(CREDENTIAL);
    return this.ask();
  }

  /** Asks the node. */
  async ask() {
    const response = await this.#get();
    if (response?.status === 401 && this.isSignedIn) {
      const problem = await response.json().catch(() => null);
      sessionStorage.removeItem(CREDENTIAL);
      const anonymous = await this.#get();
      return this.#told(anonymous?.ok ? await anonymous.json() : this.view, problem?.detail ?? "The credential is not valid.");
    }
    if (response?.ok) this.#told(await response.json(), null);
    // Older nodes have no rules.
    else if (response?.status === 404) this.#told(UNRESTRICTED, null);
  }

  may(right, key) {
    return this.#with(right, (keys) => keys === "*" || keys === `=${key}` || (keys.endsWith("/") && !keys.startsWith("=") && key.startsWith(keys)));
  }

  mayUnder(right, prefix) {
    return this.#with(right, (keys) => keys === "*" || (keys.endsWith("/") && !keys.startsWith("=") && prefix.startsWith(keys)));
  }

  mayWithCluster(right) {
    return this.view === null || has(this.view.cluster, right);
  }

  /** The patterns of keys that may be read. */
  get readable() {
    return (this.view?.allow ?? []).filter(({ may }) => has(may, "read")).map(({ keys }) => keys);
  }

  #with(right, covers) {
    return this.view === null || this.view.allow.some(({ keys, may }) => has(may, right) && covers(keys));
  }

  #get() {
    return fetch("v1/access", { headers: this.headers(), cache: "no-store", signal: AbortSignal.timeout(4000) }).catch(() => null);
  }

  #told(view, refusal) {
    const isOther = JSON.stringify(view) !== JSON.stringify(this.view);
    [this.view, this.refusal] = [view, refusal];
    this.dispatchEvent(new CustomEvent("change", { detail: { isOther } }));
  }
}

export const access = new Access();

function has(rights, right) {
  return [right, ...(INCLUDED_IN[right] ?? [])].some((own) => rights.includes(own));
}
