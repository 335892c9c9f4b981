// What of the run is in sight, where it stands on the page, and what colours it has.

const GUTTER = 172;
const LEAST = 200; // microseconds across the page at the closest
const view = { from: 0, to: SPAN };
let colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const of = name => style.getPropertyValue('--' + name).trim();
  colours = Object.fromEntries(['paper', 'sheet', 'ink', 'soft', 'line', 'faint', 'good', 'bad', 'doubt', 'link'].map(n => [n, of(n)]));
  colours.holds = [0, 1, 2, 3, 4, 5, 6, 7].map(n => of('h' + n));
  colours.faults = [0, 1, 2, 3, 4, 5, 6, 7].map(n => of('f' + n));
}
const holdColour = process => process == null ? colours.soft : colours.holds[process % 8];
const faultColour = fault => colours.faults[nemeses.indexOf(fault.nemesis) % 8];
const nodeColour = node => colours.holds[(node * 3 + 1) % 8];

/** A canvas that is as sharp as the screen, and remembers what it shows where. */
class Sheet {
  constructor(id) { this.canvas = document.getElementById(id); this.hits = []; }
  begin(height) {
    const ratio = window.devicePixelRatio || 1, width = this.canvas.parentElement.clientWidth;
    this.width = width; this.height = height; this.hits = [];
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) { this.canvas.width = w; this.canvas.height = h; }
    this.canvas.style.height = height + 'px';
    const g = this.g = this.canvas.getContext('2d');
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    g.font = '12px system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif';
    g.textBaseline = 'middle';
    return g;
  }
  /** Where `t` stands, kept near the page: a bar that began long ago must not be drawn a million pixels wide. */
  x(t) { return Math.max(GUTTER - 60, Math.min(this.width + 60, GUTTER + (t - view.from) / (view.to - view.from) * (this.width - GUTTER))); }
  /** The part that belongs to time; labels stand left of it. */
  clip(draw) {
    this.g.save(); this.g.beginPath(); this.g.rect(GUTTER, 0, this.width - GUTTER, this.height); this.g.clip();
    draw(); this.g.restore();
  }
  hit(x, y, w, h, tell, reach = 2) { this.hits.push({ x: x - reach, y: y - 1, w: w + 2 * reach, h: h + 2, tell }); }
  at(x, y) {
    for (let n = this.hits.length - 1; n >= 0; n--) {
      const hit = this.hits[n];
      if (x >= hit.x && x <= hit.x + hit.w && y >= hit.y && y <= hit.y + hit.h) return hit;
    }
    return null;
  }
  label(text, y, colour, most = GUTTER - 20) {
    this.g.fillStyle = colour; this.g.textAlign = 'left';
    this.g.fillText(shorten(this.g, text, most), 12, y);
  }
  bands(top, height) {
    for (const fault of faults) {
      if (fault.to_us < view.from || fault.from_us > view.to) continue;
      const x = this.x(fault.from_us);
      this.g.globalAlpha = .09; this.g.fillStyle = faultColour(fault);
      this.g.fillRect(x, top, Math.max(1, this.x(fault.to_us) - x), height);
    }
    this.g.globalAlpha = 1;
  }
}

/** `text`, with an ellipsis where it is wider than `most` pixels. */
function shorten(g, text, most) {
  if (g.measureText(text).width <= most) return text;
  let kept = firstWhere(text.length, n => g.measureText(text.slice(0, n + 1) + '…').width > most);
  if (kept > 0 && /[\uD800-\uDBFF]/.test(text[kept - 1])) kept--;
  return kept > 0 ? text.slice(0, kept) + '…' : '';
}

/** A point in time as people say it, as exact as `step` microseconds deserve. */
function clock(t, step = 1000) {
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / 1e6) - 1e-9)));
  const s = t / 1e6;
  if (SPAN < 120e6) return s.toFixed(digits) + ' s';
  const minutes = Math.floor(Number(s.toFixed(digits)) / 60);
  return `${minutes}:${(Number(s.toFixed(digits)) - minutes * 60).toFixed(digits).padStart(digits ? digits + 3 : 2, '0')}`;
}
function duration(t) {
  if (t < 1000) return `${Math.round(t)} µs`;
  if (t < 1e6) return `${(t / 1000).toFixed(t < 1e4 ? 1 : 0)} ms`;
  return t < 60e6 ? `${(t / 1e6).toFixed(t < 1e7 ? 2 : 1)} s` : `${Math.floor(t / 60e6)} min ${Math.round(t % 60e6 / 1e6)} s`;
}

/** Steps of 1, 2 or 5, so many that labels have room. */
function ticks(width) {
  const least = (view.to - view.from) / Math.max(2, width / 110);
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map(n => n * power).find(step => step >= least);
}

function setView(from, to) {
  const span = Math.min(SPAN * 1.02, Math.max(LEAST, to - from));
  const middle = (from + to) / 2, margin = SPAN * .01;
  from = Math.max(-margin, Math.min(SPAN + margin - span, middle - span / 2));
  view.from = from; view.to = from + span;
  redraw();
}
let moving = 0;
/** Goes there in a moment, so that the eye can follow. */
function glideTo(from, to) {
  cancelAnimationFrame(moving);
  if (matchMedia('(prefers-reduced-motion: reduce)').matches) return setView(from, to);
  const [a, b, began] = [view.from, view.to, performance.now()];
  const step = now => {
    const part = Math.max(0, Math.min(1, (now - began) / 280)), ease = 1 - (1 - part) ** 3;
    setView(a + (from - a) * ease, b + (to - b) * ease);
    if (part < 1) moving = requestAnimationFrame(step);
  };
  moving = requestAnimationFrame(step);
}
function zoom(factor, around = (view.from + view.to) / 2) {
  setView(around - (around - view.from) * factor, around + (view.to - around) * factor);
}
function pan(part) { const by = (view.to - view.from) * part; setView(view.from + by, view.to + by); }
const showAll = () => glideTo(0, SPAN);

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}
