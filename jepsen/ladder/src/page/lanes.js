
// ---- the lanes: a column per holder, one for the storage; time goes down

/** A value of a Rust enum: its name, and what it carries. */
const variant = (value) => typeof value === "string" ? [value, {}] : Object.entries(value)[0];
const seconds = (us) => `${(us / 1_000_000).toFixed(3)} s`;

function drawLanes(round, isWhole) {
  const shown = isWhole ? round.events : round.events.slice(round.before_fault);
  const names = ["A", "B", "C"].filter((who) => who !== "C" || shown.some((it) => it.who === "C"));
  const state = { names, holding: new Set(), paused: new Set(), dead: new Set(), start: shown.length > 0 ? shown[0].from_us : 0 };
  const head = [el("span", {}), names.map((who) => el("span", { class: "who" }, who)), el("span", { class: "who" }, "storage")];
  const rows = shown.flatMap((it, place) => drawStep(it, place + 2, state));
  return el("div", { class: "lanes", style: `--lanes: ${names.length}` }, head, rows);
}

/** One step: its time, the lanes beside it, and the step itself, in its lane or across all. */
function drawStep(it, row, state) {
  const [name, value] = variant(it.what);
  const { text, look, storage } = words(name, value, it, state);
  const at = (column) => `grid-row: ${row}; grid-column: ${column}`;
  if (name === "stopped") state.paused.add(it.who);
  const both = state.holding.size > 1 ? " both" : "";
  const lanes = state.names.map((who, lane) => {
    const bar = state.dead.has(who) ? " dead" : state.paused.has(who) ? " paused" : state.holding.has(who) ? ` holds${both}` : "";
    return el("div", { class: `lane${bar}`, style: at(lane + 2) });
  });
  const column = state.names.indexOf(it.who) + 2;
  const step = el("div", { class: "place", style: at(it.who === "S" ? "2 / -1" : column) }, el("span", { class: `step ${look}` }, text));
  const access = storage == null ? [] : [
    el("div", { class: `reach ${look}`, style: `${at(`${column} / -1`)}; --span: ${state.names.length + 3 - column}`, "aria-hidden": "true" }),
    el("div", { class: "place", style: at("-2 / -1") }, el("span", { class: `step ${look}` }, storage)),
  ];
  follow(name, value, it.who, state);
  const classes = it.who === "S" || look === "fault" ? "event" : "";
  return [el("div", { class: `stripe ${classes}`, style: at("1 / -1") }), el("time", { style: at(1) }, seconds(it.to_us - state.start)), lanes, el("div", { class: "lane data", style: at("-2 / -1") }), access, step];
}

/** Who believes to hold the lock, stands still, or is dead after a step. */
function follow(name, value, who, state) {
  const [answer] = variant(value.answer || "");
  const [step] = variant(value.step || "");
  if (answer === "granted") state.holding.add(who);
  const gives = name === "killed" || step === "release" || answer === "rejected" || (step === "check" && answer === "lost");
  if (gives) state.holding.delete(who);
  if (name === "killed") state.dead.add(who);
  if (name === "resumed") state.paused.delete(who);
}

/** A step in words; how it looks; what the storage answers, if it was asked. */
function words(name, value, it, state) {
  const plain = (text, look = "") => ({ text, look });
  if (name === "killed") return plain("is killed", "fault");
  if (name === "stopped") return plain("is paused", "fault");
  if (name === "resumed") return plain("resumes", "fault");
  if (name === "fault") return plain(value.observed, "fault");
  const [answer, detail] = variant(value.answer);
  const granted = detail.pass && detail.pass.token ? `gets the lock, token ${detail.pass.token}` : "gets the lock";
  if (name === "wait") return waited(value, granted);
  const [step] = variant(value.step);
  if (step === "stop-renewing") return plain("stops renewing", "fault");
  if (answer === "unsure") return plain(`${step}: ${detail.why}`, "waits");
  if (step === "read" || step === "write") return accessed(step, answer, detail, it.flag);
  if (answer === "granted") return plain(granted, "good");
  if (answer === "held") return plain("asks: the lock is held");
  if (answer === "refused") return plain(`does not get the lock: ${detail.why}`, "good");
  if (step === "touch") return answer === "alive" ? plain("renews the lock") : plain("cannot renew: not the holder", "waits");
  if (step === "check") return answer === "alive" ? plain("by its clock, holds the lock") : plain("by its clock, holds no lock: stops", "good");
  if (step === "release") return released(answer, it.who, state);
  return plain(`${step}: ${answer}`);
}

function waited(value, granted) {
  if (value.stuck) return { text: `asks ${value.attempts} times, never gets the lock: ${value.stuck}`, look: "waits" };
  return value.attempts > 1 ? { text: `asks ${value.attempts} times, then ${granted}`, look: "waits" } : { text: granted, look: "good" };
}

/** A release that works for a holder that has released before ends the lock of another one. */
function released(answer, who, { holding }) {
  if (answer === "lost") return { text: "releases: holds no lock", look: "" };
  const others = [...holding].filter((other) => other !== who);
  if (holding.has(who) || others.length === 0) return { text: "releases the lock", look: "" };
  return { text: `releases the lock of ${others.join(" and ")}`, look: "harm" };
}

function accessed(step, answer, detail, flag) {
  const does = step === "read" ? "reads" : "writes";
  if (answer === "rejected") return { text: does, look: flag === "live-rejected" ? "harm" : "fenced", storage: `rejected: ${detail.why}` };
  if (step === "read") return { text: does, look: "", storage: detail.count };
  const isStale = flag === "stale";
  return { text: `writes ${detail.count}`, look: isStale ? "harm" : "", storage: isStale ? `${detail.count}, stale` : detail.count };
}
