// What is mine: tasks, GPUs, money.
import { useEffect, useMemo } from "preact/hooks";
import { me } from "../api";
import { commandLine, count, milli, money, plural, watts, zone } from "../format";
import { useGet } from "../load";
import { on } from "../live";
import { heat } from "../ui/heat";
import type { Budget, Cost, Gpu, Task, TaskPage } from "../types";
import { Icon } from "../ui/icons";
import { Empty, Meter, Panel, Show, StateChip, Took, When } from "../ui/parts";

const SHOWN = 12;

/** Midnight here, so many days ago. */
export function daysAgo(n: number): number {
  const d = new Date();
  d.setHours(0, 0, 0, 0);
  d.setDate(d.getDate() - n);
  return d.getTime() * 1000;
}

function Row({ t }: { t: Task }) {
  return (
    <tr>
      <td class="tight"><StateChip state={t.state} more={t.progress?.total ? `${t.progress.succeeded + t.progress.failed + t.progress.cancelled}/${t.progress.total}` : undefined} /></td>
      <td class="clip"><a class="strong" href={`/tasks/${t.id}`}>{t.name || t.id.slice(0, 8)}</a> <span class="mono muted">{commandLine(t.argv)}</span></td>
      <td class="number"><Took task={t} /></td>
      <td class="number muted wide-only"><When usec={t.created_usec} /></td>
    </tr>
  );
}

function MyTasks() {
  const got = useGet<TaskPage>("/tasks", { limit: SHOWN });
  useEffect(() => on("task", (t) => {
    if (t.user !== me.value?.user) return;
    if (got.data?.tasks.some((x) => x.id === t.id)) got.put((p) => ({ ...p, tasks: p.tasks.map((x) => (x.id === t.id ? t : x)) }));
    else if (!t.group && !t.parent) got.put((p) => ({ ...p, tasks: [t, ...p.tasks].slice(0, SHOWN) }));
  }), [got.data]);
  return (
    <Panel title="My tasks" end={<a href="/tasks">All{got.data?.total ? ` ${count(got.data.total)}` : ""}</a>}>
      <Show of={got}>
        {(p) => p.tasks.length ? (
          <table class="fixed">
            <colgroup><col class="w-state" /><col /><col class="w-time" /><col class="w-made wide-only" /></colgroup>
            <thead class="unseen"><tr><th>State</th><th>Task</th><th>Time</th><th>Created</th></tr></thead>
            <tbody>{p.tasks.map((t) => <Row key={t.id} t={t} />)}</tbody>
          </table>
        ) : (
          <Empty title="No tasks yet">
            <div>In a shell: <code>vrun python3 train.py</code></div>
            <a class="button main" href="/run"><Icon name="plus" />Run something</a>
          </Empty>
        )}
      </Show>
    </Panel>
  );
}

function MyGpus() {
  const got = useGet<{ gpus: Gpu[] }>("/gpus", { live: 1 });
  useEffect(() => on("gpus", (g) => got.put(() => g)), []);
  const mine = got.data?.gpus.flatMap((g) => g.holders.filter((h) => h.task && h.user === me.value?.user).map((h) => ({ g, h: { ...h, task: h.task! } }))) ?? [];
  return (
    <Panel title="My GPUs now" end={<a href="/cluster">Cluster</a>}>
      <Show of={got}>
        {() => mine.length ? (
          <ul class="mine">
            {mine.map(({ g, h }) => (
              <li key={`${g.node}${g.index}${h.task}`}>
                <i class="swatch" data-heat={heat(g.sm_percent)} aria-hidden="true" />
                <span class="clip"><a href={`/tasks/${h.task}`}>{h.name || h.task.slice(0, 8)}</a><small class="muted"> {g.node} · GPU {g.index}{h.gpu_milli && h.gpu_milli < 1000 ? ` · ${milli(h.gpu_milli)}` : ""}</small></span>
                <span class="number">{g.sm_percent == null ? "–" : `${g.sm_percent} %`}<small class="muted"> {watts(g.power_mw)}</small></span>
              </li>
            ))}
          </ul>
        ) : <Empty title="You hold no GPU">{got.data ? `${count(got.data.gpus.filter((g) => g.state === "free").length)} of ${plural(got.data.gpus.length, "GPU")} are free.` : ""}</Empty>}
      </Show>
    </Panel>
  );
}

function Spent() {
  const from = useMemo(() => daysAgo(13), []);
  const user = me.value?.user;
  const got = useGet<Cost>("/cost", { by: "day", user, from_usec: from, ...zone(from) }, 30_000);
  const budgets = useGet<{ budgets: Budget[] }>("/budgets");
  return (
    <Panel title="What I spent, 14 days" end={<a href="/cost">Cost</a>}>
      <Show of={got} rows={3}>
        {(c) => {
          const days = Array.from({ length: 14 }, (_, i) => {
            const d = new Date(from / 1000 + i * 86400e3 + 43200e3);
            const key = `${d.getFullYear()}-${String(d.getMonth() + 1).padStart(2, "0")}-${String(d.getDate()).padStart(2, "0")}`;
            return { key, micro: c.rows.find((r) => r.key[0] === key)?.cost_micro ?? 0 };
          });
          const most = Math.max(1, ...days.map((d) => d.micro));
          return (
            <div class="panel-body">
              <p class="big-number">{money(c.total?.cost_micro ?? 0, c.currency)}</p>
              <div class="spark" role="img" aria-label={`Each day: ${days.filter((d) => d.micro).map((d) => `${d.key} ${money(d.micro)}`).join(", ") || "nothing"}`}>
                {days.map((d) => <i key={d.key} title={`${d.key}: ${money(d.micro, c.currency)}`} style={{ height: `${Math.max(2, (100 * d.micro) / most)}%` }} />)}
              </div>
              {budgets.data?.budgets.filter((b) => b.scope === `user:${user}` || b.scope === `team:${me.value?.team}`).map((b) => (
                <div key={b.name} class="budget-line">
                  <span>{b.name}</span><span class="muted">{money(b.spent_micro)} of {money(b.limit_micro, b.currency)} a {b.period}</span>
                  <Meter part={b.spent_micro} whole={b.limit_micro} tone={b.state === "capped" ? "bad" : b.state === "warned" ? "wait" : undefined} label={`${money(b.spent_micro)} of ${money(b.limit_micro)}`} />
                </div>
              ))}
            </div>
          );
        }}
      </Show>
    </Panel>
  );
}

export function Home() {
  return (
    <>
      <div class="page-head">
        <h1 tabIndex={-1}>{me.value?.full_name || me.value?.user}</h1>
        <div class="actions"><a class="button main" href="/run"><Icon name="plus" />Run</a></div>
      </div>
      <div class="grid wide-left">
        <MyTasks />
        <div class="grid"><MyGpus /><Spent /></div>
      </div>
    </>
  );
}
