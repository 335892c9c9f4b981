'use strict';
// What the page knows, made ready to be drawn. A call is its place in `calls`.

const data = JSON.parse(document.getElementById('data').textContent);
const SPAN = Math.max(data.span_us, 1000);
const calls = data.calls;
const COUNT = calls.sent.length;
const sent = Float64Array.from(calls.sent);
const took = Float64Array.from(calls.took);
const nameOf = i => calls.fs[calls.f[i]];
const outcomeOf = i => calls.conclusions[calls.conclusion[i]];
const keysOf = i => Array.isArray(calls.key[i]) ? calls.key[i] : [calls.key[i]];
const number = n => n.toLocaleString('en');
const plural = (n, word) => `${number(n)} ${word}${n === 1 ? '' : 's'}`;

/** Where in the rising `list` the first element stands that `is` true of. */
function firstWhere(length, is) {
  let low = 0, high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (is(middle)) high = middle; else low = middle + 1;
  }
  return low;
}

/** Spans in the order they begin, with what is needed to find those in sight though a long one began far before. */
function spans(list, from, to) {
  list.sort((a, b) => from(a) - from(b));
  const reach = new Float64Array(list.length);
  let far = 0;
  list.forEach((span, at) => { far = Math.max(far, to(span)); reach[at] = far; });
  const seen = (t0, t1, draw) => {
    for (let at = firstWhere(list.length, i => reach[i] >= t0); at < list.length && from(list[at]) <= t1; at++) {
      if (to(list[at]) >= t0) draw(list[at]);
    }
  };
  return { list, seen };
}

/** Gives each span the first row that is free, and says how many there are; beyond `most` they share the last. */
function pack(list, from, to, most) {
  const ends = [];
  for (const span of list) {
    let row = ends.findIndex(end => end <= from(span));
    if (row < 0) row = Math.min(ends.length, most - 1);
    ends[row] = Math.max(ends[row] ?? 0, to(span));
    span.row = row;
  }
  return ends.length;
}

// A finding is a breach with the law it is of.
const findings = data.laws.flatMap(law => law.breaches.map(breach => ({ law, ...breach })));
const inFinding = new Set(findings.flatMap(finding => finding.calls));
const holdOf = new Map(data.holds.filter(hold => hold.call != null).map(hold => [hold.call, hold]));

// A lane per key. Those of findings come first, then those where most was done.
const lanes = data.keys.map((name, key) => ({ name, key, holds: [], bars: [], marks: [], findings: 0, work: 0 }));
for (const hold of data.holds) for (const key of hold.keys) lanes[key].holds.push({ hold, row: 0 });
for (let i = 0; i < COUNT; i++) {
  const name = nameOf(i), outcome = outcomeOf(i);
  for (const key of keysOf(i)) {
    const lane = lanes[key];
    lane.work++;
    if (outcome === 'stale' || outcome === 'malformed' || name === 'write' && outcome === 'done') lane.marks.push(i);
    else if (name === 'wait' || outcome === 'unknown') lane.bars.push({ i, row: 0 });
    else if (inFinding.has(i) && !holdOf.has(i)) lane.marks.push(i);
  }
}
for (const lane of lanes) {
  const sure = h => Math.max(h.hold.sure, h.hold.from + 1);
  lane.seen = spans(lane.holds, h => h.hold.from, h => h.hold.to).seen;
  lane.rows = Math.max(1, pack(lane.holds, h => h.hold.from, sure, 8));
  lane.seenBars = spans(lane.bars, b => sent[b.i], b => sent[b.i] + took[b.i]).seen;
  lane.barRows = pack(lane.bars, b => sent[b.i], b => sent[b.i] + took[b.i], 8);
}

for (const finding of findings) {
  for (const key of new Set(finding.calls.flatMap(keysOf))) lanes[key].findings++;
}
lanes.sort((a, b) => b.findings - a.findings || b.work - a.work || a.key - b.key);

const faults = data.faults.map((fault, at) => ({ ...fault, at, row: 0 })).sort((a, b) => a.from_us - b.from_us);
const faultRows = pack(faults, f => f.from_us, f => f.to_us, 12);
const nemeses = [...new Set(faults.map(fault => fault.nemesis))].sort();
const leadRows = pack(data.leads, l => l.from, l => l.to, 4);
const nodeIds = [...new Set(data.roles.map(role => role.node))].sort((a, b) => a - b);
