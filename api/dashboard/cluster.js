// The view of the nodes: the members as this node sees them, and what it measured itself.

import { access } from "./access.js";
import { call, pause, until } from "./api.js";
import { el, facts, table } from "./dom.js";
import { quantile, samples, value } from "./figures.js";
import { web } from "./node.js";
import { count, seconds, span, time } from "./text.js";

const EVERY_MS = 2000;
const DAY_MS = 86_400_000;
/** How far back what is called recent goes, in readings. */
const WINDOW = 15;
/** A member that has not answered for so long is said not to answer: `MemberStatus::SILENT_MS`. */
const SILENT_MS = 5000;

export class ClusterView {
  title = "Cluster";
  watches = false;

  constructor(page) {
    this.page = page;
    this.heading = el("h1", { text: "Cluster", tabindex: "-1" });
    this.members = el("div", { class: "members" });
    this.own = el("div", { class: "own" });
    this.element = el("section", { class: "cluster" }, this.heading, this.members, this.own);
    this.readings = [];
    page.node.addEventListener("change", () => this.#draw(), { signal: page.signal });
    this.#draw();
    until(page.signal, async () => {
      for (;;) {
        if (!document.hidden) await this.#read();
        await pause(EVERY_MS, page.signal);
      }
    });
  }

  get isShowing() {
    return this.page.node.view !== null;
  }

  focus() {
    this.heading.focus({ preventScroll: true });
  }

  tick() {}

  async #read() {
    if (!access.mayWithCluster("metrics")) return;
    const { status, body } = await call("GET", "metrics", { signal: this.page.signal });
    if (status === 200 && typeof body === "string") {
      this.readings = [...this.readings, { at_ms: performance.now(), found: samples(body) }].slice(-WINDOW);
    }
    this.#draw();
  }

  #draw() {
    const { view } = this.page.node;
    if (!view) {
      this.members.replaceChildren(unseen(this.page.node));
      this.own.replaceChildren();
      return;
    }
    const focused = this.members.contains(document.activeElement) ? document.activeElement.href : null;
    const parts = [
      facts(
        ["Leader", view.leader === null ? el("strong", { class: "bad", text: "none" }) : `node ${view.leader}`],
        ["Term", String(view.term), "How often a leader was looked for"],
        ["Revision", String(view.revision), "How many changes the table has seen; tokens are revisions"],
        ["Live leases", count(view.live_leases)],
        ["Waiting", count(view.waiters)],
        ["Rules", rules(view), "The version of the rules by which the cluster decides, and what all programs support"],
        ["Cluster time", span(Math.floor(view.at_ms / 1000) * 1000) || "0 s", "Advanced by leaders only; stands still without one"],
      ),
      el("h2", { text: "Nodes" }),
      table("Nodes", [
        { name: "Node" }, { name: "Role" }, { name: "Page" }, { name: "Peer port" },
        { name: "Version" }, { name: "Rules", title: "The rules that its program supports" },
        { name: "Lag", class: "number", title: "Log entries that it lacks, as the leader sees it" },
      ], Object.entries(view.members).map(([id, member]) => row(view, Number(id), member))),
      view.role === "leader" ? null : el("p", { class: "note" }, "Only the leader knows how far the others are",
        ...leaderLink(view), "."),
      ...certificates(view),
      ...(view.files_refused ?? []).map((one) => el("p", { class: "bad", text: `Node ${view.node_id} cannot use files for ${one.use} that changed: ${one.why}` })),
    ];
    this.members.replaceChildren(...parts.filter(Boolean));
    if (focused) [...this.members.querySelectorAll("a")].find((link) => link.href === focused)?.focus();
    if (!access.mayWithCluster("metrics")) return this.own.replaceChildren();
    this.own.replaceChildren(el("h2", { text: `Node ${view.node_id}, this one` }), this.#figures(view),
      el("p", { class: "note", text: `Times are of the last ${Math.round(this.#window() / 1000)} s where something was measured ` +
        `since, else since the start. Cluster ${view.cluster_id}, version ${view.version}.` }));
  }

  #window() {
    return this.readings.length > 1 ? this.readings.at(-1).at_ms - this.readings[0].at_ms : 0;
  }

  #figures(view) {
    const found = this.readings.at(-1)?.found ?? new Map();
    const before = this.readings.length > 1 ? this.readings[0].found : null;
    const of = (...names) => value(found, ...names);
    const p = (share, ...names) => seconds(quantile(share, found, before, ...names) ?? NaN);
    const rate = (name) => {
      const [now, then] = [value(found, name), before && value(before, name)];
      const ms = this.#window();
      return now === null || then === null || !ms ? "–" : `${count(Math.round((now - then) * 10_000 / ms) / 10)} /s`;
    };
    const flush = ["ringfence_raft_log_flush_seconds", "ringfence_log_flush_seconds"];
    const proposal = ["ringfence_raft_proposal_duration_seconds", "ringfence_proposal_duration_seconds"];
    const lag = of("ringfence_raft_apply_lag_entries") ??
      (view.committed_index === null ? null : view.committed_index - (view.applied_index ?? 0));
    const longest = of("ringfence_loop_lag_longest_seconds", "ringfence_loop_delay_longest_seconds");
    const figures = facts(
      ["Disk flush, median", p(0.5, ...flush), "Writing and syncing the log"],
      ["Disk flush, p99", p(0.99, ...flush)],
      ["Proposal, p99", p(0.99, ...proposal), "From a command to its outcome, where this node leads"],
      ["Loop lag, p99", p(0.99, "ringfence_loop_lag_seconds", "ringfence_loop_delay_seconds"), "How long what is due waits for the thread"],
      ["Loop lag, longest", seconds(longest ?? NaN), "Of the last half minute or so"],
      ["Leader changes", count(of("ringfence_raft_leader_changes_total") ?? NaN), "Since this node was started"],
      ["Apply lag", `${count(lag ?? NaN)} entries`, "Committed and not applied yet"],
      ["Log index", count(view.last_log_index)],
      ["Acquires here", rate("ringfence_acquire_total")],
      ["Requests here", rate("ringfence_http_requests_total")],
    );
    figures.classList.add("figures");
    return figures;
  }
}

/** Why the state of the cluster is not shown. */
export function unseen(node) {
  const may = access.isAnonymous ? "Sign in to see" : "You may not see";
  const denied = `${may} the state of the cluster: that needs the right observe.`;
  return el("p", { text: access.mayWithCluster("observe") ? node.refusal ?? "Asking this node …" : denied });
}

function row(view, id, member) {
  const isThis = id === view.node_id;
  const url = web(member.url);
  const role = id === view.leader ? "leader" : !member.voter ? "learner" : isThis ? view.role : "voter";
  return [
    `${id}${isThis ? " (this page)" : ""}`,
    el("div", {},
      el("span", { class: role === "leader" ? "role leading" : "role", text: role }),
      member.silent_ms >= SILENT_MS
        ? el("p", { class: "bad", text: `has not answered node ${view.node_id} for ${time(member.silent_ms)}` }) : null,
      member.cannot_call
        ? el("p", { class: "bad", text: `cannot call node ${view.node_id}, which leads` }) : null,
      member.snapshot_failure
        ? el("p", { class: "bad", text: `a snapshot could not be delivered: ${member.snapshot_failure}` }) : null,
      member.refused ? el("p", { text: `refused: ${member.refused}` }) : null),
    url ? el("a", { href: `${url}/#/cluster`, rel: "noreferrer", text: url.replace(/^https?:\/\//, "") }) : "not told yet",
    member.peer,
    member.version ?? "–",
    member.rules ? `${member.rules.oldest} to ${member.rules.newest}` : "–",
    id === view.leader ? "–" : count(member.lag_entries),
  ];
}

/** Those that this node uses, and the last that the others showed to it. Older nodes tell of none. */
function certificates(view) {
  const own = (view.certificates ?? []).map((one) => [one.subject, one.authority ? `${one.use}, authority` : one.use, one.file, ends(one.ends_unix_s, one.begins_unix_s, one.needed)]);
  const shown = Object.entries(view.members).filter(([, member]) => member.certificate_ends_unix_s);
  const rows = [...own, ...shown.map(([id, member]) => [`node ${id}`, "peers", "–", ends(member.certificate_ends_unix_s)])];
  if (!rows.length) return [];
  return [el("h2", { text: "Certificates" }), table("Certificates", [
    { name: "Whose" }, { name: "Use", title: "With clients, or with peers, which are other nodes" }, { name: "File" }, { name: "End" },
  ], rows)];
}

/** From 30 days before, it stands out, unless it may be left over. */
function ends(unix_s, begins_unix_s = 0, isNeeded = true) {
  const isEarly = begins_unix_s * 1000 > Date.now();
  const moment = isEarly ? begins_unix_s : unix_s;
  const left = moment * 1000 - Date.now();
  const at = new Date(moment * 1000).toISOString().slice(0, 16).replace("T", " ");
  const distance = left < 2 * DAY_MS ? span(Math.floor(left / 60_000) * 60_000) : `${Math.floor(left / DAY_MS)} days`;
  const text = left < 0 ? `ended on ${at} UTC` : `${isEarly ? "begins on " : ""}${at} UTC, in ${distance}`;
  return el("span", { class: isNeeded && (isEarly || left < 30 * DAY_MS) ? "bad" : null, text });
}

/** Old nodes tell nothing of rules. */
function rules({ rules = 1, rules_supported = null }) {
  if (rules_supported === null) return `${rules}, not known whether they can be raised`;
  return rules_supported > rules ? `${rules}, can be raised to ${rules_supported}` : String(rules);
}

function leaderLink(view) {
  const url = web(view.members[view.leader]?.url);
  return url ? [": ", el("a", { href: `${url}/#/cluster`, rel: "noreferrer", text: `the page of node ${view.leader}` })] : [];
}
