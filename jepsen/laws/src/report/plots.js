// The strip over all time, the axis, faults, leaders, latency and rate.

const KINDS = ['done', 'refused', 'not done', 'unknown'];
const kindOf = calls.conclusions.map(conclusion => conclusion === 'stale' ? 1 : conclusion === 'malformed' ? 3 : KINDS.indexOf(conclusion));
// A wait takes as long as it waits, an unknown answer as long as its client's patience: neither says how fast the cluster is.
const isTimed = i => calls.node[i] > 0 && nameOf(i) !== 'wait' && kindOf[calls.conclusion[i]] < 2;
const kindColour = kind => [colours.good, colours.link, colours.soft, colours.doubt][kind];

/** Calls of each stretch of `width` microseconds from `first` on, `count` stretches. */
function buckets(first, width, count) {
  const all = Array.from({ length: count }, (_, n) => ({ from: (first + n) * width, counts: [0, 0, 0, 0], times: [] }));
  const begin = firstWhere(COUNT, i => sent[i] >= first * width);
  for (let i = begin; i < COUNT; i++) {
    const bucket = all[Math.floor(sent[i] / width) - first];
    if (!bucket) break;
    bucket.counts[kindOf[calls.conclusion[i]]]++;
    if (isTimed(i)) bucket.times.push(took[i]);
  }
  for (const bucket of all) {
    const times = Float64Array.from(bucket.times).sort();
    bucket.times = times.length;
    bucket.p = [.5, .95, .99].map(part => times[Math.min(times.length - 1, Math.floor(part * times.length))]);
  }
  return all;
}
let bucketsKept = null;
function bucketsInSight(pixels) {
  const least = (view.to - view.from) / Math.max(1, pixels / 7);
  const width = 2 ** Math.ceil(Math.log2(Math.max(1, least)));
  const first = Math.max(0, Math.floor(view.from / width)), last = Math.max(first, Math.floor(Math.min(view.to, SPAN) / width));
  const key = `${width} ${first} ${last}`;
  if (bucketsKept?.key !== key) bucketsKept = { key, width, list: buckets(first, width, last - first + 1) };
  return bucketsKept;
}

const longest = took.reduce((most, t, i) => isTimed(i) ? Math.max(most, t) : most, 10_000);
let overviewRates = null;
const overview = new Sheet('overview');
function drawOverview() {
  const g = overview.begin(40), wide = overview.width - GUTTER;
  const x = t => GUTTER + t / SPAN * wide;
  const bins = Math.max(1, Math.floor(wide / 3));
  if (overviewRates?.length !== bins) {
    overviewRates = new Float64Array(bins);
    for (let i = 0; i < COUNT; i++) overviewRates[Math.min(bins - 1, Math.floor(sent[i] / SPAN * bins))]++;
  }
  overview.label('the whole run', 20, colours.soft);
  for (const fault of faults) {
    g.globalAlpha = .28; g.fillStyle = faultColour(fault);
    g.fillRect(x(fault.from_us), 0, Math.max(1, x(fault.to_us) - x(fault.from_us)), 40);
  }
  g.globalAlpha = .5; g.fillStyle = colours.soft;
  const top = overviewRates.reduce((a, b) => Math.max(a, b), 1);
  overviewRates.forEach((n, at) => g.fillRect(GUTTER + at * wide / bins, 38 - 26 * n / top, Math.max(1, wide / bins - .5), 26 * n / top));
  g.globalAlpha = 1; g.fillStyle = colours.bad;
  for (const i of inFinding) g.fillRect(x(sent[i]) - 1, 2, 2.5, 36);
  const [a, b] = [Math.max(GUTTER, x(view.from)), Math.min(overview.width, x(view.to))];
  g.globalAlpha = .62; g.fillStyle = colours.paper;
  g.fillRect(GUTTER, 0, a - GUTTER, 40); g.fillRect(b, 0, overview.width - b, 40);
  g.globalAlpha = 1; g.strokeStyle = colours.link; g.lineWidth = 1.5;
  g.strokeRect(a + .75, .75, Math.max(3, b - a - 1.5), 38.5);
}

const plots = new Sheet('plots');
function drawPlots() {
  const faultTop = 26, leadTop = faultTop + Math.max(1, faultRows) * 18 + 10;
  const roleTop = leadTop + Math.max(1, leadRows) * 18 + 4, latencyTop = roleTop + nodeIds.length * 11 + 16;
  const rateTop = latencyTop + 120, height = rateTop + 84;
  plots.begin(height);
  drawAxis(height);
  plots.clip(() => plots.bands(faultTop, height));
  drawFaults(faultTop);
  drawLeaders(leadTop, roleTop);
  const shown = bucketsInSight(plots.width - GUTTER);
  drawLatency(latencyTop, 100, shown);
  drawRate(rateTop, 66, shown);
}

function drawAxis(height) {
  const g = plots.g, step = ticks(plots.width - GUTTER);
  g.fillStyle = colours.faint; g.fillRect(0, 0, plots.width, 22);
  plots.label('time since the run began', 11, colours.soft);
  plots.clip(() => {
    for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
      const x = Math.round(plots.x(t)) + .5, first = x < GUTTER + 20;
      g.textAlign = first ? 'left' : 'center';
      g.fillStyle = colours.soft; g.fillText(clock(Math.abs(t), step), first ? x + 3 : x, 11);
      g.fillStyle = colours.line; g.fillRect(x - .5, 22, 1, height - 22);
    }
  });
}

function drawFaults(top) {
  const g = plots.g;
  plots.label(faults.length ? 'faults' : 'faults: none', top + 8, colours.ink);
  plots.clip(() => {
    for (const fault of faults) {
      if (fault.to_us < view.from || fault.from_us > view.to) continue;
      const x = plots.x(fault.from_us), w = Math.max(2, plots.x(fault.to_us) - x), y = top + fault.row * 18;
      g.fillStyle = faultColour(fault); g.globalAlpha = .5;
      g.beginPath(); g.roundRect(x, y, w, 15, 3); g.fill(); g.globalAlpha = 1;
      // Its name may run on to where the next one begins.
      const begins = Math.max(x, GUTTER), next = faults.find(other => other.row === fault.row && other.from_us > fault.from_us);
      const room = (next ? plots.x(next.from_us) : plots.width) - begins - 10, whole = `${fault.nemesis}: ${fault.what}`;
      g.fillStyle = colours.ink; g.textAlign = 'left';
      g.fillText([whole, fault.nemesis].find(text => g.measureText(text).width <= room) ?? shorten(g, fault.nemesis, room), begins + 5, y + 8);
      plots.hit(x, y, w, 15, () => [fault.nemesis, fault.what,
        `${clock(fault.from_us)} to ${clock(fault.to_us)} (${duration(fault.to_us - fault.from_us)})`]);
    }
  });
}

function drawLeaders(top, roleTop) {
  const g = plots.g;
  plots.label(data.leads.length ? 'leader, term' : 'leader: never seen', top + 8, colours.ink);
  plots.clip(() => {
    for (const lead of data.leads) {
      if (lead.to < view.from || lead.from > view.to) continue;
      const x = plots.x(lead.from), w = Math.max(2, plots.x(lead.to) - x), y = top + lead.row * 18;
      g.fillStyle = nodeColour(lead.node);
      g.beginPath(); g.roundRect(x, y, w, 15, 3); g.fill();
      const begins = Math.max(x, GUTTER), room = x + w - begins - 10;
      g.fillStyle = colours.sheet; g.textAlign = 'left';
      const text = `node ${lead.node} · term ${lead.term}`;
      g.fillText(g.measureText(text).width <= room ? text : shorten(g, `${lead.node}·${lead.term}`, room), begins + 5, y + 8);
      plots.hit(x, y, w, 15, () => [`Node ${lead.node} said that it leads in term ${lead.term}`,
        `${clock(lead.from)} to ${clock(lead.to)} (${duration(lead.to - lead.from)})`]);
    }
  });
  g.font = '10px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
  nodeIds.forEach((node, at) => {
    g.fillStyle = colours.soft; g.textAlign = 'right'; g.fillText(`node ${node}`, GUTTER - 8, roleTop + at * 11 + 5);
  });
  plots.clip(() => {
    for (const role of data.roles) {
      if (role.to < view.from || role.from > view.to) continue;
      const x = plots.x(role.from), w = Math.max(1, plots.x(role.to) - x), y = roleTop + nodeIds.indexOf(role.node) * 11;
      const leads = role.role === 'leader';
      g.globalAlpha = leads ? 1 : .4; g.fillStyle = nodeColour(role.node);
      g.fillRect(x, y + (leads ? 1 : 2.5), w, leads ? 6 : 3);
      g.globalAlpha = 1;
      plots.hit(x, y, w, 7, () => [`Node ${role.node}: ${role.role}, term ${role.term}`,
        `answered from ${clock(role.from)} to ${clock(role.to)}`], 0);
    }
  });
  g.font = '12px system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif';
}

const CLOSE = 2500; // so many calls are drawn one by one
function drawLatency(top, height, shown) {
  const g = plots.g, low = Math.log10(200), high = Math.log10(longest * 1.2);
  const y = t => top + height - (Math.log10(Math.max(t, 200)) - low) / (high - low) * height;
  const begin = firstWhere(COUNT, i => sent[i] >= view.from), end = firstWhere(COUNT, i => sent[i] > view.to);
  const each = end - begin <= CLOSE;
  plots.label('latency', top + 8, colours.ink);
  g.font = '11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
  if (each) ['one dot a call,', 'waits apart'].forEach((text, n) => plots.label(text, top + 26 + n * 14, colours.soft));
  else [['p50', .9], ['p95', .6], ['p99', .35]].forEach(([name, alpha], n) => {
    g.globalAlpha = alpha; g.fillStyle = colours.link; g.fillRect(12, top + 24 + n * 14, 10, 4); g.globalAlpha = 1;
    g.fillStyle = colours.soft; g.textAlign = 'left'; g.fillText(name, 27, top + 26 + n * 14);
  });
  g.textAlign = 'right';
  for (let t = 1000; t < longest * 1.2; t *= 10) {
    g.fillStyle = colours.line; g.fillRect(GUTTER, Math.round(y(t)), plots.width - GUTTER, 1);
    g.fillStyle = colours.soft; g.fillText(duration(t).replace(/\.0+(?= )/, ''), GUTTER - 8, y(t));
  }
  plots.clip(() => {
    if (each) {
      for (let i = begin; i < end; i++) if (isTimed(i)) dot(i, y(took[i]), kindColour(kindOf[calls.conclusion[i]]), 2.2);
    } else {
      [2, 1, 0].forEach(p => {
        g.beginPath(); g.strokeStyle = colours.link; g.globalAlpha = [.95, .6, .35][p]; g.lineWidth = 1.4;
        let last = -9;
        shown.list.forEach((bucket, n) => {
          if (!bucket.times) return;
          const x = plots.x(bucket.from + shown.width / 2);
          if (n - last > 1) g.moveTo(x - 1, y(bucket.p[p]));
          g.lineTo(x, y(bucket.p[p]));
          last = n;
        });
        g.stroke();
      });
      g.globalAlpha = 1;
      for (const bucket of shown.list) {
        const x = plots.x(bucket.from);
        plots.hit(x, top, plots.x(bucket.from + shown.width) - x, height, () => bucket.times ? [
          `${plural(bucket.times, 'call')} in ${duration(shown.width)} from ${clock(bucket.from, shown.width)}`,
          `p50 ${duration(bucket.p[0])}, p95 ${duration(bucket.p[1])}, p99 ${duration(bucket.p[2])}`,
        ] : ['no timed call here'], 0);
      }
    }
    // Rare and telling: these are always drawn.
    for (let i = begin; i < end; i++) if (kindOf[calls.conclusion[i]] === 3) dot(i, top + 3, colours.doubt, 2);
  });
  g.font = '12px system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif';
}

function dot(i, y, colour, radius) {
  const g = plots.g, x = plots.x(sent[i]);
  g.fillStyle = inFinding.has(i) ? colours.bad : colour;
  g.fillRect(x - radius / 2, y - radius / 2, radius, radius);
  plots.hit(x - 2, y - 2, 4, 4, () => tellCall(i));
}

function drawRate(top, height, shown) {
  const g = plots.g, perSecond = 1e6 / shown.width;
  const most = shown.list.reduce((most, b) => Math.max(most, b.counts.reduce((a, c) => a + c)), 1);
  plots.label('calls a second', top + 8, colours.ink);
  g.font = '11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
  KINDS.forEach((kind, n) => {
    const [x, y] = [12 + (n % 2) * 66, top + 26 + (n >> 1) * 16];
    g.globalAlpha = n === 1 ? .55 : .9; g.fillStyle = kindColour(n); g.fillRect(x, y - 3, 7, 7); g.globalAlpha = 1;
    g.fillStyle = colours.soft; g.textAlign = 'left'; g.fillText(kind, x + 11, y);
  });
  g.textAlign = 'right'; g.fillStyle = colours.soft;
  g.fillText(number(Math.round(most * perSecond)), GUTTER - 8, top + 5);
  g.fillStyle = colours.line; g.fillRect(GUTTER, top + height, plots.width - GUTTER, 1);
  plots.clip(() => {
    for (const bucket of shown.list) {
      const x = plots.x(bucket.from), w = Math.max(1, plots.x(bucket.from + shown.width) - x - .8);
      let y = top + height;
      bucket.counts.forEach((count, kind) => {
        const h = count / most * height;
        g.globalAlpha = kind === 1 ? .55 : .9; g.fillStyle = kindColour(kind);
        g.fillRect(x, y - h, w, h);
        y -= h;
      });
      g.globalAlpha = 1;
      plots.hit(x, top, w + .8, height, () => [
        `${plural(bucket.counts.reduce((a, c) => a + c), 'call')} in ${duration(shown.width)} from ${clock(bucket.from, shown.width)}`,
        KINDS.map((kind, n) => bucket.counts[n] ? `${number(bucket.counts[n])} ${kind}` : '').filter(Boolean).join(', '),
      ], 0);
    }
  });
  g.font = '12px system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif';
}
