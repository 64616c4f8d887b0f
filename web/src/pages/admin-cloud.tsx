// Pools, prices, hooks, and the log of what was changed.
import { useSignal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { call, get, may, part, sentence } from "../api";
import { count, money, parseMoney, resources, whenFull } from "../format";
import { useGet } from "../load";
import type { Pool, Price } from "../types";
import { Ask, Chip, CopyButton, Empty, Failure, Field, Note, Panel, say, Show, When, Wide } from "../ui/parts";
import { Icon } from "../ui/icons";
import { Add, bind, Remove } from "./admin-people";

interface Hook { name: string; url: string; events: string[]; scope: string | null; paused: boolean; sent: number; failed: number; waiting: number; last_error: string | null; last_usec: number; new_secret?: string }
interface Entry { seq: number; when_usec: number; who: string; what: string; from: string | null; hash: string }

export function Pools() {
  const got = useGet<{ pools: Pool[] }>("/pools", {}, 10_000);
  return (
    <Panel title="Pools" end={may("manage-nodes") && (
      <button class="button small" type="button" onClick={() => call("POST", "/config/reload").then(() => { say("The configuration was read anew."); got.again(); }, (e) => say(sentence(e), "bad"))}><Icon name="again" />Reload configuration</button>
    )}>
      <Show of={got}>
        {({ pools }) => (
          <Wide>
            <table>
              <thead><tr><th>Pool</th><th>Class</th><th>By default</th><th class="number">Nodes</th><th class="number">Free</th><th class="number">Running</th><th class="number">Waiting</th><th class="number">GPU-hour</th></tr></thead>
              <tbody>{pools.map((p) => (
                <tr key={p.name}><td><a class="strong" href={`/tasks?pool=${encodeURIComponent(p.name)}`}>{p.name}</a> {p.default && <Chip tone="still">default</Chip>} <span class="muted">{p.description}</span></td>
                  <td>{p.class}</td><td>{resources(p.shape)}</td><td class="number">{p.nodes}</td><td class="number">{p.total_slots ? `${p.free_slots} of ${p.total_slots}` : "–"}</td><td class="number">{p.running}</td><td class="number">{p.queued}</td>
                  <td class="number">{p.price ? money(p.price.gpu_hour_micro, p.price.currency) : "–"}</td></tr>
              ))}</tbody>
            </table>
          </Wide>
        )}
      </Show>
    </Panel>
  );
}

export function Prices() {
  const history = useSignal(false);
  const got = useGet<{ prices: Price[] }>("/prices", { history: history.value });
  const adding = useSignal(false);
  const v = useSignal({ pool: "", class: "", gpu: "", cpu: "", gib: "", idle: "", preemptible: "" });
  return (
    <Panel title="Prices" end={<><label class="check"><input type="checkbox" checked={history.value} onChange={(e) => (history.value = e.currentTarget.checked)} />history</label>{may("manage-money") && <Add what="Price" on={() => (adding.value = true)} />}</>}>
      <Show of={got}>
        {({ prices }) => prices.length ? (
          <Wide>
            <table>
              <thead><tr><th>Pool</th><th>Class</th><th class="number">GPU-hour</th><th class="number">CPU-hour</th><th class="number">GiB-hour</th><th class="number">Idle</th><th class="number">Preemptible</th><th>Holds from</th><th>Set by</th></tr></thead>
              <tbody>{prices.map((p) => (
                <tr key={p.id}><td class="strong">{p.pool || "every other"}</td><td>{p.class || "every"}</td><td class="number">{money(p.gpu_hour_micro, p.currency)}</td><td class="number">{money(p.cpu_hour_micro)}</td><td class="number">{money(p.gib_hour_micro)}</td>
                  <td class="number">{p.idle_milli ? `−${p.idle_milli / 1000} %` : ""}</td><td class="number">{p.preemptible_milli ? `−${p.preemptible_milli / 1000} %` : ""}</td><td>{p.from_usec ? whenFull(p.from_usec) : "always"}</td><td>{p.who}</td></tr>
              ))}</tbody>
            </table>
          </Wide>
        ) : <Empty title="Nothing has a price">What is used is counted all the same; with a price it is charged, too.</Empty>}
      </Show>
      {adding.value && (
        <Ask title="A price" yes="Set from now on" close={() => (adding.value = false)} act={async () => {
          const micro = (text: string) => {
            const n = parseMoney(text);
            if (n === null) throw new Error(`'${text}' is not an amount such as 1.85.`);
            return n;
          };
          const off = (text: string) => Math.round(Number(text || 0) * 1000);
          const { pool, class: cls, gpu, cpu, gib, idle, preemptible } = v.value;
          await call("POST", "/prices", {
            ...(pool.trim() ? { pool: pool.trim() } : {}), ...(cls.trim() ? { class: cls.trim() } : {}),
            gpu_hour_micro: micro(gpu), cpu_hour_micro: micro(cpu), gib_hour_micro: micro(gib),
            ...(idle ? { idle_milli: off(idle) } : {}), ...(preemptible ? { preemptible_milli: off(preemptible) } : {}),
          });
          say("It holds from now on; what was used before keeps its price.");
          got.again();
        }}>
          <div class="fields">
            <Field label="Pool" hint="empty: all that have none of their own">{(p) => <input {...p} {...bind(v, "pool")} />}</Field>
            <Field label="Class" hint="empty: every">{(p) => <input {...p} {...bind(v, "class")} />}</Field>
            <Field label="GPU-hour">{(p) => <input {...p} inputMode="decimal" required {...bind(v, "gpu")} />}</Field>
            <Field label="CPU-hour">{(p) => <input {...p} inputMode="decimal" {...bind(v, "cpu")} />}</Field>
            <Field label="GiB-hour of memory">{(p) => <input {...p} inputMode="decimal" {...bind(v, "gib")} />}</Field>
            <Field label="Off while idle (%)">{(p) => <input {...p} type="number" min="0" max="100" {...bind(v, "idle")} />}</Field>
            <Field label="Off when preemptible (%)">{(p) => <input {...p} type="number" min="0" max="100" {...bind(v, "preemptible")} />}</Field>
          </div>
        </Ask>
      )}
    </Panel>
  );
}

export function Hooks() {
  const got = useGet<{ hooks: Hook[] }>("/hooks", {}, 10_000);
  const adding = useSignal(false);
  const made = useSignal<Hook | null>(null);
  const removing = useSignal<Hook | null>(null);
  const v = useSignal({ name: "", url: "", events: "task.ended" });
  return (
    <Panel title="Hooks" end={may("run") && <Add what="Hook" on={() => (adding.value = true)} />}>
      {made.value?.new_secret && (
        <div class="panel-body"><Note><b>What {made.value.name} sends is signed with this. It is shown once.</b>
          <div class="row"><code class="code" style={{ flex: 1 }}>{made.value.new_secret}</code><CopyButton text={made.value.new_secret} /><button class="button small" type="button" onClick={() => (made.value = null)}>Done</button></div></Note></div>
      )}
      <Show of={got}>
        {({ hooks }) => hooks.length ? (
          <Wide>
            <table>
              <thead><tr><th>Hook</th><th>Tells</th><th>Of</th><th class="number">Sent</th><th class="number">Failed</th><th>Last</th><th><span class="unseen">Actions</span></th></tr></thead>
              <tbody>{hooks.map((h) => (
                <tr key={h.name}><td><span class="strong">{h.name}</span> {h.paused && <Chip tone="still">paused</Chip>}</td><td class="mono">{h.url}</td><td>{h.events.join(", ")}</td><td class="number">{count(h.sent)}</td><td class="number" title={h.last_error ?? undefined}>{count(h.failed)}</td>
                  <td>{h.last_usec ? <When usec={h.last_usec} /> : "–"}{h.last_error && <div class="muted">{h.last_error}</div>}</td>
                  <td><div class="row end-row"><button class="button small" type="button" onClick={() => call("POST", `/hooks/${part(h.name)}/test`).then(() => say("Sent; see whether it arrived."), (e) => say(sentence(e), "bad"))}>Test</button><button class="button small danger" type="button" onClick={() => (removing.value = h)}>Remove…</button></div></td></tr>
              ))}</tbody>
            </table>
          </Wide>
        ) : <Empty title="Nobody is told">A hook sends a signed message, or an e-mail, when a task ends or a budget is reached.</Empty>}
      </Show>
      {adding.value && (
        <Ask title="A hook" yes="Set" close={() => (adding.value = false)} act={async () => {
          const h = await call<Hook>("PUT", `/hooks/${part(v.value.name.trim())}`, { url: v.value.url.trim(), events: v.value.events.split(/[,\s]+/).filter(Boolean) });
          made.value = h?.new_secret ? h : null;
          say("The hook is set.");
          got.again();
        }}>
          <Field label="Name">{(p) => <input {...p} required {...bind(v, "name")} />}</Field>
          <Field label="Where to" hint="https://… or mailto:…">{(p) => <input {...p} required {...bind(v, "url")} />}</Field>
          <Field label="Of what" hint="task.ended, task.failed, budget.warned, …">{(p) => <input {...p} required {...bind(v, "events")} />}</Field>
        </Ask>
      )}
      {removing.value && <Remove title={`Remove hook ${removing.value.name}?`} text="What waits to be sent is dropped." close={() => (removing.value = null)}
        act={async () => { await call("DELETE", `/hooks/${part(removing.value!.name)}`); got.again(); }} />}
    </Panel>
  );
}

export function Audit() {
  const [search, setSearch] = useState("");
  const [asked, setAsked] = useState("");
  const [rows, setRows] = useState<Entry[] | null>(null);
  const [next, setNext] = useState<number | null>(null);
  const [error, setError] = useState<string | null>(null);
  const verified = useSignal<{ checked: number; broken: string | null; head: string } | null>(null);
  const load = (before?: number) =>
    get<{ audit: Entry[]; next: number | null }>("/audit", { limit: 100, search: asked, before }).then(
      (a) => {
        setRows((old) => (before && old ? [...old, ...a.audit] : a.audit));
        setNext(a.next);
        setError(null);
      },
      (e) => setError(sentence(e)),
    );
  useEffect(() => void load(), [asked]);
  useEffect(() => {
    const timer = setTimeout(() => setAsked(search), 250);
    return () => clearTimeout(timer);
  }, [search]);
  return (
    <Panel title="Audit" end={<>
      <input type="search" aria-label="Search the audit log" placeholder="Search" value={search} onInput={(e) => setSearch(e.currentTarget.value)} />
      <button class="button small" type="button" onClick={() => get<typeof verified.value>("/audit/verify").then((x) => (verified.value = x), (e) => say(sentence(e), "bad"))}>Verify the chain</button>
    </>}>
      {verified.value && (
        <div class="panel-body"><Note tone={verified.value.broken ? "bad" : undefined}>
          {verified.value.broken || `The chain holds: ${count(verified.value.checked)} entries, the newest is `}{!verified.value.broken && <code>{verified.value.head?.slice(0, 16)}…</code>}
        </Note></div>
      )}
      {error && <div class="panel-body"><Failure text={error} again={() => void load()} /></div>}
      {rows && (rows.length ? (
        <Wide>
          <table>
            <thead><tr><th class="number">No.</th><th>When</th><th>Who</th><th>What</th><th>From</th></tr></thead>
            <tbody>{rows.map((a) => <tr key={a.seq}><td class="number muted">{a.seq}</td><td class="nowrap">{whenFull(a.when_usec)}</td><td>{a.who}</td><td>{a.what}</td><td class="muted">{a.from}</td></tr>)}</tbody>
          </table>
        </Wide>
      ) : <Empty title="Nothing is recorded" />)}
      {next ? <div class="panel-body"><button class="button" type="button" onClick={() => void load(next)}>Older</button></div> : null}
    </Panel>
  );
}
