// The view of the mirror in Redis.

import { unseen } from "./cluster.js";
import { el, facts, table } from "./dom.js";
import { web } from "./node.js";
import { count, time, visible } from "./text.js";

const STATES = {
  standby: "This node does not publish: it does not lead.",
  published: "Redis has what the table has, but for what changed just now.",
  reconciling: "Table and Redis are being compared, and changes published.",
  connecting: "Redis is being connected to.",
  failing: "Redis cannot be reached, or refuses what is written. It is tried again and again; grants go on meanwhile.",
  occupied: "Another cluster publishes there: this one does not.",
};

export class MirrorView {
  title = "Mirror";
  watches = false;

  constructor(page) {
    this.page = page;
    this.heading = el("h1", { text: "Mirror", tabindex: "-1" });
    this.body = el("div");
    this.element = el("section", { class: "mirror" }, this.heading, this.body);
    page.node.addEventListener("change", () => this.#draw(), { signal: page.signal });
    this.#draw();
  }

  get isShowing() {
    return this.page.node.view !== null;
  }

  focus() {
    this.heading.focus({ preventScroll: true });
  }

  tick() {}

  #draw() {
    const { view } = this.page.node;
    const focused = this.body.contains(document.activeElement);
    this.body.replaceChildren(...(view ? told(view) : [unseen(this.page.node)]));
    if (focused) this.body.querySelector("a")?.focus();
  }
}

function told(view) {
  const { mirror } = view;
  if (!mirror) {
    return [el("div", { class: "empty" },
      el("h2", { text: "No mirror is kept" }),
      el("p", { text: "With a mirror, the leader publishes the fence of each key in a Redis of yours, where readers in any " +
        "language can reject stale tokens without asking the cluster. Start each node with:" }),
      el("pre", { tabindex: "0" }, el("code", { text: "ringfence serve … --redis redis://127.0.0.1:6379" })))];
  }
  const isWell = mirror.state === "published";
  return [
    facts(
      ["State", el("span", { class: `chip ${isWell ? "good" : mirror.state === "standby" ? "" : "bad"}`, text: mirror.state })],
      ["Behind by", `${count(mirror.lag_keys)} keys`, "Changed, and not known to stand in Redis yet"],
      ["Oldest of them", time(mirror.lag_ms)],
    ),
    el("p", { class: "note", text: STATES[mirror.state] ?? "" }),
    mirror.state === "standby" ? leads(view) : null,
    mirror.last_error ? el("p", { class: "failure", text: `Last error: ${visible(mirror.last_error)}` }) : null,
    el("h2", { text: "Masters" }),
    mirror.masters?.length ? table("Masters", [
      { name: "Address" }, { name: "State" }, { name: "Behind by", class: "number" }, { name: "Oldest", class: "number" }, { name: "Last error" },
    ], mirror.masters.map((master) => [
      visible(master.address), master.state, `${count(master.lag_keys)} keys`, time(master.lag_ms),
      master.left_to ? `left to cluster ${master.left_to.cluster_id}` : visible(master.last_error ?? "none"),
    ])) : el("p", { class: "none", text: "None that this node publishes to." }),
  ].filter(Boolean);
}

function leads(view) {
  const url = web(view.members[view.leader]?.url);
  if (!url) return null;
  return el("p", {}, "The leader publishes: ", el("a", { href: `${url}/#/mirror`, rel: "noreferrer", text: `see node ${view.leader}` }), ".");
}
