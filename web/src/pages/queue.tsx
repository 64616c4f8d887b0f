// Who waits for what, until when; and what everybody holds against what is theirs.
import { useEffect } from "preact/hooks";
import { count, milli, plural, resources } from "../format";
import { on } from "../live";
import { useGet } from "../load";
import { query, setQuery } from "../router";
import type { Pool, Queue, TenantRow } from "../types";
import { Empty, Meter, Panel, Show, When, Wide } from "../ui/parts";

const LIMIT = 200;
const ppm = (n: number) => `${(n / 10_000).toFixed(1).replace(/\.0$/, "")} %`;

function Tenants({ rows }: { rows: TenantRow[] }) {
  if (!rows.length) return <Empty title="Nobody holds or waits for anything" />;
  const quota = rows.some((t) => t.quota_gpu_milli || t.limit_gpu_milli != null);
  return (
    <Wide>
      <table>
        <thead><tr><th>Tenant</th><th style={{ width: "26%" }}>Share held, fair share marked</th><th class="number">Held</th><th class="number">Fair</th><th class="number">Lately</th><th class="number">GPUs</th>{quota && <th class="number">Quota</th>}<th class="number">Running</th><th class="number">Waiting</th></tr></thead>
        <tbody>
          {rows.map((t) => {
            const depth = t.name.split("/").length - 1;
            return (
              <tr key={t.name}>
                <td style={{ paddingLeft: `${14 + depth * 16}px` }}><span class={depth ? "" : "strong"}>{t.name.split("/").pop()}</span></td>
                <td><Meter part={t.share_ppm} whole={1e6} mark={t.fair_ppm} tone={t.share_ppm > t.fair_ppm && t.fair_ppm ? "wait" : undefined} label={`holds ${ppm(t.share_ppm)}, fair share ${ppm(t.fair_ppm)}`} /></td>
                <td class="number">{ppm(t.share_ppm)}</td><td class="number">{ppm(t.fair_ppm)}</td><td class="number muted">{ppm(t.usage_ppm)}</td>
                <td class="number">{milli(t.gpu_milli)}</td>
                {quota && <td class="number">{t.quota_gpu_milli ? milli(t.quota_gpu_milli) : "–"}{t.limit_gpu_milli != null ? ` (at most ${milli(t.limit_gpu_milli)})` : ""}</td>}
                <td class="number">{count(t.running)}</td><td class="number">{count(t.queued)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </Wide>
  );
}

export function QueuePage() {
  const pool = query.value.get("pool") ?? "";
  const got = useGet<Queue>("/queue", { pool, limit: LIMIT }, 10_000);
  const pools = useGet<{ pools: Pool[] }>("/pools");
  useEffect(() => on("queue", (q) => { if (!pool) got.put(() => q); }), [pool]);
  return (
    <>
      <div class="page-head">
        <h1 tabIndex={-1}>Queue</h1>
        <span class="muted" role="status">{got.data ? `${plural(got.data.total, "task")} waiting` : ""}</span>
        <div class="actions">
          <label class="check">Pool <select value={pool} onChange={(e) => setQuery({ pool: e.currentTarget.value || null })}>
            <option value="">all</option>
            {pools.data?.pools.map((p) => <option key={p.name} value={p.name}>{p.name}</option>)}
          </select></label>
        </div>
      </div>
      <div class="grid">
        <Panel title="Shares"><Show of={got}>{(q) => <Tenants rows={q.tenants} />}</Show></Panel>
        <Panel title="Next in line" end={got.data && got.data.total > got.data.queue.length ? <span class="muted">the first {got.data.queue.length}</span> : null}>
          <Show of={got}>
            {(q) => q.queue.length ? (
              <Wide>
                <table>
                  <thead><tr><th class="number">No.</th><th>Task</th><th>User</th><th>Pool</th><th>Wants</th><th class="number">Priority</th><th>Waits since</th><th>Expected start</th></tr></thead>
                  <tbody>
                    {q.queue.map((r, i) => (
                      <tr key={r.task ?? i}>
                        <td class="number muted">{i + 1}</td>
                        <td>{r.task ? <a class="strong" href={`/tasks/${r.task}`}>{r.name || r.task.slice(0, 8)}</a> : <span class="muted">another's</span>}{r.members ? <span class="muted"> {plural(r.members, "member")}</span> : null}</td>
                        <td>{r.user}{r.team && r.team !== r.user ? <span class="muted"> {r.team}</span> : null}</td><td>{r.pool}</td><td>{resources(r.want)}</td>
                        <td class="number">{r.priority}</td><td><When usec={r.created_usec} /></td>
                        <td>{r.expected_start_usec ? <When usec={r.expected_start_usec} /> : <span class="muted">not known</span>}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </Wide>
            ) : <Empty title="Nobody waits">What is submitted now starts at once if it fits.</Empty>}
          </Show>
        </Panel>
      </div>
    </>
  );
}
