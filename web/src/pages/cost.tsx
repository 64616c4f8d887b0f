// What was spent, by whom and when; budgets; what was paid for and not used; energy.
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { call, may, me, part, url } from "../api";
import { duration, energy, money, parseMoney, percent, plural, relative, size, zone } from "../format";
import { useGet } from "../load";
import { query, setQuery } from "../router";
import type { Budget, Cost, CostRow } from "../types";
import { Bars, Key, type Stack } from "../ui/bars";
import { Ask, Chip, Empty, Field, Meter, Panel, say, Show, Wide } from "../ui/parts";
import { Icon } from "../ui/icons";
import { daysAgo } from "./home";

const BY = ["team", "user", "project", "pool"];
const SPANS: [string, number, string][] = [["7", 6, "7 days"], ["30", 29, "30 days"], ["90", 89, "90 days"]];
const dayKey = (usec: number) => {
  const d = new Date(usec / 1000);
  return `${d.getFullYear()}-${String(d.getMonth() + 1).padStart(2, "0")}-${String(d.getDate()).padStart(2, "0")}`;
};
const gpuHours = (msec: number) => (msec < 3.6e6 ? duration(msec * 1000) : `${(msec / 3.6e6).toFixed(msec >= 3.6e8 ? 0 : 1)} h`);

function sumBy(rows: CostRow[]): Map<string, CostRow> {
  const out = new Map<string, CostRow>();
  for (const r of rows) {
    const key = r.key[0] ?? "";
    const s = out.get(key);
    if (!s) out.set(key, { ...r });
    else {
      s.cost_micro += r.cost_micro;
      s.gpu_msec += r.gpu_msec;
      s.cpu_msec += r.cpu_msec;
      s.gpu_busy_msec += r.gpu_busy_msec;
      s.energy_mj += r.energy_mj;
      s.co2_mg += r.co2_mg;
      s.idle_cost_micro += r.idle_cost_micro;
      s.tasks += r.tasks;
    }
  }
  return out;
}

function Budgets() {
  const got = useGet<{ budgets: Budget[] }>("/budgets", {}, 20_000);
  const editing = useSignal<Budget | "new" | null>(null);
  const removing = useSignal<Budget | null>(null);
  const sets = may("manage-money", "manage-team");
  return (
    <Panel title="Budgets" end={sets && <button class="button small" type="button" onClick={() => (editing.value = "new")}><Icon name="plus" />Budget</button>}>
      <Show of={got} rows={2}>
        {({ budgets }) => budgets.length ? (
          <ul class="budgets">
            {budgets.map((b) => (
              <li key={b.name}>
                <div class="row"><span class="strong">{b.name}</span><span class="tag">{b.scope}</span>
                  <Chip tone={b.paused ? "still" : b.state === "capped" ? "bad" : b.state === "warned" ? "wait" : "good"}>{b.paused ? "paused" : b.state}</Chip>
                  <span class="muted">then {b.policy === "warn" ? "a warning" : b.policy === "queue" ? "new tasks wait" : "tasks stop"}</span>
                  <span class="end row">
                    <span>{money(b.spent_micro)} of {money(b.limit_micro, b.currency)} a {b.period}</span>
                    {sets && <button class="button small" type="button" onClick={() => (editing.value = b)}>Change…</button>}
                    {sets && <button class="button small danger" type="button" onClick={() => (removing.value = b)}>Remove…</button>}
                  </span>
                </div>
                <Meter part={b.spent_micro} whole={b.limit_micro} tone={b.state === "capped" ? "bad" : b.state === "warned" ? "wait" : undefined} label={`${percent(b.spent_micro, b.limit_micro)} spent`} />
                <small class="muted">{b.rate_micro_hour ? `${money(b.rate_micro_hour)} an hour now` : "nothing is spent now"}{b.reached_usec ? `, reached ${relative(b.reached_usec)}` : ""}</small>
              </li>
            ))}
          </ul>
        ) : <Empty title="No budget is set">{sets ? "A budget warns, lets new tasks wait, or stops what runs, as you choose." : ""}</Empty>}
      </Show>
      {editing.value && <BudgetDialog of={editing.value === "new" ? null : editing.value} close={() => (editing.value = null)} done={got.again} />}
      {removing.value && (
        <Ask title={`Remove budget ${removing.value.name}?`} yes="Remove" danger close={() => (removing.value = null)}
          act={async () => { await call("DELETE", `/budgets/${part(removing.value!.name)}`); say("Removed."); got.again(); }}>
          <p>Nothing is warned of or stopped by it any more.</p>
        </Ask>
      )}
    </Panel>
  );
}

function BudgetDialog({ of, close, done }: { of: Budget | null; close: () => void; done: () => void }) {
  const v = useSignal({
    name: of?.name ?? "", scope: of?.scope ?? (may("manage-money") ? "cloud" : `team:${me.value?.team}`), limit: of ? String(of.limit_micro / 1e6) : "", period: of?.period ?? "month",
    warn: (of?.warn_percent ?? [50, 80]).join(", "), policy: of?.policy ?? "warn",
  });
  const bind = (k: keyof typeof v.value) => ({
    value: v.value[k], onInput: (e: { currentTarget: { value: string } }) => (v.value = { ...v.value, [k]: e.currentTarget.value }),
  });
  return (
    <Ask title={of ? `Budget ${of.name}` : "A budget"} yes="Set" close={close} act={async () => {
      const limit = parseMoney(v.value.limit);
      if (!limit) throw new Error(`'${v.value.limit}' is not an amount such as 1200.50.`);
      const warn = v.value.warn.split(/[,\s]+/).filter(Boolean).map(Number);
      if (warn.some((n) => !Number.isInteger(n) || n < 1)) throw new Error("Warnings are percentages, such as 50, 80.");
      await call("PUT", `/budgets/${part(v.value.name.trim())}`, { scope: v.value.scope.trim(), limit_micro: limit, period: v.value.period, warn_percent: warn, policy: v.value.policy });
      say("The budget is set.");
      done();
    }}>
      <div class="fields">
        <Field label="Name">{(p) => <input {...p} required disabled={Boolean(of)} {...bind("name")} />}</Field>
        <Field label="Of" hint="cloud, team:NAME, user:NAME, project:NAME">{(p) => <input {...p} required {...bind("scope")} />}</Field>
        <Field label="At most">{(p) => <input {...p} required inputMode="decimal" {...bind("limit")} />}</Field>
        <Field label="Each">{(p) => <select {...p} {...bind("period")}>{["day", "week", "month", "year", "once"].map((x) => <option key={x}>{x}</option>)}</select>}</Field>
        <Field label="Warn at (%)">{(p) => <input {...p} {...bind("warn")} />}</Field>
        <Field label="When it is reached">{(p) => <select {...p} {...bind("policy")}><option value="warn">warn</option><option value="queue">new tasks wait</option><option value="stop">stop tasks</option></select>}</Field>
      </div>
    </Ask>
  );
}

export function CostPage() {
  const by = BY.includes(query.value.get("by") ?? "") ? query.value.get("by")! : "team";
  const span = SPANS.find((s) => s[0] === query.value.get("span")) ?? SPANS[1];
  const from = useMemo(() => daysAgo(span[1]), [span[0]]);
  const ask = { by: `${by},day`, from_usec: from, ...zone(from) };
  const got = useGet<Cost>("/cost", ask, 30_000);
  return (
    <>
      <div class="page-head">
        <h1 tabIndex={-1}>Cost</h1>
        <div class="actions">
          <div class="choices" role="group" aria-label="How long">
            {SPANS.map((s) => <button key={s[0]} type="button" class="choice" aria-pressed={s === span} onClick={() => setQuery({ span: s[0] })}>{s[2]}</button>)}
          </div>
          <div class="choices" role="group" aria-label="By">
            {BY.map((b) => <button key={b} type="button" class="choice" aria-pressed={b === by} onClick={() => setQuery({ by: b })}>{b}</button>)}
          </div>
          <button class="button" type="button" onClick={() => void saveCsv(url("/cost", ask))}><Icon name="save" />CSV</button>
        </div>
      </div>
      <div class="grid">
        <Show of={got} rows={10}>
          {(c) => {
            const sums = [...sumBy(c.rows)].sort((a, b) => b[1].cost_micro - a[1].cost_micro || b[1].gpu_msec - a[1].gpu_msec);
            const keys = sums.map(([k]) => k);
            const t = c.total;
            const stacks: Stack[] = Array.from({ length: span[1] + 1 }, (_, i) => {
              const day = dayKey(from + i * 86400e6 + 43200e6);
              return { day, parts: c.rows.filter((r) => r.key[1] === day && r.cost_micro > 0).sort((a, b) => keys.indexOf(a.key[0]) - keys.indexOf(b.key[0])).map((r) => ({ key: r.key[0], value: r.cost_micro })) };
            });
            const saved = c.around_clock_micro - (t?.cost_micro ?? 0);
            return (
              <>
                <dl class="tiles">
                  <div class="tile"><dt>Spent</dt><dd data-spent={t?.cost_micro ?? 0}>{money(t?.cost_micro ?? 0, c.currency)}</dd></div>
                  <div class="tile"><dt>Of it, for what still runs</dt><dd>{money(c.running_micro, c.currency)}</dd></div>
                  <div class="tile"><dt>GPU time</dt><dd>{gpuHours(t?.gpu_msec ?? 0)} <small>{t?.gpu_msec ? `${percent(t.gpu_busy_msec, t.gpu_msec)} used` : ""}</small></dd></div>
                  <div class="tile"><dt>Idle waste</dt><dd class={t?.idle_cost_micro ? "warn" : ""}>{money(t?.idle_cost_micro ?? 0, c.currency)} <small>{t?.cost_micro ? percent(t.idle_cost_micro, t.cost_micro) : ""}</small></dd></div>
                  <div class="tile"><dt>Energy</dt><dd>{energy(t?.energy_mj ?? 0)} <small>{t?.co2_mg ? `${(t.co2_mg / 1e6).toFixed(t.co2_mg < 1e7 ? 2 : 0)} kg CO₂` : ""}</small></dd></div>
                </dl>
                {saved > 0 && <p class="muted">The same GPUs, held all that time, would have cost {money(c.around_clock_micro, c.currency)}: {money(saved, c.currency)} more.</p>}
                <Panel title={`By ${by} and day`} end={<Key keys={keys} rest={Math.max(0, keys.length - 7)} />}>
                  {c.rows.some((r) => r.cost_micro > 0) ? (
                    <div class="panel-body"><Bars stacks={stacks} keys={keys} show={(n) => money(n)} label={`Cost of each day by ${by}; the table below has the sums`} /></div>
                  ) : <Empty title="Nothing was charged in this time">{may("manage-money") ? <>Set what a pool costs under <a href="/admin/prices">prices</a>.</> : "Nobody set a price, or nothing ran."}</Empty>}
                  {sums.length > 0 && (
                    <Wide>
                      <table>
                        <thead><tr><th>{by}</th><th class="number">Cost</th><th class="number">Idle</th><th class="number">GPU time</th><th class="number">Used</th><th class="number">CPU time</th><th class="number">Energy</th><th class="number">Tasks</th></tr></thead>
                        <tbody>
                          {sums.map(([k, r]) => (
                            <tr key={k}><td class="strong">{k || "(none)"}</td><td class="number">{money(r.cost_micro)}</td><td class="number">{money(r.idle_cost_micro)}</td><td class="number">{gpuHours(r.gpu_msec)}</td><td class="number">{percent(r.gpu_busy_msec, r.gpu_msec)}</td><td class="number">{duration(r.cpu_msec * 1000)}</td><td class="number">{energy(r.energy_mj)}</td><td class="number">{r.tasks}</td></tr>
                          ))}
                        </tbody>
                      </table>
                    </Wide>
                  )}
                  {c.more > 0 && <p class="panel-body muted">{plural(c.more, "row")} more are not shown.</p>}
                </Panel>
              </>
            );
          }}
        </Show>
        <Budgets />
      </div>
    </>
  );
}

/** As a file: the same question, asked for as CSV. */
async function saveCsv(address: string) {
  try {
    const r = await fetch(address, { headers: { Accept: "text/csv" } });
    if (!r.ok) throw new Error(`The cloud answered ${r.status}.`);
    const blob = await r.blob();
    const a = document.createElement("a");
    a.href = URL.createObjectURL(blob);
    a.download = "virga-cost.csv";
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 10_000);
    say(`Saved ${size(blob.size)}.`);
  } catch (e) {
    say(e instanceof Error ? e.message : String(e), "bad");
  }
}
