// What a task printed, as lines. Bytes come in pieces that end anywhere; colours (SGR) go on over line ends; a
// carriage return writes over what is there, as progress bars do. Pure; tests/log-lines.test.mjs.

export interface Span { text: string; style: string }
export interface Line { text: string; err: boolean; sgr: Sgr }

interface Sgr { bold: boolean; dim: boolean; italic: boolean; under: boolean; fg: number; bg: number }

const PLAIN: Sgr = { bold: false, dim: false, italic: false, under: false, fg: -1, bg: -1 };
const LINE_MAX = 4000;
const LINES_MAX = 100_000;
// Everything a terminal would take as a command: CSI, OSC, and two-character ones.
const ESCAPE = /\x1b(?:\[([0-9;:]*)([ -/]*[@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_a-z=>])/g;

function apply(sgr: Sgr, codes: string): Sgr {
  const s = { ...sgr };
  const list = (codes || "0").split(/[;:]/).map(Number);
  for (let i = 0; i < list.length; i++) {
    const c = list[i];
    if (c === 0) Object.assign(s, PLAIN);
    else if (c === 1) s.bold = true;
    else if (c === 2) s.dim = true;
    else if (c === 3) s.italic = true;
    else if (c === 4) s.under = true;
    else if (c === 22) s.bold = s.dim = false;
    else if (c === 23) s.italic = false;
    else if (c === 24) s.under = false;
    else if (c >= 30 && c <= 37) s.fg = c - 30;
    else if (c >= 90 && c <= 97) s.fg = c - 90;
    else if (c >= 40 && c <= 47) s.bg = c - 40;
    else if (c >= 100 && c <= 107) s.bg = c - 100;
    else if (c === 39) s.fg = -1;
    else if (c === 49) s.bg = -1;
    else if (c === 38 || c === 48) {
      const [n, skip] = list[i + 1] === 5 ? [near(list[i + 2]), 2] : [nearRgb(list[i + 2], list[i + 3], list[i + 4]), 4];
      if (c === 38) s.fg = n;
      else s.bg = n;
      i += skip;
    }
  }
  return s;
}

/** The nearest of the eight: they are colours of the theme, and so can be read on it. */
function near(n: number): number {
  if (n < 16) return n % 8;
  if (n >= 232) return n < 244 ? 0 : 7;
  const c = n - 16;
  return nearRgb(Math.floor(c / 36) * 51, (Math.floor(c / 6) % 6) * 51, (c % 6) * 51);
}

function nearRgb(r = 0, g = 0, b = 0): number {
  const top = Math.max(r, g, b);
  if (top < 60) return 0;
  return (r > top * 0.6 ? 1 : 0) + (g > top * 0.6 ? 2 : 0) + (b > top * 0.6 ? 4 : 0);
}

function styleOf(s: Sgr): string {
  return [s.bold && "a-bold", s.dim && "a-dim", s.italic && "a-it", s.under && "a-ul", s.fg >= 0 && `f${s.fg}`, s.bg >= 0 && `b${s.bg}`]
    .filter(Boolean).join(" ");
}

/** A line without what a terminal would not show. */
export const bare = (text: string) => text.replace(ESCAPE, "").replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "");

export function spans(line: Line): Span[] {
  const out: Span[] = [];
  let sgr = line.sgr;
  let at = 0;
  const put = (text: string) => {
    const clean = text.replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "");
    if (clean) out.push({ text: clean, style: styleOf(sgr) });
  };
  for (const m of line.text.matchAll(ESCAPE)) {
    put(line.text.slice(at, m.index));
    if (m[2] === "m") sgr = apply(sgr, m[1]);
    at = m.index + m[0].length;
  }
  put(line.text.slice(at));
  return out;
}

/** Marks what was searched for within spans. */
export function marked(parts: Span[], needle: string): (Span & { mark: boolean })[] {
  if (!needle) return parts.map((p) => ({ ...p, mark: false }));
  const all = parts.map((p) => p.text).join("").toLowerCase();
  const low = needle.toLowerCase();
  const cuts: number[] = [];
  for (let i = all.indexOf(low); i >= 0; i = all.indexOf(low, i + low.length)) cuts.push(i, i + low.length);
  const out: (Span & { mark: boolean })[] = [];
  let at = 0;
  for (const p of parts) {
    const end = at + p.text.length;
    const edges = [at, ...cuts.filter((c) => c > at && c < end), end];
    for (let i = 0; i + 1 < edges.length; i++) {
      let inside = false;
      for (let c = 0; c < cuts.length; c += 2) if (edges[i] >= cuts[c] && edges[i] < cuts[c + 1]) inside = true;
      out.push({ text: p.text.slice(edges[i] - at, edges[i + 1] - at), style: p.style, mark: inside });
    }
    at = end;
  }
  return out;
}

export class LogLines {
  lines: Line[] = [];
  /** Lines that were dropped from the beginning: the newest hundred thousand are kept. */
  dropped = 0;
  private open = { out: false, err: false };
  private sgr = { out: PLAIN, err: PLAIN };

  clear() {
    this.lines = [];
    this.dropped = 0;
    this.open = { out: false, err: false };
    this.sgr = { out: PLAIN, err: PLAIN };
  }

  append(text: string, err: boolean) {
    const which = err ? "err" : "out";
    const pieces = text.split("\n");
    pieces.forEach((piece, i) => {
      const last = this.lines[this.lines.length - 1];
      if (this.open[which] && last && last.err === err) last.text = overwrite(last.text + piece);
      else if (piece || i + 1 < pieces.length) this.lines.push({ text: overwrite(piece), err, sgr: this.sgr[which] });
      else return;
      const line = this.lines[this.lines.length - 1];
      this.open[which] = i + 1 === pieces.length;
      if (!this.open[which]) this.sgr[which] = endOf(line);
    });
    if (this.lines.length > LINES_MAX) {
      const n = this.lines.length - LINES_MAX;
      this.lines.splice(0, n);
      this.dropped += n;
    }
  }
}

function overwrite(text: string): string {
  let t = text;
  const ends = t.endsWith("\r");
  const at = t.lastIndexOf("\r", ends ? t.length - 2 : t.length - 1);
  if (at >= 0) t = t.slice(at + 1);
  return t.length > LINE_MAX ? `${t.slice(0, LINE_MAX)}…` : t;
}

function endOf(line: Line): Sgr {
  if (!line.text.includes("\x1b")) return line.sgr;
  let sgr = line.sgr;
  for (const m of line.text.matchAll(ESCAPE)) if (m[2] === "m") sgr = apply(sgr, m[1]);
  return sgr;
}
