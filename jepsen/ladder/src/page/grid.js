"use strict";
const data = JSON.parse(document.getElementById("data").textContent);

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
const marks = Object.fromEntries(data.marks.map((mark) => [mark.mark, mark]));
const faults = Object.fromEntries(data.faults.map((fault) => [fault.fault, fault]));
const deviates = (cell) => cell.rounds.some((round) => round.mark !== cell.expected);

// ---- the grid: a row per lock, under the name of its family

function grid() {
  const head = el("div", { class: "row head", role: "row" },
    el("span", { class: "name", role: "columnheader" }, "lock"),
    data.columns.map((fault) => el("b", { role: "columnheader", title: faults[fault].name, "aria-label": `${faults[fault].letters}, ${faults[fault].name}` }, faults[fault].letters)));
  const turned = el("div", { class: "row turned", "aria-hidden": "true" }, el("span", {}),
    data.columns.map((fault) => el("span", {}, el("span", {}, faults[fault].name))));
  const rows = data.rungs.flatMap((rung, place) => {
    const isFirst = place === 0 || data.rungs[place - 1].family !== rung.family;
    return [isFirst ? el("div", { class: "family", role: "row" }, el("span", { role: "rowheader" }, rung.family)) : null, row(rung)];
  });
  fill("grid", turned, head, rows);
  const buttons = document.querySelectorAll("#grid button");
  buttons.forEach((button, place) => { button.tabIndex = place === 0 ? 0 : -1; });
  document.getElementById("grid").addEventListener("keydown", move);
}

function row(rung) {
  const own = data.cells.filter((cell) => cell.rung === rung.number);
  const checks = rung.checked ? el("span", { class: "checks", title: "The storage can reject a write", role: "img", "aria-label": "(the storage checks)" }) : null;
  const name = el("span", { class: "name", role: "rowheader" }, el("span", { class: "number" }, rung.number), el("span", {}, rung.name, " ", checks));
  const alone = own.filter((cell) => cell.fault === "none");
  if (alone.length > 0) {
    const button = cellButton(rung, alone);
    button.append(el("span", {}, "with no fault at all"));
    return el("div", { class: "row", role: "row" }, name, el("span", { class: "wide", role: "cell" }, button));
  }
  return el("div", { class: "row", role: "row" }, name, data.columns.map((fault) => {
    const cells = own.filter((cell) => faults[cell.fault].column === fault);
    return el("span", { role: "cell" }, cells.length > 0 ? cellButton(rung, cells) : null);
  }));
}

/** The worst mark of a cell and its variants gives the colour. */
function cellButton(rung, cells) {
  const worst = cells.map((cell) => marks[cell.measured]).sort((a, b) => a.order - b.order)[0];
  const text = [...new Set(cells.map((cell) => marks[cell.measured].shown))].join("/");
  const classes = `mark ${worst.kind}${cells.some(deviates) ? " deviates" : ""}`;
  if (cells.every((cell) => cell.rounds.length === 0)) return el("span", { class: classes, title: worst.means }, text);
  const fault = faults[cells[0].fault];
  const title = `${rung.name}, ${fault.name}: ${cells.map((cell) => marks[cell.measured].means).join("; or ")}`;
  const button = el("button", { type: "button", class: classes, title, "aria-label": title, "aria-pressed": "false" }, text);
  button.dataset.cell = `${rung.number}-${fault.letters}`;
  button.addEventListener("click", () => open(rung, cells, button));
  return button;
}

/** The arrow keys move between cells, and open them where there is room beside the grid. */
function move(event) {
  const from = event.target.closest("button");
  const to = from && next(from, event.key);
  if (!to) return;
  event.preventDefault();
  focusCell(to);
  if (isWide()) to.click();
}

function next(from, key) {
  const rows = [...document.querySelectorAll("#grid .row")].map((row) => [...row.querySelectorAll("button")]).filter((row) => row.length > 0);
  const at = rows.findIndex((row) => row.includes(from));
  const place = rows[at].indexOf(from);
  if (key === "ArrowLeft") return rows[at][place - 1];
  if (key === "ArrowRight") return rows[at][place + 1];
  if (key === "Home") return rows[at][0];
  if (key === "End") return rows[at].at(-1);
  const other = key === "ArrowUp" ? rows[at - 1] : key === "ArrowDown" ? rows[at + 1] : null;
  const x = (button) => button.getBoundingClientRect().x;
  return other && other.reduce((best, button) => Math.abs(x(button) - x(from)) < Math.abs(x(best) - x(from)) ? button : best);
}

/** Of the grid's buttons, Tab reaches the last one that had the focus. */
function focusCell(button) {
  document.querySelectorAll("#grid button").forEach((other) => { other.tabIndex = other === button ? 0 : -1; });
  button.focus();
}
