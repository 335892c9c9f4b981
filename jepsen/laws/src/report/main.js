// Draws, and follows mouse, keyboard and links.

const stack = byId('stack'), tip = byId('tip'), cursor = byId('cursor');
const sheets = [overview, plots, lanesSheet];

function draw() {
  drawOverview(); drawPlots(); drawLanes();
  const [, hidden] = lanesShown();
  byId('more').hidden = !hidden && !(shownKeys.all && lanes.length > FEW);
  byId('more').textContent = shownKeys.all ? 'show fewer' : `show all ${number(lanes.length)} keys`;
  const step = (view.to - view.from) / 1000;
  byId('range').textContent = `${clock(Math.max(0, view.from), step)} to ${clock(Math.min(SPAN, view.to), step)}`;
}

// Where the mouse is.
const timeAt = event => {
  const box = stack.getBoundingClientRect(), width = plots.width - GUTTER;
  return view.from + (event.clientX - box.left - stack.clientLeft - GUTTER) / width * (view.to - view.from);
};
function sheetOf(event) { return sheets.find(sheet => sheet.canvas === event.target); }
function point(event) {
  const box = stack.getBoundingClientRect(), x = event.clientX - box.left - stack.clientLeft;
  cursor.hidden = x < GUTTER;
  cursor.style.left = x + 'px';
  cursor.classList.toggle('left', x > box.width - 110);
  cursor.firstElementChild.textContent = clock(timeAt(event), (view.to - view.from) / 1000);
  const sheet = sheetOf(event), inner = event.target.getBoundingClientRect();
  const hit = sheet && sheet.at(event.clientX - inner.left, event.clientY - inner.top);
  tip.hidden = !hit;
  if (!hit) return;
  tip.replaceChildren(...hit.tell().filter(Boolean).map((line, n) => n ? make('div', { className: 'soft' }, line) : make('b', {}, line)));
  const [w, h] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = Math.max(4, event.clientX + 16 + w > innerWidth ? event.clientX - w - 14 : event.clientX + 16) + 'px';
  tip.style.top = Math.max(4, event.clientY + 18 + h > innerHeight ? event.clientY - h - 12 : event.clientY + 18) + 'px';
}
function leave() { cursor.hidden = true; tip.hidden = true; }

// Drags: on the strip they choose a range, or move the one that is there; elsewhere they move time.
let drag = null;
const stripTime = event => {
  const box = overview.canvas.getBoundingClientRect();
  return Math.max(0, Math.min(SPAN, (event.clientX - box.left - GUTTER) / (box.width - GUTTER) * SPAN));
};
stack.addEventListener('pointerdown', event => {
  const sheet = sheetOf(event);
  if (event.button || !sheet) return;
  cancelAnimationFrame(moving);
  const strip = sheet === overview, at = stripTime(event), whole = view.to - view.from > SPAN * .9;
  const inside = strip && !whole && at >= view.from && at <= view.to;
  drag = { kind: strip ? (inside ? 'window' : 'range') : 'time', x: event.clientX, at, from: view.from, to: view.to, pointer: event.pointerId };
  if (event.pointerType === 'mouse') event.target.setPointerCapture(event.pointerId);
  stack.classList.add('drag');
});
stack.addEventListener('pointermove', event => {
  if (!drag || drag.pointer !== event.pointerId) return point(event);
  tip.hidden = true;
  if (drag.kind === 'range') {
    const at = stripTime(event);
    if (Math.abs(event.clientX - drag.x) > 3) setView(Math.min(at, drag.at), Math.max(at, drag.at));
  } else if (drag.kind === 'window') {
    const by = stripTime(event) - drag.at;
    setView(drag.from + by, drag.to + by);
  } else {
    const by = (drag.x - event.clientX) / (plots.width - GUTTER) * (drag.to - drag.from);
    setView(drag.from + by, drag.to + by);
  }
});
for (const name of ['pointerup', 'pointercancel']) stack.addEventListener(name, event => {
  if (drag?.kind === 'range' && Math.abs(event.clientX - drag.x) <= 3) {
    const half = Math.min(SPAN / 10, view.to - view.from) / 2;
    glideTo(drag.at - half, drag.at + half);
  }
  drag = null;
  stack.classList.remove('drag');
});
stack.addEventListener('pointerleave', leave);
stack.addEventListener('dblclick', event => { if (sheetOf(event) && sheetOf(event) !== overview) zoom(.3, timeAt(event)); });
stack.addEventListener('wheel', event => {
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * .008), timeAt(event));
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    pan((event.shiftKey ? event.deltaY + event.deltaX : event.deltaX) / 1200);
  } else return;
  leave();
}, { passive: false });
scroller.addEventListener('scroll', () => { leave(); redraw(); });

// The keyboard.
let current = -1;
const goTo = n => { if (findings.length) location.hash = `finding-${(n + findings.length) % findings.length + 1}`; };
const KEYS = {
  ArrowLeft: () => pan(-.15), ArrowRight: () => pan(.15), '+': () => zoom(.6), '=': () => zoom(.6), '-': () => zoom(1 / .6),
  0: showAll, Home: () => setView(0, view.to - view.from), End: () => setView(SPAN - (view.to - view.from), SPAN),
  n: () => goTo(current + 1), p: () => goTo(current < 0 ? -1 : current - 1),
};
addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (/^(Home|End)$/.test(event.key) && !stack.contains(document.activeElement)) return;
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); leave(); act(); }
});
byId('in').onclick = () => zoom(.5);
byId('out').onclick = () => zoom(2);
byId('all').onclick = showAll;
byId('more').onclick = () => { shownKeys.all = !shownKeys.all; redraw(); };
byId('filter').oninput = event => { shownKeys.text = event.target.value; scroller.scrollTop = 0; redraw(); };

/** Shows these calls: their time, their key's lane, and rings around them. */
function show(places) {
  if (!places.length) return;
  const begins = i => Math.min(sent[i], holdOf.get(i)?.from ?? Infinity), ends = i => Math.max(sent[i] + took[i], holdOf.get(i)?.sure ?? 0);
  const from = Math.min(...places.map(begins)), to = Math.max(...places.map(ends));
  const margin = Math.max((to - from) * .3, 400_000);
  focusCalls = new Set(places);
  shownKeys.focus = keysOf(places[0])[0] ?? null;
  shownKeys.text = byId('filter').value = '';
  const tops = drawLanes(), at = lanesShown()[0].findIndex(lane => lane.key === shownKeys.focus);
  if (at >= 0) scroller.scrollTop = Math.max(0, tops[at] - 60);
  glideTo(from - margin, to + margin);
  byId('time').scrollIntoView({ block: 'start' });
}
function follow() {
  const [, kind, n] = /^#(finding|call)-(\d+)$/.exec(location.hash) ?? [];
  document.querySelector('.finding.current')?.classList.remove('current');
  if (kind === 'finding' && findings[n - 1]) {
    current = n - 1;
    byId(`card-${n}`).classList.add('current');
    byId(`card-${n}`).closest('details')?.setAttribute('open', '');
    show(findings[current].calls);
  } else if (kind === 'call') {
    show([calls.id.indexOf(Number(n))].filter(i => i >= 0));
  }
}
addEventListener('hashchange', follow);
// A link to where one is already is no change of place, but a wish all the same.
addEventListener('click', event => { if (event.target.closest?.('a')?.getAttribute('href') === location.hash) follow(); });
addEventListener('resize', redraw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readColours(); writeLegend(); redraw(); });

readColours();
writeHead(); writeFindings(); writeTables(); writeLegend();
draw();
follow();
document.documentElement.dataset.page = 'drawn';
