
// ---- a cell: what was done, why it came out so, and the lanes

const isWide = () => matchMedia("(min-width: 1120px)").matches;
const pressed = () => document.querySelector("#grid [aria-pressed=true]");

function open(rung, cells, button) {
  if (pressed()) pressed().setAttribute("aria-pressed", "false");
  button.setAttribute("aria-pressed", "true");
  focusCell(button);
  history.replaceState(null, "", `#${encodeURIComponent(button.dataset.cell)}`);
  const section = document.getElementById("cell");
  section.hidden = false;
  section.replaceChildren(closer(), ...cells.flatMap((cell, place) => drawCell(rung, cell, place === 0)), key());
  if (isWide()) document.getElementById("side").append(section);
  else button.closest(".row").after(section);
  section.scrollTop = 0;
  const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
  if (isWide()) section.querySelector("header").scrollIntoView({ behavior, block: "nearest" });
  else button.closest(".row").scrollIntoView({ behavior, block: "start" });
}

function closer() {
  const shut = el("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
  shut.addEventListener("click", close);
  return shut;
}

function close() {
  const button = pressed();
  if (!button) return;
  document.getElementById("cell").hidden = true;
  button.setAttribute("aria-pressed", "false");
  history.replaceState(null, "", location.pathname + location.search);
  button.focus();
}

function drawCell(rung, cell, isFirst) {
  const fault = faults[cell.fault];
  const mark = marks[cell.measured];
  const usual = data.whys.find(([column, of]) => column === fault.column && of === cell.measured);
  const why = cell.reason || (usual && usual[2]);
  const head = el("header", {}, el("span", { class: `mark ${mark.kind}` }, mark.shown),
    el(isFirst ? "h2" : "h3", { id: isFirst ? "title" : null }, `${rung.name}: ${fault.name}`));
  const facts = el("dl", {},
    isFirst ? fact("Lock", rung.sends) : null, fact("Fault", fault.how), fact("Result", `${sentence(mark.means)} ${why || ""}`),
    cell.rounds.some((round) => round.mark !== cell.expected) ? fact("Expected", marks[cell.expected].means) : null,
    fact("Again", el("code", {}, `ringfence-ladder --only ${rung.number}${cell.fault === "none" ? "" : ` --fault ${fault.letters.replace("−", "-")}`}`)));
  return [head, facts, drawRounds(cell)];
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;
const fact = (name, value) => [el("dt", {}, name), el("dd", {}, value)];

/** The rounds of a cell; one of them is shown. */
function drawRounds(cell) {
  const body = el("div", {});
  const tabs = cell.rounds.map((_, number) => el("button", { type: "button" }, `Round ${number + 1}`));
  const whole = el("input", { type: "checkbox" });
  let shown = 0;
  const show = (number) => {
    shown = number;
    tabs.forEach((tab, place) => tab.setAttribute("aria-pressed", String(place === number)));
    body.replaceChildren(...drawRound(cell.rounds[number], whole.checked));
  };
  tabs.forEach((tab, number) => tab.addEventListener("click", () => show(number)));
  whole.addEventListener("change", () => show(shown));
  show(0);
  const hasEarlier = cell.rounds.some((round) => round.before_fault > 0);
  const early = hasEarlier ? el("label", {}, whole, " with the steps before the fault") : null;
  return el("div", {}, el("div", { class: "rounds" }, tabs.length > 1 ? tabs : null, early), body);
}

function drawRound(round, isWhole) {
  const c = round.counts;
  const count = (value, one, many, kind) => value > 0 ? el("li", { class: `chip ${kind}` }, `${value} ${value === 1 ? one : many}`) : null;
  const time = (ms, what, kind) => ms > 0 ? el("li", { class: `chip ${kind}` }, `${what} ${ms} ms`) : null;
  const counts = el("ul", { class: "chips" },
    count(c.lost_updates, "update lost", "updates lost", "lost"),
    count(c.stale_writes, "stale write accepted", "stale writes accepted", "lost"),
    count(c.live_rejected, "access of the live holder rejected", "accesses of the live holder rejected", "fenced"),
    count(c.fenced, "stale access rejected", "stale accesses rejected", "fenced"),
    c.stuck_for_ever ? el("li", { class: "chip stuck" }, `stuck: ${c.stuck_for_ever}`) : time(c.stuck_ms >= 100 ? c.stuck_ms : 0, "nobody could get the lock for", "stuck"),
    count(c.refused, "acquire refused", "acquires refused", "well"),
    time(c.overlap_ms, "two believed to hold the lock for", ""),
    count(c.lost_while_renewed, "lock lost while it was renewed", "locks lost while they were renewed", ""));
  const note = round.unknown ? el("p", {}, `Unknown: ${round.unknown}`) : null;
  return [counts, note, drawLanes(round, isWhole)].filter(Boolean);
}

function key() {
  const item = (look, text) => el("li", {}, el("span", { class: `lane ${look}` }), text);
  return el("ul", { class: "key" }, item("holds", "believes to hold the lock"), item("holds both", "so do two at once"), item("paused", "is paused"));
}

// ---- the page

function legend() {
  const used = new Set(data.cells.map((cell) => cell.measured));
  const items = data.marks.filter((it) => used.has(it.mark)).map((it) => el("li", {}, el("span", { class: `mark ${it.kind}` }, it.shown), it.means));
  const checks = data.rungs.some((rung) => rung.checked) ? el("li", {}, el("span", { class: "mark none" }, el("span", { class: "checks" })), "beside a lock: the storage checks each write") : null;
  fill("legend", items, checks);
  fill("columns", data.columns.map((fault) => el("li", {}, el("b", {}, faults[fault].letters), " ", faults[fault].name)));
}

function notes() {
  const list = (items) => el("ul", {}, items.map(([name, text]) => el("li", {}, el("b", {}, name), " ", text)));
  fill("notes",
    el("h2", {}, "How it is counted"),
    el("p", {}, "The holders A, B and C are processes. Each of them gets the lock, reads a stock count, writes the count plus one, and releases the lock. A referee pauses and kills them, loses their answers, moves clocks and makes servers fail, and checks that each of these faults happened; if it did not, the cell is unknown."),
    el("p", {}, "A write is stale if the storage accepts it after an access of a holder that got the lock later. An update is lost if the storage accepted it, and the final count does not contain it. A cell is played in several rounds, and shows the worst."),
    el("h2", {}, "The faults"), list(data.faults.filter((it) => it.fault !== "none").map((it) => [it.letters, `${it.name}. ${it.how}`])),
    el("h2", {}, "The locks"), list(data.rungs.map((rung) => [`${rung.number} ${rung.name}.`, rung.sends])),
    el("h2", {}, "The run"),
    el("p", {}, `${data.run.versions.join(", ")}; ${data.run.rounds} round${data.run.rounds === 1 ? "" : "s"} of each cell, ${data.run.date}, ${data.run.seconds} s.`),
    el("p", {}, el("code", {}, data.run.command)));
}

document.getElementById("lead").textContent = data.lead;
fill("tallies", data.headline.map((it) => el("li", { class: it.kind }, el("b", {}, it.count), ` ${it.what}`)));
document.getElementById("finding").hidden = !data.finding;
document.getElementById("finding").textContent = data.finding;
legend();
grid();
notes();
addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
const byName = (cell) => document.querySelector(`#grid [data-cell="${CSS.escape(cell)}"]`);
// A variant is in the cell of its column: F2 in that of F.
const wanted = decodeURIComponent(location.hash.slice(1));
const named = byName(wanted) || byName(wanted.replace(/\d$/, ""));
// Beside the grid, the place of a cell is never empty: a paused holder of the most common lock.
const first = named || (isWide() ? byName("4-P") || document.querySelector("#grid button") : null);
if (first) first.click();
if (first && !named) scrollTo(0, 0);
