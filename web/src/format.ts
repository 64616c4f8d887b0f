// Numbers, times and commands as people read them. Pure; tests/format.test.mjs.

const SIZE = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function size(bytes: number | null | undefined): string {
  if (bytes == null || bytes < 0) return "–";
  let unit = 0;
  let n = bytes;
  while (n >= 1024 && unit < SIZE.length - 1) {
    n /= 1024;
    unit++;
  }
  return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1).replace(/\.0$/, "")} ${SIZE[unit]}`;
}

/** "1 h 05 min", "3.2 s": two units at most. */
export function duration(usec: number | null | undefined): string {
  if (usec == null || usec < 0) return "–";
  const s = usec / 1e6;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const two = (n: number) => String(Math.floor(n)).padStart(2, "0");
  if (s < 3600) return `${Math.floor(s / 60)} min${s % 60 >= 1 || s < 600 ? ` ${two(s % 60)} s` : ""}`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${two((s % 86400) / 3600)} h`;
}

const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY_TIME = new Intl.DateTimeFormat(undefined, {
  month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false,
});
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hour12: false });

export function when(usec: number, now = Date.now()): string {
  if (!usec) return "–";
  const t = new Date(usec / 1000);
  return t.toDateString() === new Date(now).toDateString() ? TIME.format(t) : DAY_TIME.format(t);
}

export const whenFull = (usec: number) => (usec ? FULL.format(new Date(usec / 1000)) : "–");

/** "in 4 min", "2 h ago": one unit is enough from afar. */
export function relative(usec: number, now = Date.now()): string {
  if (!usec) return "–";
  const d = usec - now * 1000;
  const s = Math.abs(d) / 1e6;
  if (s < 1) return "now";
  const text = s < 60 ? `${Math.floor(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min` : s < 86400 * 2 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
  return d > 0 ? `in ${text}` : `${text} ago`;
}

export function money(micro: number | null | undefined, currency?: string | null): string {
  if (micro == null) return "–";
  const tail = currency ? ` ${currency}` : "";
  const cents = Math.round(micro / 10000);
  if (micro > 0 && cents === 0) return `< 0.01${tail}`;
  const whole = Math.floor(Math.abs(cents) / 100).toString().replace(/\B(?=(\d{3})+$)/g, " ");
  return `${cents < 0 ? "−" : ""}${whole}.${String(Math.abs(cents) % 100).padStart(2, "0")}${tail}`;
}

export function count(n: number | null | undefined): string {
  return n == null ? "–" : String(n).replace(/\B(?=(\d{3})+$)/g, " ");
}

export const plural = (n: number, one: string, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export const percent = (part: number, whole: number) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–");

export function milli(n: number): string {
  return (n / 1000).toFixed(3).replace(/\.?0+$/, "");
}

interface Wanted {
  gpus?: number;
  gpu_milli?: number;
  gpu_mem_bytes?: number;
  cpu_milli?: number;
  mem_bytes?: number;
}

export function resources(r: Wanted | null | undefined): string {
  if (!r) return "–";
  const parts: string[] = [];
  if (r.gpus) parts.push(plural(r.gpus, "GPU"));
  if (r.gpu_milli) parts.push(`${milli(r.gpu_milli)} GPU`);
  if (r.gpu_mem_bytes) parts.push(`${size(r.gpu_mem_bytes)} GPU memory`);
  if (r.cpu_milli) parts.push(`${milli(r.cpu_milli)} CPU${r.cpu_milli > 1000 ? "s" : ""}`);
  if (r.mem_bytes) parts.push(size(r.mem_bytes));
  return parts.join(", ") || "the pool's default";
}

export const watts = (mw: number | null | undefined) => (mw == null || mw < 0 ? "–" : `${Math.round(mw / 1000)} W`);

export function energy(mj: number | null | undefined): string {
  if (mj == null) return "–";
  const wh = mj / 3.6e6;
  return wh >= 1000 ? `${(wh / 1000).toFixed(wh >= 1e5 ? 0 : 1)} kWh` : wh >= 1 ? `${Math.round(wh)} Wh` : `${wh.toFixed(2)} Wh`;
}

/** A word as a shell would need it. */
export function quote(word: string): string {
  return /^[\w@%+=:,./~-]+$/.test(word) ? word : `'${word.replace(/'/g, `'\\''`)}'`;
}

export const commandLine = (argv: string[]) => argv.map(quote).join(" ");

/** Splits a line into words as a shell does, with quotes and backslashes and nothing else. Null: a quote is open. */
export function words(line: string): string[] | null {
  const out: string[] = [];
  let word: string | null = null;
  for (let i = 0; i < line.length; i++) {
    const c = line[i];
    if (c === "'" || c === '"') {
      let j = i + 1;
      word ??= "";
      for (; j < line.length && line[j] !== c; j++) {
        if (c === '"' && line[j] === "\\" && '"\\$`'.includes(line[j + 1] ?? "")) j++;
        word += line[j];
      }
      if (j >= line.length) return null;
      i = j;
    } else if (c === "\\" && i + 1 < line.length) {
      word = (word ?? "") + line[++i];
    } else if (/\s/.test(c)) {
      if (word !== null) out.push(word);
      word = null;
    } else {
      word = (word ?? "") + c;
    }
  }
  if (word !== null) out.push(word);
  return out;
}

/** Does this line need a shell to be understood? */
export const needsShell = (line: string) =>
  /[|&;<>()$`*?[\]{}#\n]/.test(line.replace(/'[^']*'/g, "")) || /^\s*\w+=/.test(line);

/** "90", "90m", "1h30m", "2d" to microseconds; null: not a duration. */
export function parseDuration(text: string): number | null {
  const t = text.trim().replace(/\s+/g, "");
  if (!t) return 0;
  if (!/^(\d+(\.\d+)?[smhd]?)+$/.test(t)) return null;
  const unit: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86400 };
  let sum = 0;
  for (const [, n, u] of t.matchAll(/(\d+(?:\.\d+)?)([smhd]?)/g)) sum += Number(n) * unit[u || "s"];
  return Math.round(sum * 1e6);
}

/** "16G", "512M", "1.5GiB" to bytes; null: not a size. */
export function parseSize(text: string): number | null {
  const t = text.trim();
  if (!t) return 0;
  const m = /^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?$/i.exec(t);
  return m ? Math.round(Number(m[1]) * 1024 ** ["", "k", "m", "g", "t"].indexOf(m[2].toLowerCase())) : null;
}

/** "12.50" to millionths; null: not an amount. */
export function parseMoney(text: string): number | null {
  const t = text.trim();
  if (!t) return 0;
  const m = /^(\d{1,10})(?:\.(\d{1,6}))?$/.exec(t);
  return m ? Number(m[1]) * 1e6 + Number((m[2] ?? "").padEnd(6, "0")) : null;
}

// Where days begin for whoever looks: minutes east of UTC at `from`, and each change of the clocks since, for GET /cost.
export function zone(from: number, until = Date.now() * 1000): { zone_minutes: number; zone_changes?: string } {
  const east = (usec: number) => 0 - new Date(usec / 1000).getTimezoneOffset();
  const day = 86400e6;
  const changes: string[] = [];
  for (let at = from; at < until && changes.length < 64; at += day) {
    let before = at, after = Math.min(at + day, until);
    if (east(before) === east(after)) continue;
    while (after - before > 1e6) {
      const middle = before + Math.floor((after - before) / 2e6) * 1e6;
      if (middle <= before) break;
      if (east(middle) === east(before)) before = middle; else after = middle;
    }
    changes.push(`${after}:${east(after)}`);
  }
  return changes.length ? { zone_minutes: east(from), zone_changes: changes.join(",") } : { zone_minutes: east(from) };
}
