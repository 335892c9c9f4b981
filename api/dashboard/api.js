// Calls to this node. Every path is relative to the page, so that a proxy may serve it all under a path of its own.

import { access } from "./access.js";

/** How long a call may take: a node gives up after 5 s by itself. */
const WITHIN_MS = 8000;

/**
 * One call: `{status, body}`, where a status of 0 says that no answer came. The body of a refusal is a problem
 * (RFC 9457), or `null` where somebody between the node and this page made the answer.
 */
export async function call(method, path, { body, signal, within_ms = WITHIN_MS } = {}) {
  const limit = AbortSignal.timeout(within_ms);
  try {
    const response = await fetch(path, {
      method,
      headers: access.headers(),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      cache: "no-store",
    });
    const text = await response.text();
    // The rules may have changed.
    if (response.status === 401 || response.status === 403) access.ask();
    return { status: response.status, body: parsed(response, text) };
  } catch (error) {
    signal?.throwIfAborted();
    return { status: 0, body: null, error };
  }
}

/** Why a call did not succeed, for a person. */
export function reason({ status, body }) {
  if (status === 0) return "No answer from this node.";
  return body?.detail ?? body?.title ?? `The answer was ${status}.`;
}

/** The path of a key: what has a meaning of its own in a URL is encoded, slashes stay. */
export function keyPath(key) {
  return "v1/keys/" + key.split("/").map(encodeURIComponent).join("/");
}

/** Resolves after a time; rejects when `signal` is aborted meanwhile. */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => { clearTimeout(timer); reject(signal.reason); };
    const timer = setTimeout(() => { signal?.removeEventListener("abort", stop); resolve(); }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Runs what ends by its signal; only other failures are told. */
export function until(signal, work) {
  return work().catch((error) => { if (!signal.aborted) throw error; });
}

function parsed(response, text) {
  const type = response.headers.get("content-type") ?? "";
  if (!type.includes("json")) return type.startsWith("text/plain") ? text : null;
  try { return JSON.parse(text); } catch { return null; }
}
