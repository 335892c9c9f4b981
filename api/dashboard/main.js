// The page: which view is shown, what the header says, and the keyboard.
//
//   the part of the URL after # ─▶ a view, which reads and watches until its signal is aborted
//   node.js, every 2 s          ─▶ header and banner
//   each frame, at most every 100 ms ─▶ tick: the time that is left, counted down locally

import { access } from "./access.js";
import { ClusterView } from "./cluster.js";
import { announce, el, put } from "./dom.js";
import { KeyView } from "./key.js";
import { Locks } from "./locks.js";
import { MirrorView } from "./mirror.js";
import { Node } from "./node.js";
import { start } from "./sign_in.js";
import { count } from "./text.js";

const TICK_MS = 100;
/** Whoever wants less motion sees numbers that change once a second. */
const CALM_TICK_MS = 1000;

const at = (id) => document.getElementById(id);
const node = new Node();
const calm = matchMedia("(prefers-reduced-motion: reduce)");
let view = null;
let leaving = new AbortController();
let isLive = false;
/** How many entries of the browser's history before this one are this page's: going back must not leave it. */
let depth = -1;

function route() {
  depth = history.state?.depth ?? depth + 1;
  history.replaceState({ depth }, "");
  const [path, query = ""] = splitOnce(location.hash.slice(1) || "/locks", "?");
  leaving.abort();
  leaving = new AbortController();
  isLive = false;
  const page = {
    node,
    signal: leaving.signal,
    live: (is) => { isLive = is; tell(); },
    go: goTo,
    rename: (hash) => history.replaceState(history.state, "", hash),
  };
  const name = path.split("/")[1];
  view = make(name, path, new URLSearchParams(query), page);
  document.title = `${view.title} – Ringfence`;
  for (const link of document.querySelectorAll("nav a")) {
    const isThis = link.dataset.view === (name === "key" ? "locks" : name);
    if (isThis) link.setAttribute("aria-current", name === "key" ? "true" : "page");
    else link.removeAttribute("aria-current");
  }
  at("main").replaceChildren(view.element);
  scrollTo(0, 0);
  view.focus();
  announce(view.title);
  tell();
}

function make(name, path, query, page) {
  switch (name) {
    case "key": {
      const key = decoded(path.slice("/key/".length));
      return key ? new KeyView(page, key) : new Locks(page, new URLSearchParams());
    }
    case "cluster": return new ClusterView(page);
    case "mirror": return new MirrorView(page);
    default: return new Locks(page, query);
  }
}

/** Header and banner. */
function tell() {
  const { view: known, answers, refusal } = node;
  const leader = known?.leader ?? null;
  put(at("node"), known ? `node ${known.node_id} · ${known.role} · term ${count(known.term)}` : "");
  const [word, kind] = !answers ? ["no connection", "bad"] : !node.goesOn ? ["no leader", "bad"] :
    known === null && access.mayWithCluster("observe") ? ["connecting", ""] : isLive ? ["live", "good"] : [view?.watches ? "polling" : "every 2 s", ""];
  put(at("mode"), word);
  at("mode").className = `chip ${kind}`;
  const before = view?.isShowing ? "What stands here was read before." : "";
  const parts = !answers ? gone(before) : known && leader === null ? [
    "This node knows of no leader. ",
    "Either the cluster has none: then no lease is granted, renewed or ended, and its time stands still. Or this node is cut off. ",
    before,
  ] : refusal ? [`The cluster cannot be read through this node: ${refusal} ${before}`] : [];
  const banner = at("banner");
  const text = parts.map((part) => part.textContent ?? part).join("");
  banner.hidden = parts.length === 0;
  if (banner.textContent !== text) banner.replaceChildren(...parts);
}

function gone(before) {
  const links = node.others.filter(({ url }) => url).flatMap(({ id, url }) => [
    " ", el("a", { href: `${url}/${location.hash}`, rel: "noreferrer", text: `Node ${id}` }),
  ]);
  const name = node.view ? `Node ${node.view.node_id}` : "This node";
  return [`${name} does not answer. It is asked again every 2 s. ${before}`, ...links];
}

function pressed(event) {
  if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
  const isTyping = event.target.closest("input, textarea, select");
  if (event.key === "Escape") {
    event.preventDefault();
    if (isTyping) view.focus();
    else if (!(view instanceof Locks)) back();
    return;
  }
  if (isTyping) return;
  const links = document.querySelectorAll("nav a");
  if (event.key === "/") {
    event.preventDefault();
    if (!(view instanceof Locks)) goTo("#/locks");
    view.toFilter();
  } else if (event.key === "?") {
    at("help").showModal();
  } else if (links[Number(event.key) - 1]) {
    goTo(links[Number(event.key) - 1].getAttribute("href"));
  } else {
    view.pressed?.(event);
  }
}

/** Goes there at once: the event that would do it comes later. */
function goTo(hash) {
  if (location.hash === hash) return;
  history.pushState(null, "", hash);
  route();
}

function back() {
  if (depth > 0) history.back();
  else goTo("#/locks");
}

function splitOnce(text, by) {
  const place = text.indexOf(by);
  return place < 0 ? [text] : [text.slice(0, place), text.slice(place + 1)];
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return null; }
}

function tick(before_ms) {
  requestAnimationFrame(() => {
    const now_ms = performance.now();
    const isDue = now_ms - before_ms >= (calm.matches ? CALM_TICK_MS : TICK_MS);
    if (isDue) view.tick(node.now());
    tick(isDue ? now_ms : before_ms);
  });
}

addEventListener("popstate", route);
addEventListener("keydown", pressed);
at("help-button").addEventListener("click", () => at("help").showModal());
at("skip").addEventListener("click", (event) => { event.preventDefault(); view.focus(); });
node.addEventListener("change", tell);
start();
await access.ask();
route();
tick(0);
node.run();
// Another principal sees other things.
access.addEventListener("change", ({ detail }) => detail.isOther && route());
