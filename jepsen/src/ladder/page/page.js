"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const LANES = ["A", "B", "C"];

/** An element with attributes and children; texts become text, never markup. */
function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child != null));
  return made;
}

const fill = (id, ...children) => document.getElementById(id).replaceChildren(...children.flat().filter(Boolean));
const kinds = Object.fromEntries(data.marks.map((mark) => [mark.mark, mark]));
const faults = Object.fromEntries(data.faults.map((fault) => [fault.fault, fault]));
const kind = (mark) => kinds[mark].kind;

function mark(cells) {
  const worst = cells.map((cell) => cell.measured).sort((a, b) => kinds[a].order - kinds[b].order)[0];
  const text = [...new Set(cells.map((cell) => kinds[cell.measured].shown))].join("/");
  return { worst, text };
}

// ---- the grid

function grid() {
  const head = el("div", { class: "row head" }, el("span", { class: "number" }), el("span", { class: "name" }),
    data.columns.map((fault) => el("abbr", { title: faults[fault].name }, faults[fault].letters)));
  fill("grid", head, data.rungs.map(row));
}

function row(rung) {
  const own = data.cells.filter((cell) => cell.rung === rung.number);
  const name = [el("span", { class: "number" }, String(rung.number)), el("span", { class: "name", "data-number": rung.number }, rung.name)];
  const alone = own.filter((cell) => cell.fault === "none");
  if (alone.length > 0) {
    const button = cellButton(rung, alone, "wide");
    button.append(el("span", {}, "with no fault at all"));
    return el("div", { class: "row" }, name, button);
  }
  return el("div", { class: "row" }, name, data.columns.map((fault) => {
    const cells = own.filter((cell) => faults[cell.fault].column === fault);
    return cells.length > 0 ? cellButton(rung, cells, "") : el("span", { class: "mark none" }, "");
  }));
}

function cellButton(rung, cells, more) {
  const { worst, text } = mark(cells);
  const played = cells.some((cell) => cell.rounds.length > 0);
  const deviates = cells.some((cell) => cell.rounds.some((round) => round.mark !== cell.expected));
  const classes = `mark ${kind(worst)} ${more} ${deviates ? "deviates" : ""}`;
  if (!played) return el("span", { class: classes, title: "does not apply" }, text);
  const title = `${rung.name}: ${faults[cells[0].fault].name}: ${kinds[worst].means}`;
  const button = el("button", { type: "button", class: classes, title, "aria-label": title, "aria-pressed": "false" }, text);
  button.addEventListener("click", () => open(rung, cells, button));
  button.dataset.cell = `${rung.number}-${faults[cells[0].fault].letters}`;
  return button;
}

// ---- a cell

function open(rung, cells, button) {
  document.querySelectorAll("#grid [aria-pressed=true]").forEach((other) => other.setAttribute("aria-pressed", "false"));
  button.setAttribute("aria-pressed", "true");
  history.replaceState(null, "", `#${encodeURIComponent(button.dataset.cell)}`);
  const section = document.getElementById("cell");
  section.hidden = false;
  section.replaceChildren(...cells.flatMap((cell, place) => drawCell(rung, cell, place === 0, button)));
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  section.scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "nearest" });
  section.focus({ preventScroll: true });
}

function close(button) {
  document.getElementById("cell").hidden = true;
  button.setAttribute("aria-pressed", "false");
  history.replaceState(null, "", location.pathname);
  button.focus();
}

function drawCell(rung, cell, isFirst, button) {
  const fault = faults[cell.fault];
  const shut = el("button", { type: "button", class: "close", "aria-label": "close" }, "×");
  shut.addEventListener("click", () => close(button));
  const means = kinds[cell.measured];
  const head = el("header", {},
    el("span", { class: `mark ${means.kind}` }, means.shown),
    el("div", {},
      el(isFirst ? "h2" : "h3", {}, `${rung.name}: ${fault.name}`),
      el("p", { class: "soft" }, means.means, cell.measured === cell.expected ? "" : ` Expected was ${kinds[cell.expected].shown}.`)),
    isFirst ? shut : null);
  const why = cell.reason ? el("p", { class: "why" }, cell.reason) : null;
  const body = el("div", {});
  const choose = cell.rounds.map((round, number) => {
    const chosen = el("button", { type: "button" }, `round ${number + 1}`);
    chosen.addEventListener("click", () => show(number));
    return chosen;
  });
  const show = (number) => {
    choose.forEach((other, place) => other.setAttribute("aria-pressed", String(place === number)));
    body.replaceChildren(...drawRound(cell.rounds[number]));
  };
  show(0);
  return [head, why, isFirst ? el("p", { class: "soft" }, "Its holders send: ", rung.plays) : null, cell.rounds.length > 1 ? el("div", { class: "rounds" }, choose) : null, body].filter(Boolean);
}

function drawRound(round) {
  const c = round.counts;
  const count = (value, what) => el("span", {}, el("b", {}, String(value)), ` ${what}`);
  const counts = el("div", { class: "counts" },
    count(c.lost_updates, "updates lost"), count(c.stale_writes, "stale writes accepted"), count(c.fenced, "accesses fenced off"),
    count(c.overlap_ms, "ms with two holders"), count(c.stuck_for_ever ? "∞" : c.stuck_ms, "ms stuck"),
    count(c.lost_while_renewed, "locks lost while renewed"), count(c.live_rejected, "accesses of the live holder rejected"));
  const notes = [round.unknown ? `Not known: ${round.unknown}` : null, c.stuck_for_ever].filter(Boolean);
  return [counts, ...notes.map((note) => el("p", { class: "why" }, note)), ...drawLanes(round)];
}

// ---- the lanes

function drawLanes(round) {
  const lanes = LANES.filter((who) => who !== "C" || round.moves.some((move) => move.who === "C"));
  const holding = new Set();
  const stopped = new Set();
  const rows = round.moves.map((move, place) => drawMove(move, place, place < round.begins, lanes, holding, stopped));
  const head = [el("span", {}), lanes.map((who) => el("span", { class: "who" }, who))];
  const drawn = el("div", { class: "lanes", style: `--lanes: ${lanes.length}` }, head, rows);
  const caption = "A bar is a holder that counts itself the only one; hatched, its process stands still.";
  return [drawn, el("p", { class: "soft small" }, round.begins > 0 ? `${caption} Faded: before the fault each gets its turn.` : caption)];
}

function drawMove(move, place, isEarly, lanes, holding, stopped) {
  const [name, value] = typeof move.what === "string" ? [move.what, {}] : Object.entries(move.what)[0];
  const early = isEarly ? " early" : "";
  // The first row has the names of the lanes.
  const style = `grid-row: ${place + 2}`;
  const time = el("time", { class: early, style }, `${(move.to_us / 1000).toFixed(move.to_us < 100_000 ? 1 : 0)} ms`);
  const [text, look] = words(name, value, move.flag);
  if (name === "stopped") stopped.add(move.who);
  if (name === "resumed") stopped.delete(move.who);
  const step = el("span", { class: `step ${look}` }, text);
  const row = lanes.map((who, lane) => {
    const classes = `lane${holding.has(who) ? " holds" : ""}${stopped.has(who) ? " stopped" : ""}${early}`;
    return el("div", { class: classes, style: `${style}; grid-column: ${lane + 2}` }, who === move.who ? step : null);
  });
  if (move.who === "S") row.push(el("div", { class: `band${early}`, style }, step));
  track(name, value, move.who, holding);
  return [time, ...row];
}

/** Who counts itself the holder after this. */
function track(name, value, who, holding) {
  const answer = value.answer && (typeof value.answer === "string" ? value.answer : Object.keys(value.answer)[0]);
  const step = value.step && (typeof value.step === "string" ? value.step : Object.keys(value.step)[0]);
  if (answer === "granted") holding.add(who);
  if (name === "killed" || step === "release" || answer === "rejected" || (step === "check" && answer === "lost")) holding.delete(who);
}

/** What a move is in words, and how it looks. */
function words(name, value, flag) {
  if (name === "killed") return ["killed", "fault"];
  if (name === "stopped") return ["stands still", "fault"];
  if (name === "resumed") return ["goes on", "fault"];
  if (name === "fault") return [value.observed, "fault"];
  const [answer, detail] = typeof value.answer === "string" ? [value.answer, {}] : Object.entries(value.answer)[0];
  const token = detail.pass && detail.pass.token ? `, token ${detail.pass.token}` : "";
  if (name === "wait") {
    if (value.stuck) return [`asks ${value.attempts} times, in vain`, "waits"];
    return value.attempts > 1 ? [`asks ${value.attempts} times: granted${token}`, "waits"] : [`granted${token}`, "good"];
  }
  const step = typeof value.step === "string" ? value.step : Object.keys(value.step)[0];
  if (answer === "unsure") return [`${step.replace("-", " ")}: ${detail.why}`, "waits"];
  if (step === "acquire") {
    if (answer === "granted") return [`granted${token}`, "good"];
    return [answer === "held" ? "refused: it is held" : `not the holder: ${detail.why}`, ""];
  }
  if (answer === "rejected") return [`${step} rejected: ${detail.why}`, flag === "live-rejected" ? "harm" : "fenced"];
  if (step === "read") return [`reads ${detail.count}`, ""];
  if (step === "write") return [`writes ${detail.count}${flag === "stale" ? ": stale, and accepted" : ""}`, flag === "stale" ? "harm" : ""];
  if (step === "touch") return [answer === "alive" ? "renews" : "cannot renew: not the holder", answer === "alive" ? "" : "waits"];
  if (step === "check") return [answer === "alive" ? "by its own clock, still the holder" : "by its own clock, not the holder: stops", ""];
  if (step === "release") return [answer === "lost" ? "releases: was not the holder" : "releases", ""];
  if (step === "stop-renewing") return ["its renewal dies", "fault"];
  return [`${step}: ${answer}`, ""];
}

// ---- the page

function legend() {
  const used = new Set(data.cells.map((cell) => cell.measured));
  fill("legend", data.marks.filter((it) => used.has(it.mark)).map((it) =>
    el("span", {}, el("span", { class: `mark ${it.kind}` }, it.shown), it.means)));
}

function notes() {
  fill("notes",
    el("h2", {}, "The faults"),
    el("ul", {}, data.columns.map((fault) => el("li", {}, el("b", {}, faults[fault].letters), ` ${faults[fault].name}. ${faults[fault].how}`))),
    el("h3", {}, "The locks"),
    el("ul", {}, data.rungs.map((rung) => el("li", {}, el("b", {}, `${rung.number} ${rung.name}. `), rung.plays))),
    el("h3", {}, "How it is counted"),
    el("p", {}, "Holders A, B and C are processes. Each reads a stock count and writes it, plus one, under the lock; a referee stops and kills them, loses answers, moves clocks and fails servers, and waits until it has seen that this happened. A write is stale if it is accepted after the storage has accepted an access of a holder that was granted the lock later. An update is lost if it is accepted and no later count contains it. Every cell is played in several rounds; its mark is that of the worst one."),
  );
}

document.getElementById("lead").textContent = data.lead;
document.getElementById("facts").textContent = data.facts;
legend();
grid();
notes();
const chosen = document.querySelector(`#grid [data-cell="${CSS.escape(decodeURIComponent(location.hash.slice(1)))}"]`);
if (chosen) chosen.click();
addEventListener("keydown", (event) => {
  const pressed = document.querySelector("#grid [aria-pressed=true]");
  if (event.key === "Escape" && pressed) close(pressed);
});
