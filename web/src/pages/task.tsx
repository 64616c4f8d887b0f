// One task: what it is, how it does, what it says, and a hand on it.
import { useSignal } from "@preact/signals";
import { lazy, Suspense } from "preact/compat";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { me, part, text } from "../api";
import { commandLine, duration, energy, milli, money, plural, resources, size, whenFull } from "../format";
import { useGet } from "../load";
import { on } from "../live";
import { again, notebookAddress, reach } from "../model/draft";
import { navigate, query, setQuery } from "../router";
import type { Attempt, Task, TaskPage as Page, Why } from "../types";
import { CancelTask } from "../ui/cancel";
import { Icon } from "../ui/icons";
import { Log } from "../ui/log";
import { Bones, CopyButton, Empty, ended, Failure, Note, Panel, Show, StateChip, Tabs, Took, When, Wide } from "../ui/parts";

const NOTEBOOK_LOG = 65536; // bytes of output in which its address is looked for
const Term = lazy(() => import("../ui/terminal"));
const Plots = lazy(() => import("../ui/plots"));

function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {rows.filter(([, v]) => v !== null && v !== undefined && v !== "" && v !== false)
        .map(([k, v]) => [<dt key={k}>{k}</dt>, <dd key={`${k}v`}>{v}</dd>])}
    </dl>
  );
}

function About({ t }: { t: Task }) {
  const u = t.gpu_usage;
  return (
    <div class="grid two">
      <Panel title="What it is">
        <div class="panel-body">
          <Facts rows={[
            ["Task", <code key="id">{t.id}</code>],
            ["User", t.team && t.team !== t.user ? `${t.user} (${t.team})` : t.user],
            ["Project", t.project],
            ["Pool", t.pool && <a href={`/tasks?pool=${encodeURIComponent(t.pool)}`}>{t.pool}</a>],
            ["Node", t.node && <a href="/cluster">{t.node}{t.gpus.length ? `, ${plural(t.gpus.length, "GPU")} (${t.gpus.join(", ")})` : ""}</a>],
            ["Wants", resources(t.want)],
            ["Environment", t.spec?.environment || t.spec?.image],
            ["Directory", t.cwd && <code>{t.cwd}</code>],
            ["Session", t.session],
            ["Secrets", t.secrets.join(", ")],
            ["Labels", Object.keys(t.labels).length > 0 && (
              <span class="row">{Object.entries(t.labels).map(([k, v]) => <a key={k} class="tag" href={`/tasks?label=${encodeURIComponent(`${k}=${v}`)}`}>{k}={v}</a>)}</span>
            )],
            ["Member", t.group && <a href={`/tasks/${t.group}`}>{t.index} of {t.of} in a {t.gang ? "gang" : "group"}</a>],
            ["Parent", t.parent && <a href={`/tasks/${t.parent}`}><code>{t.parent.slice(0, 8)}</code></a>],
            ["After", t.after.join(", ")],
            ["Priority", t.priority],
            ["Key", t.key],
          ]} />
        </div>
      </Panel>
      <Panel title="How it went">
        <div class="panel-body">
          <Facts rows={[
            ["Created", whenFull(t.created_usec)],
            ["Started", t.started_usec > 0 && whenFull(t.started_usec)],
            ["Expected", !t.started_usec && t.expected_start_usec > 0 && <When usec={t.expected_start_usec} />],
            ["Ended", t.ended_usec > 0 && whenFull(t.ended_usec)],
            ["Time", t.started_usec > 0 && <><Took task={t} />{t.time_limit_usec ? ` of ${duration(t.time_limit_usec)}` : ""}</>],
            ["Status", t.status],
            ["CPU time", t.cpu_usec > 0 && duration(t.cpu_usec)],
            ["Most memory", t.mem_peak_bytes > 0 && size(t.mem_peak_bytes)],
            ["GPU used", u?.sm_mean_milli != null && `${milli(u.sm_mean_milli)} % on average, ${u.sm_max_percent} % at most`],
            ["GPU memory", u?.share_limit_bytes ? `${size(u.share_used_bytes)} of ${size(u.share_limit_bytes)}` : u?.mem_peak_bytes != null && `${size(u.mem_peak_bytes)} at most`],
            ["Energy", u?.energy_mj != null && energy(u.energy_mj)],
            ["Output", t.out_bytes > 0 && size(t.out_bytes)],
            ["Cost", t.cost_micro != null && money(t.cost_micro, t.currency)],
            ["Attempt", t.attempt > 1 && t.attempt],
            ["Preempted", t.preempted > 0 && plural(t.preempted, "time")],
            ["Retries left", t.retries_left > 0 && t.retries_left],
          ]} />
        </div>
      </Panel>
    </div>
  );
}

/** Asked again now and then: queues move. */
function WhyPending({ t }: { t: Task }) {
  const why = useGet<Why>(`/tasks/${part(t.id)}/why`, {}, 5000);
  if (why.error) return <Failure text={why.error} />;
  const w = why.data;
  if (!w) return null;
  return (
    <Note tone="wait">
      <b>{w.text || t.reason || "It waits for its turn."}</b>
      <div class="row muted">
        {w.ahead > 0 && <span>{plural(w.ahead, "task")} ahead</span>}
        {w.expected_start_usec > 0 && <span>expected to start <When usec={w.expected_start_usec} />{w.basis ? ` (${w.basis})` : ""}</span>}
        {w.holders.map((h) => <span key={h.tenant} class="tag">{h.tenant || "others"}: {plural(h.tasks, "task")}{h.gpu_milli ? `, ${milli(h.gpu_milli)} GPU` : ""}</span>)}
      </div>
    </Note>
  );
}

/** How a notebook is opened from one's own machine: its port is led there, and its address has the key that it printed.
    It is not shown inside of this page: what a notebook runs must not run as who is signed in here. */
function Notebook({ t, line }: { t: Task; line: string }) {
  const at = useSignal<string | null>(null);
  useEffect(() => {
    if (t.state !== "running" || at.value) return;
    const abort = new AbortController();
    let timer = 0;
    const look = () =>
      text(`/tasks/${part(t.id)}/logs`, { tail_bytes: NOTEBOOK_LOG }, abort.signal).then((log) => (at.value = notebookAddress(log)), () => undefined).then(() => {
        if (!at.value && !abort.signal.aborted) timer = window.setTimeout(look, 2000);
      });
    void look();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [t.id, t.state]);
  return (
    <Note>
      <ol class="steps">
        <li>On your machine, lead its port there: <div class="row"><code class="code" data-reach>{line}</code><CopyButton text={line} /></div></li>
        <li>{at.value ? <>Open <a data-notebook href={at.value} target="_blank" rel="noopener noreferrer">{at.value.replace(/\?.*/, "")}</a> <CopyButton text={at.value} label="Copy with its key" /></>
          : t.state === "running" ? "Then open its address, which stands here as soon as it has printed it." : "Then open its address, which stands here when it runs."}</li>
      </ol>
      <p class="muted">With your machine's files and all in one: <code>virga notebook</code>.</p>
    </Note>
  );
}

function Attempts({ id }: { id: string }) {
  const got = useGet<{ attempts: Attempt[] }>(`/tasks/${part(id)}/attempts`);
  return (
    <Panel title="Attempts">
      <Show of={got}>
        {({ attempts }) => attempts.length ? (
          <Wide>
            <table>
              <thead><tr><th>Attempt</th><th>Node</th><th>Began</th><th class="number">Took</th><th>How it ended</th><th>Held</th><th class="number">Cost</th></tr></thead>
              <tbody>
                {attempts.map((a) => (
                  <tr key={a.attempt}>
                    <td>{a.attempt}</td><td>{a.node}</td><td>{whenFull(a.from_usec)}</td>
                    <td class="number">{a.until_usec ? duration(a.until_usec - a.from_usec) : "runs"}</td>
                    <td>{a.how}</td><td>{resources(a.held)}</td><td class="number">{a.cost_micro == null ? "" : money(a.cost_micro)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Wide>
        ) : <Empty title="It was not started yet" />}
      </Show>
    </Panel>
  );
}

function Members({ t }: { t: Task }) {
  const got = useGet<Page>("/tasks", { of: t.id, limit: 500, all_users: true, flat: true });
  useEffect(() => on("task", (m) => {
    if (m.group === t.id || m.parent === t.id) got.put((p) => ({ ...p, tasks: p.tasks.map((x) => (x.id === m.id ? m : x)) }));
  }), [t.id]);
  return (
    <Panel title={t.members ? "Members" : "Children"}>
      <Show of={got}>
        {(page) => (
          <Wide>
            <table>
              <thead><tr><th class="number">No.</th><th>State</th><th>Task</th><th>Node</th><th class="number">Time</th></tr></thead>
              <tbody>
                {page.tasks.map((m) => (
                  <tr key={m.id}>
                    <td class="number">{m.index ?? ""}</td><td><StateChip state={m.state} /></td>
                    <td><a href={`/tasks/${m.id}`}>{m.name || m.id.slice(0, 8)}</a></td><td>{m.node}</td>
                    <td class="number"><Took task={m} /></td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Wide>
        )}
      </Show>
    </Panel>
  );
}

type Tab = "output" | "plots" | "terminal" | "about" | "attempts" | "members";

export function TaskPage({ id }: { id: string }) {
  const got = useGet<Task>(`/tasks/${part(id)}`);
  const cancelling = useSignal(false);
  useEffect(() => on("task", (t) => { if (t.id === got.data?.id) got.put((old) => ({ ...old, ...t })); }), [got.data?.id]);
  const t = got.data;
  useEffect(() => { if (t) document.title = `${t.name || t.id.slice(0, 8)} · Virga`; }, [t?.name]);
  if (!t)
    return (
      <>
        <div class="page-head"><h1 tabIndex={-1}>Task {id.slice(0, 8)}</h1></div>
        {got.error ? <Failure text={got.error} again={got.again} /> : <Bones rows={8} />}
      </>
    );
  const done = ended(t.state);
  const group = t.members > 0 || (t.progress?.total ?? 0) > 0;
  const waiting = t.state === "queued" || t.state === "blocked";
  const tabs: { key: Tab; name: string }[] = [
    { key: "output", name: "Output" },
    ...(t.members ? [] : [{ key: "plots" as Tab, name: "Plots" }]),
    ...(done || t.members ? [] : [{ key: "terminal" as Tab, name: "Terminal" }]),
    { key: "about", name: "Details" },
    ...(group ? [{ key: "members" as Tab, name: t.members ? "Members" : "Children" }] : []),
    ...(t.members ? [] : [{ key: "attempts" as Tab, name: "Attempts" }]),
  ];
  const asked = query.value.get("tab") as Tab | null;
  const open = tabs.find((x) => x.key === asked)?.key ?? (t.members ? "members" : "output");
  const p = t.progress;
  return (
    <>
      <div class="task-head">
        <div class="crumbs"><a href="/tasks">Tasks</a> / {t.group && <><a href={`/tasks/${t.group}`}>{t.group.slice(0, 8)}</a> / </>}{t.id.slice(0, 8)}</div>
        <div class="title">
          <h1 tabIndex={-1}>{t.name || t.id.slice(0, 8)}</h1>
          <span role="status"><StateChip state={t.state} more={t.state === "failed" && t.status ? `(${t.status})` : p?.total ? `${p.succeeded + p.failed + p.cancelled}/${p.total}` : undefined} /></span>
          <span class="muted"><Took task={t} />{t.node ? ` on ${t.node}` : t.pool ? ` in ${t.pool}` : ""}{t.cost_micro != null ? `, ${money(t.cost_micro, t.currency)}` : ""}</span>
          <div class="actions">
            <button class="button" type="button" onClick={() => { again(t); navigate("/run"); }}><Icon name="again" />Run again…</button>
            {!done && <button class="button danger" type="button" onClick={() => (cancelling.value = true)}><Icon name="cross" />Cancel</button>}
          </div>
        </div>
        <div class="row"><code class="code" style={{ flex: 1 }}>{commandLine(t.argv)}</code><CopyButton text={commandLine(t.argv)} /></div>
        {waiting && <WhyPending t={t} />}
        {!waiting && t.reason && <Note tone={t.state === "failed" ? "bad" : undefined}>{t.reason}</Note>}
        {!done && reach(t) && <Notebook t={t} line={reach(t)!} />}
        {t.notice && !done && <Note tone="wait">{t.notice}</Note>}
      </div>
      <Tabs label="About this task" tabs={tabs} open={open} set={(k) => setQuery({ tab: k === tabs[0].key && !t.members ? null : k })} />
      <div role="tabpanel" id="tab-panel" aria-labelledby={`tab-${open}`}>
        <Suspense fallback={<Bones />}>
          {open === "output" && <Log id={t.id} running={!done} />}
          {open === "plots" && <Plots path={`/tasks/${part(t.id)}/series`} live={t.state === "running"} />}
          {open === "terminal" && (t.state === "running" ? <Term id={t.id} observe={t.user !== me.value?.user} /> : <div class="panel"><Empty title="It does not run yet">The terminal opens when it does.</Empty></div>)}
          {open === "about" && <About t={t} />}
          {open === "members" && <Members t={t} />}
          {open === "attempts" && <Attempts id={t.id} />}
        </Suspense>
      </div>
      {cancelling.value && <CancelTask task={t} close={() => (cancelling.value = false)} />}
    </>
  );
}
