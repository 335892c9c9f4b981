// What a node measured, read from `/metrics`: by name, and some names have changed. What is not there is not shown.

/** The samples of an exposition in Prometheus' text format: a list of `{labels, value}` for each name. */
export function samples(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const [, name, labels = "", value] = match;
    const pairs = [...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, text]) => [key, text]);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ labels: Object.fromEntries(pairs), value: Number(value.replace("Inf", "Infinity")) });
  }
  return found;
}

/** The value of the first of `names` that there is; of several labels, the sum. */
export function value(found, ...names) {
  const name = names.find((name) => found.has(name));
  return name === undefined ? null : found.get(name).reduce((sum, sample) => sum + sample.value, 0);
}

/**
 * What a share of the samples of a histogram stayed below, interpolated as Prometheus does it: of those that came since
 * `before`, or of all where it is `null` or none came.
 */
export function quantile(share, found, before, ...names) {
  const name = names.map((name) => `${name}_bucket`).find((name) => found.has(name));
  if (name === undefined) return null;
  const all = buckets(found.get(name));
  const earlier = before?.has(name) ? buckets(before.get(name)) : new Map();
  const since = new Map([...all].map(([bound, many]) => [bound, many - (earlier.get(bound) ?? 0)]));
  const counts = since.get(Infinity) > 0 ? since : all;
  const total = counts.get(Infinity);
  if (!total) return null;
  let [low, below] = [0, 0];
  for (const [bound, many] of [...counts].sort(([one], [other]) => one - other)) {
    if (many >= share * total) return bound === Infinity ? low : low + (bound - low) * (share * total - below) / (many - below);
    [low, below] = [bound, many];
  }
  return null;
}

function buckets(samples) {
  const counts = new Map();
  for (const { labels, value } of samples) {
    const bound = Number(labels.le.replace("+Inf", "Infinity"));
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  return counts;
}
