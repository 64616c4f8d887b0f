// Bars over days, stacked by whatever the rows are of. Drawn as SVG: it scales, prints and needs no script of others.
import { count } from "../format";
import { narrow } from "../theme";

export interface Stack { day: string; parts: { key: string; value: number }[] }

const H = 220;
const LEFT = 70;
const FOOT = 24;
const COLOURS = 8;

/** The largest keys have a colour of their own, the rest share the last. */
export function colourOf(keys: string[], key: string): number {
  const i = keys.indexOf(key);
  return i < 0 || i >= COLOURS - 1 ? COLOURS : i + 1;
}

function steps(most: number): number[] {
  const raw = most / 4;
  const size = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * size).find((s) => s >= raw) ?? raw;
  return Array.from({ length: 5 }, (_, i) => i * step).filter((v, i) => i === 0 || v <= most * 1.26);
}

export function Bars({ stacks, keys, show, label }: { stacks: Stack[]; keys: string[]; show: (n: number) => string; label: string }) {
  const W = narrow.value ? 420 : 1000; // text keeps its size when the drawing is scaled
  const sums = stacks.map((s) => s.parts.reduce((n, p) => n + p.value, 0));
  const ticks = steps(Math.max(1, ...sums));
  const top = Math.max(ticks[ticks.length - 1], ...sums);
  const wide = (W - LEFT) / Math.max(1, stacks.length);
  const y = (v: number) => (H - FOOT) * (1 - v / top) + 6;
  const every = Math.ceil(stacks.length / (narrow.value ? 5 : 10));
  return (
    <svg class="bars" viewBox={`0 0 ${W} ${H + 8}`} role="img" aria-label={label}>
      {ticks.map((t) => (
        <g key={t}>
          <line x1={LEFT} x2={W} y1={y(t)} y2={y(t)} class="bars-grid" />
          <text x={LEFT - 10} y={y(t) + 4} text-anchor="end">{show(t)}</text>
        </g>
      ))}
      {stacks.map((s, i) => {
        let base = 0;
        const x = LEFT + i * wide + wide * 0.14;
        return (
          <g key={s.day}>
            <title>{`${s.day}: ${show(sums[i])}`}</title>
            <rect x={LEFT + i * wide} y={0} width={wide} height={H} fill="transparent" />
            {s.parts.map((p) => {
              const from = base;
              base += p.value;
              return <rect key={p.key} x={x} width={Math.max(1, wide * 0.72)} y={y(base)} height={Math.max(0, y(from) - y(base))} class={`s${colourOf(keys, p.key)}`} />;
            })}
            {i % every === 0 && <text x={LEFT + (i + 0.5) * wide} y={H - 2} text-anchor="middle">{s.day.slice(5)}</text>}
          </g>
        );
      })}
    </svg>
  );
}

export function Key({ keys, rest }: { keys: string[]; rest: number }) {
  return (
    <ul class="key">
      {keys.slice(0, COLOURS - 1).map((k, i) => <li key={k}><i class={`s${i + 1}`} aria-hidden="true" />{k || "(none)"}</li>)}
      {rest > 0 && <li><i class={`s${COLOURS}`} aria-hidden="true" />{count(rest)} more</li>}
    </ul>
  );
}
