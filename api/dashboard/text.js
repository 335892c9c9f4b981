// How things are written.

const whole = new Intl.NumberFormat("en-GB");

/** A count, with separators: 12,345. */
export function count(number) {
  return typeof number === "number" && Number.isFinite(number) ? whole.format(number) : "–";
}

/** How many of something: 1 key, 2 keys. */
export function several(number, one, many = one + "s") {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Time that is left or has passed: 0.8 s, 59.9 s, 2:05, 3:04:05. */
export function time(ms) {
  const tenths = Math.max(0, Math.floor(ms / 100));
  if (tenths < 600) return `${(tenths / 10).toFixed(1)} s`;
  const seconds = Math.floor(tenths / 10);
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

/** A time that was set: 15 s, 1 min 30 s, 24 h. */
export function span(ms) {
  if (ms < 1000) return `${ms} ms`;
  const parts = [[3_600_000, "h"], [60_000, "min"], [1000, "s"]].map(([unit, name], place, units) => {
    const rest = place ? ms % units[place - 1][0] : ms;
    const many = name === "s" ? Math.round(rest / 100) / 10 : Math.floor(rest / unit);
    return many ? `${many} ${name}` : "";
  });
  return parts.filter(Boolean).join(" ");
}

/** A measured time: 85 µs, 1.2 ms, 3.4 s. */
export function seconds(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  if (value === 0) return "0 ms";
  const [number, unit] =
    value < 0.001 ? [value * 1e6, "µs"] : value < 1 ? [value * 1000, "ms"] : [value, "s"];
  return `${number < 10 ? number.toFixed(1) : Math.round(number)} ${unit}`;
}

/**
 * A text of a client's, as it can be read: characters that are not seen, or turn the direction of what follows, are
 * written out, and so are those by which that is shown: no two texts become one. Letters may still look alike.
 */
export function visible(text) {
  return text.replace(/[\p{C}\p{DI}\p{Zl}\p{Zp}\u2800␣⟨]|(?! )\p{Zs}/gu, written).replace(/^ | $| (?= )/g, "␣");
}

function written(character) {
  return `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
