// What is read, not drawn: the verdict, findings, laws, calls and the end.

/** An element. Children that are no elements become text, never markup. */
function make(name, given = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(given)) key in element ? element[key] = value : element.setAttribute(key, value);
  element.append(...children.filter(child => child != null && child !== ''));
  return element;
}
const byId = id => document.getElementById(id);

function writeHead() {
  const about = data.about;
  const title = `${about.workload || 'no workload'} · ${about.nemeses.join(', ') || 'no faults'}`;
  document.title = `${data.verdict}: ${title}`;
  byId('verdict').textContent = data.verdict[0].toUpperCase() + data.verdict.slice(1);
  byId('verdict').className = data.verdict;
  byId('title').textContent = title;
  byId('facts').textContent = [`seed ${about.seed}`, plural(about.nodes, 'node'), `${about.time_s} s`, plural(COUNT, 'call'),
    plural(faults.length, 'fault'), about.version && `version ${about.version}`, about.began].filter(Boolean).join(' · ');
  byId('command').textContent = about.command;
  byId('copy').hidden = !about.command;
  byId('copy').onclick = () => navigator.clipboard?.writeText(about.command).then(() => { byId('copy').textContent = 'copied'; });
}

/** So many findings of one law are there at once. */
const FIRST = 4;
function writeFindings() {
  const place = byId('findings');
  if (data.about.workload === 'unfenced-register') place.append(make('p', { className: 'hint' }, 'This is the control, in which nobody asks the guard: stale writes must be found here.'));
  let law = null, rest = null;
  findings.forEach((finding, n) => {
    if (finding.law !== law) {
      law = finding.law;
      rest = null;
      place.append(make('p', { className: 'law' }, make('b', {}, law.name), ` · ${plural(law.found, 'breach').replace('breachs', 'breaches')} · ${law.law}`));
    }
    if (!rest && n - findings.findIndex(other => other.law === law) === FIRST) {
      rest = make('details', { className: 'rest' }, make('summary', {}, `${plural(law.breaches.length - FIRST, 'more breach').replace('breachs', 'breaches')} of ${law.name}`));
      place.append(rest);
    }
    const links = finding.calls.slice(0, 12).map(i =>
      make('a', { href: `#call-${calls.id[i]}`, title: tellCall(i).filter(Boolean).join('\n') }, `call ${calls.id[i]} (${nameOf(i)}, ${clock(sent[i])})`));
    if (finding.found > links.length) links.push(make('span', {}, `and ${number(finding.found - links.length)} more`));
    const known = finding.calls.filter(i => data.details[i]);
    (rest ?? place).append(make('article', { className: 'finding', id: `card-${n + 1}` },
      make('p', { className: 'what' }, finding.what),
      finding.calls.length ? make('p', { className: 'calls' }, make('a', { className: 'show', href: `#finding-${n + 1}` }, 'Show it in the lanes'), ...links) : null,
      known.length ? inFull(known) : null));
  });
  for (const law of data.laws.filter(law => law.found > law.breaches.length)) {
    place.append(make('p', { className: 'hint' }, `${law.name}: ${number(law.found - law.breaches.length)} more breaches stand in results.json.`));
  }
  const doubts = data.laws.filter(law => law.undecided && !law.found).map(law => [law.name, law.undecided])
    .concat(data.missing.map(missing => ['not found out', missing]));
  for (const [name, why] of doubts) {
    place.append(make('article', { className: 'finding doubt' }, make('p', { className: 'law' }, make('b', {}, name), ' · cannot be told'), make('p', { className: 'what' }, why)));
  }
  if (!findings.length && !doubts.length) {
    place.append(make('article', { className: `finding ${data.laws.length ? 'calm' : 'doubt'}` }, make('p', { className: 'what' },
      data.laws.length ? `No breach: ${plural(data.laws.length, 'law')} held over ${plural(COUNT, 'call')}.` : 'No law was judged.')));
  }
}

/** Written when it is opened. */
function inFull(places) {
  const details = make('details', {}, make('summary', {}, 'The calls in full'));
  details.addEventListener('toggle', () => {
    if (details.children.length === 1) details.append(make('pre', {}, places.map(i => JSON.stringify(data.details[i])).join('\n\n')));
  });
  return details;
}

function writeTables() {
  const row = (kind, cells) => make('tr', {}, ...cells.map(([text, className]) => make(kind, { className: className ?? '' }, text)));
  const laws = byId('laws');
  laws.append(row('th', [['law'], ['says'], ['seen'], ['breaches', 'n']]));
  for (const law of data.laws) {
    const says = make('span', {}, law.law);
    if (law.undecided) says.append(make('br'), make('span', { className: 'undecided' }, law.undecided));
    const seen = Object.entries(law.counts).map(([what, n]) => `${number(n)} ${what}`).join(' · ');
    const name = make('span', { title: law.verdict }, make('i', { className: `dot ${law.verdict}` }), law.name);
    laws.append(row('td', [[name, 'name'], [says], [seen, 'counts'], [number(law.found), 'n']]));
  }
  const counts = calls.fs.map(() => calls.conclusions.map(() => 0));
  for (let i = 0; i < COUNT; i++) counts[calls.f[i]][calls.conclusion[i]]++;
  byId('calls').append(row('th', [['call'], ...calls.conclusions.map(conclusion => [conclusion, 'n'])]));
  calls.fs.forEach((f, n) => byId('calls').append(row('td', [[VERBS[f] ?? f], ...counts[n].map(count => [count ? number(count) : '·', 'n'])])));
  const lines = data.nodes.flatMap(node => [
    [`Node ${node.id} ${node.serves ? 'is back and serves' : 'does not serve'}.`, !node.serves],
    ...node.panics.map(panic => [`Node ${node.id} panicked: ${panic}`, true]),
  ]);
  if (data.healed_us) lines.push([`All was healed at ${clock(data.healed_us)}.`, false]);
  for (const missing of data.missing) lines.push([missing, true]);
  byId('end').append(make('ul', {}, ...lines.map(([text, bad]) => make('li', { className: bad ? 'bad' : '' }, text))));
}

function writeLegend() {
  const entry = (text, paint) => {
    const canvas = make('canvas', { width: 44, height: 24 }), g = canvas.getContext('2d');
    g.scale(2, 2); paint(g);
    return make('span', {}, canvas, text);
  };
  const bar = (colour, alpha, y, h) => g => { g.fillStyle = colour; g.globalAlpha = alpha; g.fillRect(0, y, 22, h); };
  byId('legend').replaceChildren(
    entry('held for certain', bar(colours.holds[0], 1, 1, 10)), entry('perhaps still held', bar(colours.holds[0], .3, 1, 10)),
    entry('waits', bar(colours.holds[0], .9, 5, 2.5)), entry('waited in vain', bar(colours.holds[0], .35, 5, 2.5)),
    entry('outcome unknown', bar(colours.doubt, .75, 5, 2.5)), entry('write accepted', g => { g.fillStyle = colours.ink; g.fillRect(10, 2, 1.5, 8); }),
    entry('stale write rejected', g => cross(g, 11, 6, colours.ink)),
    entry('in a finding', g => { g.strokeStyle = colours.bad; g.lineWidth = 2; g.strokeRect(1, 1, 20, 10); }),
    'One colour is one process.');
}
