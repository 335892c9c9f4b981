// A lane per key: who held it and for how long, who waited, what was written and what was rejected.

const FEW = 12; // lanes at first
const shownKeys = { all: false, text: '', focus: null };
let focusCalls = new Set();

/** The lanes to show, and how many more there are. */
function lanesShown() {
  const like = shownKeys.text.toLowerCase();
  const fitting = like ? lanes.filter(lane => lane.name.toLowerCase().includes(like)) : lanes;
  if (shownKeys.all || like) return [fitting, 0];
  const few = fitting.filter((lane, at) => at < FEW || lane.key === shownKeys.focus || lane.findings && at < 60);
  return [few, fitting.length - few.length];
}
const laneHeight = lane => 12 + lane.rows * 16 + (lane.barRows ? 4 + Math.min(lane.barRows, 8) * 4 : 0);

const lanesSheet = new Sheet('lanes');
const scroller = document.getElementById('scroll');
function drawLanes() {
  const [list] = lanesShown();
  const tops = [];
  let total = 0;
  for (const lane of list) { tops.push(total); total += laneHeight(lane); }
  const height = Math.max(40, Math.min(total, Math.round(innerHeight * .74)));
  document.getElementById('tall').style.height = Math.max(40, total) + 'px';
  const g = lanesSheet.begin(height), top = Math.min(scroller.scrollTop, Math.max(0, total - height));
  if (!list.length) lanesSheet.label(lanes.length ? 'no key has this text' : 'no keys', 20, colours.soft);
  const step = ticks(lanesSheet.width - GUTTER);
  lanesSheet.clip(() => {
    g.fillStyle = colours.line;
    for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) g.fillRect(Math.round(lanesSheet.x(t)), 0, 1, height);
    lanesSheet.bands(0, height);
  });
  for (let at = firstWhere(list.length, n => tops[n] + laneHeight(list[n]) >= top); at < list.length && tops[at] < top + height; at++) {
    drawLane(list[at], tops[at] - top);
  }
  if (total > height) {
    g.fillStyle = colours.soft; g.globalAlpha = .4;
    g.beginPath(); g.roundRect(lanesSheet.width - 6, height * top / total, 4, Math.max(24, height * height / total), 2); g.fill();
    g.globalAlpha = 1;
  }
  return tops;
}

function drawLane(lane, y) {
  const g = lanesSheet.g, height = laneHeight(lane);
  g.fillStyle = colours.line; g.fillRect(0, y + height - 1, lanesSheet.width, 1);
  if (lane.key === shownKeys.focus) { g.fillStyle = colours.faint; g.fillRect(0, y, GUTTER - 4, height - 1); }
  lanesSheet.label(lane.name, y + 14, colours.ink, GUTTER - (lane.findings ? 44 : 20));
  lanesSheet.hit(0, y, GUTTER, height, () => [lane.name, `${plural(lane.work, 'call')}, ${plural(lane.holds.length, 'hold')}` +
    (lane.findings ? `, ${plural(lane.findings, 'finding')}` : '')], 0);
  if (lane.findings) {
    g.fillStyle = colours.bad; g.beginPath(); g.roundRect(GUTTER - 32, y + 6, 22, 16, 8); g.fill();
    g.fillStyle = colours.sheet; g.textAlign = 'center'; g.fillText(lane.findings > 99 ? '99+' : lane.findings, GUTTER - 21, y + 14.5);
  }
  lanesSheet.clip(() => {
    drawBars(lane, y + 8 + lane.rows * 16);
    drawHolds(lane, y + 6);
    drawMarks(lane, y + 6);
  });
}

function drawHolds(lane, top) {
  const g = lanesSheet.g, drawn = [], written = [];
  g.font = '11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
  lane.seen(view.from, view.to, ({ hold, row }) => {
    const [x, mid, end] = [lanesSheet.x(hold.from), lanesSheet.x(hold.sure), lanesSheet.x(hold.to)], y = top + row * 16;
    const found = hold.call != null && inFinding.has(hold.call);
    // What is narrower than the pixel that is drawn already cannot be seen.
    if (!found && end < (drawn[row] ?? -1)) return;
    drawn[row] = Math.floor(Math.max(end, x + 1));
    g.fillStyle = holdColour(hold.process);
    g.globalAlpha = .3; g.fillRect(x, y + 1, Math.max(1, end - x), 11);
    g.globalAlpha = 1; if (mid > x) g.fillRect(x, y, Math.max(1, mid - x - (mid - x > 4 ? 1 : 0)), 13);
    if (found) {
      g.strokeStyle = colours.bad; g.lineWidth = focusCalls.has(hold.call) ? 3 : 2;
      g.strokeRect(x - 1, y - 1, Math.max(4, Math.max(mid, end) - x + 1), 15);
    }
    const begins = Math.max(x, GUTTER), room = Math.max(mid, end) - begins - 8;
    if (room > 20 && begins > (written[row] ?? 0)) {
      const who = hold.process == null ? '' : ` · process ${hold.process}`;
      const text = [`token ${hold.token}${who}`, `token ${hold.token}`, `${hold.token}`].find(text => g.measureText(text).width <= room);
      if (text) {
        written[row] = begins + g.measureText(text).width + 8;
        g.fillStyle = mid >= written[row] - 4 ? colours.sheet : colours.ink; g.textAlign = 'left';
        g.fillText(text, begins + 4, y + 7);
      }
    }
    lanesSheet.hit(x, y, Math.max(2, end - x), 13, () => tellHold(hold));
  });
  g.font = '12px system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif';
}

/** Waits, and calls of which nobody knows what became of them. */
function drawBars(lane, top) {
  const g = lanesSheet.g, drawn = [];
  lane.seenBars(view.from, view.to, ({ i, row }) => {
    const x = lanesSheet.x(sent[i]), end = lanesSheet.x(sent[i] + took[i]), y = top + row * 4;
    const found = inFinding.has(i);
    if (!found && end < (drawn[row] ?? -1)) return;
    drawn[row] = Math.floor(Math.max(end, x + 1));
    const outcome = outcomeOf(i);
    g.fillStyle = found ? colours.bad : outcome === 'unknown' ? colours.doubt : holdColour(calls.process[i]);
    g.globalAlpha = outcome === 'done' || found ? .9 : outcome === 'unknown' ? .75 : .35;
    g.fillRect(x, y, Math.max(1.5, end - x), found ? 3.5 : 2.5);
    g.globalAlpha = 1;
    lanesSheet.hit(x, y, Math.max(1.5, end - x), 2.5, () => tellCall(i), 1);
  });
}

function drawMarks(lane, top) {
  const g = lanesSheet.g, marks = lane.marks;
  const begin = firstWhere(marks.length, n => sent[marks[n]] >= view.from - 5e6), end = firstWhere(marks.length, n => sent[marks[n]] > view.to);
  const ticked = end - begin < (lanesSheet.width - GUTTER) / 12; // more would only be noise
  for (let n = begin; n < end; n++) {
    const i = marks[n], x = lanesSheet.x(sent[i] + took[i]), outcome = outcomeOf(i), found = inFinding.has(i);
    if (outcome === 'done' && !found) {
      if (!ticked) continue;
      g.fillStyle = colours.sheet; g.fillRect(x - .75, top + 8, 1.5, 5);
      g.fillStyle = colours.ink; g.fillRect(x - .75, top + 13, 1.5, 3);
      lanesSheet.hit(x - 2, top + 8, 4, 8, () => tellCall(i));
      continue;
    }
    if (outcome === 'stale' || outcome === 'malformed') cross(g, x, top + 6.5, outcome === 'stale' && !found ? colours.ink : colours.bad);
    if (found) ring(g, x, top + 6.5, focusCalls.has(i));
    lanesSheet.hit(x - 5, top + 1, 10, 11, () => tellCall(i));
  }
}

/** Around what broke a law; thicker while it is looked at. */
function ring(g, x, y, looked) {
  for (const [style, width] of [[colours.sheet, looked ? 6 : 4], [colours.bad, looked ? 3 : 2]]) {
    g.strokeStyle = style; g.lineWidth = width;
    g.beginPath(); g.arc(x, y, looked ? 7.5 : 6, 0, 7); g.stroke();
  }
}

function cross(g, x, y, colour) {
  for (const [style, width] of [[colours.sheet, 5], [colour, 2]]) {
    g.strokeStyle = style; g.lineWidth = width; g.lineCap = 'round';
    g.beginPath(); g.moveTo(x - 3.5, y - 3.5); g.lineTo(x + 3.5, y + 3.5); g.moveTo(x + 3.5, y - 3.5); g.lineTo(x - 3.5, y + 3.5); g.stroke();
  }
  g.lineCap = 'butt';
}

const VERBS = { wait: 'acquire, waiting', 'end if': 'delete, if it has the value', 'expire if': 'give another time, if it has the value', get: 'look at a value', token: 'ask for the token of a value', lease: 'look at a lease', key: 'look at a key', read: 'read the register', write: 'write the register' };
function tellCall(i) {
  const note = calls.note[i] ? `: ${calls.notes[calls.note[i] - 1]}` : '';
  const keys = keysOf(i).slice(0, 4).map(key => data.keys[key]).join(', ') + (keysOf(i).length > 4 ? ', …' : '');
  return [`${VERBS[nameOf(i)] ?? nameOf(i)}: ${outcomeOf(i)}${note}`, keys,
    `call ${calls.id[i]} of process ${calls.process[i]}` + (calls.node[i] ? ` at node ${calls.node[i]}` : ['read', 'write'].includes(nameOf(i)) ? ', at the guarded resource' : ', of the client library'),
    calls.token[i] ? `token ${calls.token[i]}` : '', `sent at ${clock(sent[i], 10)}, took ${duration(took[i])}`];
}
function tellHold(hold) {
  return [`token ${hold.token}`, (hold.process == null ? 'nobody was told of it' : `process ${hold.process}`) + (hold.holder ? `, “${hold.holder}”` : ''),
    hold.keys.length > 1 ? `of ${hold.keys.length} keys` : '', `lease ${hold.lease}…` + (hold.call == null ? '' : `, granted to call ${calls.id[hold.call]}`),
    hold.sure > hold.from ? `held for certain ${clock(hold.from)} to ${clock(hold.sure)} (${duration(hold.sure - hold.from)})` : 'never certain to its client',
    hold.end === 'unknown' ? 'its end was not seen' : `${hold.end}: seen by ${clock(hold.to)}`];
}
