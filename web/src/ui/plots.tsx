// What a task, or a node, did over time: small plots on one clock.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useEffect, useRef } from "preact/hooks";
import { useGet } from "../load";
import { colour, shown } from "../theme";
import { duration, milli, size, watts } from "../format";
import type { Series } from "../types";
import { Empty, Panel, Show } from "./parts";

interface Kind { title: string; key: keyof Series; limit?: keyof Series; show: (n: number) => string; colour: string; top?: number; zero?: boolean }

// Steps of an axis of bytes: people count them by powers of two.
const BYTES = Array.from({ length: 52 }, (_, i) => 2 ** i);
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

const KINDS: Kind[] = [
  { title: "GPU", key: "gpu_percent", show: (n) => `${Math.round(n)} %`, colour: "--series-1", top: 100 },
  { title: "GPU memory", key: "gpu_mem_bytes", limit: "gpu_mem_bytes_limit", show: size, colour: "--series-4" },
  { title: "CPU", key: "cpu_milli", limit: "cpu_milli_limit", show: (n) => `${milli(n < 100 ? Math.round(n) : Math.round(n / 10) * 10)} CPU`, colour: "--series-3" },
  { title: "Memory", key: "mem_bytes", limit: "mem_bytes_limit", show: size, colour: "--series-2" },
  { title: "Power", key: "power_mw", show: watts, colour: "--series-5" },
  { title: "Read", key: "read_bytes", show: (n) => `${size(n)}/s`, colour: "--series-6", zero: true },
  { title: "Written", key: "write_bytes", show: (n) => `${size(n)}/s`, colour: "--series-7", zero: true },
];

/** Values of one kind, null where nothing was told. Undefined: nothing was told at all. */
function values(s: Series, k: Kind): (number | null)[] | undefined {
  const v = (s[k.key] as number[] | undefined)?.map((n) => (n < 0 ? null : n));
  return v?.some((n) => n !== null && (!k.zero || n > 0)) ? v : undefined;
}

function Plot({ series, kind, data }: { series: Series; kind: Kind; data: (number | null)[] }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const limit = kind.limit ? (series[kind.limit] as number | null) : null;
  const theme = shown.value;
  const x = series.when_usec.map((t) => t / 1e6);
  useEffect(() => {
    const el = box.current!;
    const line = colour(kind.colour);
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${colour("--font")}` };
    const u = new uPlot({
      width: el.clientWidth || 300, height: 150, cursor: { y: false, points: { size: 6 } }, legend: { show: false }, padding: [10, 14, 0, 0],
      scales: { y: { range: (_u, _lo, hi) => [0, Math.max(kind.top ?? 0, (hi || 1) * 1.12)] } },
      axes: [
        { ...axis, size: 26, space: 76, incrs: SECONDS, values: (_u, v) => v.map((n) => CLOCK.format(n * 1000)) },
        { ...axis, size: 74, space: 30, values: (_u, v) => v.map((n) => kind.show(n)), ...(kind.key.endsWith("bytes") ? { incrs: BYTES } : {}) },
      ],
      series: [{}, { stroke: line, width: 1.6, fill: `color-mix(in srgb, ${line} 14%, transparent)`, points: { show: false }, spanGaps: false }],
    }, [x, data], el);
    plot.current = u;
    const watch = new ResizeObserver(() => u.setSize({ width: el.clientWidth, height: 150 }));
    watch.observe(el);
    return () => {
      watch.disconnect();
      u.destroy();
    };
  }, [theme, kind.key]);
  useEffect(() => plot.current?.setData([x, data]), [series]);
  const told = data.filter((n): n is number => n !== null);
  const last = told[told.length - 1];
  const mean = told.reduce((a, b) => a + b, 0) / told.length;
  return (
    <Panel label={kind.title}>
      <figure class="plot" data-plot={kind.key} data-points={told.length}>
        <figcaption>
          <b>{kind.title}</b>{kind.show(last)}
          <span>mean {kind.show(mean)}, most {kind.show(Math.max(...told))}{limit ? `, of ${kind.show(limit)}` : ""}</span>
        </figcaption>
        <div class="canvas" ref={box} aria-hidden="true" />
      </figure>
    </Panel>
  );
}

const EVERY_MS = 2000;

export default function Plots({ path, live }: { path: string; live: boolean }) {
  const got = useGet<Series>(path, { points: 600, live }, live ? EVERY_MS : 0);
  return (
    <Show of={got}>
      {(s) => {
        const kinds = KINDS.map((k) => ({ k, v: values(s, k) })).filter((x) => x.v);
        if (!s.when_usec?.length || !kinds.length)
          return <div class="panel"><Empty title="Nothing was measured">{live ? "The first values come within seconds." : "It ended before its node measured it, or it is too long ago."}</Empty></div>;
        const span = s.when_usec[s.when_usec.length - 1] - s.when_usec[0];
        return (
          <>
            <p class="muted" role="status">{s.when_usec.length} points over {duration(span)}{live ? ", live" : ""}</p>
            <div class="plots">{kinds.map(({ k, v }) => <Plot key={k.key} series={s} kind={k} data={v!} />)}</div>
          </>
        );
      }}
    </Show>
  );
}
