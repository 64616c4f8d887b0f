// A form that submits a command. Beside it: what it would cost and when it would start, and the command line that
// does the same.
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { call, sentence } from "../api";
import { duration, money, resources } from "../format";
import { useGet } from "../load";
import { body, line, takeDraft, Unclear, type Draft, type Kind } from "../model/draft";
import { navigate } from "../router";
import type { Environment, Pool, Spec, Task, Why } from "../types";
import { CopyButton, Failure, Field, Panel, say, When } from "../ui/parts";
import { Icon } from "../ui/icons";

const KINDS: { key: Kind; name: string; hint: string }[] = [
  { key: "command", name: "Command", hint: "runs by itself; its output is kept" },
  { key: "shell", name: "Terminal", hint: "a shell, or a program to type into" },
  { key: "notebook", name: "Notebook", hint: "JupyterLab, in a session; its page says how your machine reaches it" },
];

function useEstimate(b: Spec | null) {
  const [state, set] = useState<{ why: Why | null; error: string | null; busy: boolean }>({ why: null, error: null, busy: false });
  const key = b ? JSON.stringify(b) : "";
  useEffect(() => {
    if (!b) {
      set({ why: null, error: null, busy: false });
      return;
    }
    const abort = new AbortController();
    set((old) => ({ ...old, busy: true }));
    const timer = setTimeout(() => {
      call<Why>("POST", "/tasks/estimate", b, { signal: abort.signal }).then(
        (why) => set({ why, error: null, busy: false }),
        (e) => { if (!abort.signal.aborted) set({ why: null, error: sentence(e), busy: false }); },
      );
    }, 300);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [key]);
  return state;
}

function Forecast({ b }: { b: Spec | null }) {
  const { why, error, busy } = useEstimate(b);
  return (
    <Panel title="If you submit now" end={busy ? <span class="muted">…</span> : null}>
      <div class="panel-body" aria-live="polite" data-estimate={why ? "known" : error ? "error" : "none"}>
        {error ? <Failure text={error} /> : !why ? <p class="muted">Say what to run, and this tells when it would start and what it would cost.</p> : (
          <dl class="facts">
            <dt>Start</dt>
            <dd>{why.code === "free" || (why.expected_start_usec > 0 && why.expected_start_usec <= Date.now() * 1000 + 1e6) ? "at once" : why.expected_start_usec ? <When usec={why.expected_start_usec} /> : "not known"}{why.node ? ` on ${why.node}` : ""}</dd>
            {why.text && <><dt>Because</dt><dd>{why.text}</dd></>}
            {why.expected_run_usec > 0 && <><dt>Time</dt><dd>about {duration(why.expected_run_usec)}{why.basis ? ` (${why.basis})` : ""}</dd></>}
            <dt>Price</dt>
            <dd>{why.cost_micro == null ? "no price is set for this pool" : <><b>{money(why.cost_micro, why.currency)}</b>{why.expected_run_usec > 0 ? "" : " an hour"}</>}</dd>
          </dl>
        )}
      </div>
    </Panel>
  );
}

function PoolHint({ pool }: { pool?: Pool }) {
  if (!pool) return null;
  const p = pool.price;
  return (
    <>
      {pool.class}{pool.total_slots ? `, ${pool.free_slots} of ${pool.total_slots} places free` : ""}; {pool.running} running, {pool.queued} waiting
      {pool.shape && (pool.shape.gpus || pool.shape.gpu_milli || pool.shape.cpu_milli || pool.shape.mem_bytes) ? `; by default ${resources(pool.shape)}` : ""}
      {p?.gpu_hour_micro ? `; ${money(p.gpu_hour_micro, p.currency)} a GPU-hour` : ""}
    </>
  );
}

export function Run() {
  const d = useSignal<Draft>(useMemo(takeDraft, []));
  const touched = useSignal(false);
  const error = useSignal<string | null>(null);
  const busy = useSignal(false);
  const pools = useGet<{ pools: Pool[] }>("/pools");
  const envs = useGet<{ environments: Environment[] }>("/environments");
  const secrets = useGet<{ secrets: { name: string; team: string | null }[] }>("/secrets");
  const set = <K extends keyof Draft>(key: K, value: Draft[K]) => {
    d.value = { ...d.value, [key]: value };
    error.value = null;
  };
  const v = d.value;
  const input = (key: keyof Draft) => ({
    value: v[key] as string,
    onInput: (e: { currentTarget: HTMLInputElement | HTMLTextAreaElement }) => set(key, e.currentTarget.value as never),
  });
  let spec: Spec | null = null;
  let unclear: Unclear | null = null;
  let same = "";
  try {
    spec = body(v);
    same = line(v);
  } catch (e) {
    if (!(e instanceof Unclear)) throw e;
    unclear = e;
  }
  const bad = (key: keyof Draft) => (unclear?.field === key && (touched.value || key !== "command") ? unclear.message : undefined);
  const pool = pools.data?.pools.find((p) => (v.pool ? p.name === v.pool : p.default));
  const submit = async (e: Event) => {
    e.preventDefault();
    touched.value = true;
    if (!spec) return;
    busy.value = true;
    error.value = null;
    try {
      const t = await call<Task>("POST", "/tasks", spec, { headers: { "Idempotency-Key": crypto.randomUUID() } });
      say("Submitted.");
      navigate(`/tasks/${t.id}${v.kind === "shell" ? "?tab=terminal" : ""}`);
    } catch (x) {
      error.value = sentence(x);
      busy.value = false;
    }
  };
  return (
    <form onSubmit={submit}>
      <div class="page-head"><h1 tabIndex={-1}>Run</h1></div>
      <div class="grid wide-left">
        <div class="grid">
          <Panel title="What">
            <div class="panel-body grid">
              <div class="choices" role="group" aria-label="Kind">
                {KINDS.map((k) => (
                  <button key={k.key} type="button" class="choice" aria-pressed={v.kind === k.key} onClick={() => set("kind", k.key)} title={k.hint}>{k.name}</button>
                ))}
                <span class="muted" style={{ alignSelf: "center", marginLeft: "6px" }}>{KINDS.find((k) => k.key === v.kind)!.hint}</span>
              </div>
              {v.kind !== "notebook" && (
                <Field label={v.kind === "shell" ? "Program (empty: a shell)" : "Command"} hint={bad("command") ?? "as in a shell; pipes and variables work"}>
                  {(p) => <textarea {...p} class="mono" rows={3} spellcheck={false} placeholder={v.kind === "shell" ? "bash -l" : "python3 train.py --epochs 3"} {...input("command")} />}
                </Field>
              )}
              <div class="fields">
                <Field label="Name">{(p) => <input {...p} {...input("name")} placeholder="optional" />}</Field>
                <Field label="Project">{(p) => <input {...p} {...input("project")} placeholder="charged to it, too" />}</Field>
                <Field label="Directory" hint="on the node">{(p) => <input {...p} {...input("cwd")} class="mono" placeholder="home" />}</Field>
              </div>
            </div>
          </Panel>
          <Panel title="Where">
            <div class="panel-body fields">
              <Field label="Pool" hint={<PoolHint pool={pool} />} wide>
                {(p) => (
                  <select {...p} value={v.pool} onChange={(e) => set("pool", e.currentTarget.value)}>
                    <option value="">the default{pool && !v.pool ? ` (${pool.name})` : ""}</option>
                    {pools.data?.pools.map((x) => <option key={x.name} value={x.name}>{x.name}{x.description ? `: ${x.description}` : ""}</option>)}
                  </select>
                )}
              </Field>
              <Field label="GPU">
                {(p) => (
                  <select {...p} value={v.gpu} onChange={(e) => set("gpu", e.currentTarget.value as Draft["gpu"])}>
                    <option value="none">as the pool gives</option>
                    <option value="whole">whole GPUs</option>
                    <option value="share">a share of one</option>
                  </select>
                )}
              </Field>
              {v.gpu === "whole" && <Field label="GPUs" hint={bad("gpus")}>{(p) => <input {...p} type="number" min="1" step="1" {...input("gpus")} />}</Field>}
              {v.gpu === "share" && <Field label="Share" hint={bad("share") ?? "0.25 is a quarter of one"}>{(p) => <input {...p} type="number" min="0.001" max="0.999" step="any" {...input("share")} />}</Field>}
              {v.gpu !== "none" && <Field label="GPU memory" hint={bad("gpuMem") ?? "of each"}>{(p) => <input {...p} {...input("gpuMem")} placeholder="such as 16G" />}</Field>}
              <Field label="CPUs" hint={bad("cpus")}>{(p) => <input {...p} type="number" min="0.001" step="any" {...input("cpus")} placeholder="pool's default" />}</Field>
              <Field label="Memory" hint={bad("mem")}>{(p) => <input {...p} {...input("mem")} placeholder="such as 16G" />}</Field>
              <Field label="Time limit" hint={bad("time")}>{(p) => <input {...p} {...input("time")} placeholder="such as 1h30m" />}</Field>
            </div>
          </Panel>
          <Panel title="With">
            <div class="panel-body fields">
              <Field label="Files">
                {(p) => (
                  <select {...p} value={v.files} onChange={(e) => set("files", e.currentTarget.value as Draft["files"])}>
                    <option value="node">of the node</option>
                    <option value="environment">an environment</option>
                    <option value="image">an image</option>
                  </select>
                )}
              </Field>
              {v.files === "environment" && (
                <Field label="Environment" hint={envs.error ?? (envs.data && !envs.data.environments.length ? "None is saved yet: virga env save" : undefined)}>
                  {(p) => (
                    <select {...p} value={v.environment} onChange={(e) => set("environment", e.currentTarget.value)}>
                      <option value="">choose…</option>
                      {envs.data?.environments.map((x) => <option key={`${x.owner}${x.name}${x.version}`} value={`${x.name}@${x.version}`}>{x.name}@{x.version}</option>)}
                    </select>
                  )}
                </Field>
              )}
              {v.files === "image" && <Field label="Image">{(p) => <input {...p} class="mono" {...input("image")} placeholder="registry/name:tag" />}</Field>}
              {secrets.data && secrets.data.secrets.length > 0 && (
                <fieldset class="field" style={{ border: 0, padding: 0, margin: 0, gridColumn: "1 / -1" }}>
                  <legend class="label">Secrets, as variables</legend>
                  <div class="row">
                    {secrets.data.secrets.map((s) => {
                      const name = s.team ? `${s.team}/${s.name}` : s.name;
                      return (
                        <label key={name} class="check"><input type="checkbox" checked={v.secrets.includes(name)}
                          onChange={(e) => set("secrets", e.currentTarget.checked ? [...v.secrets, name] : v.secrets.filter((x) => x !== name))} />{name}</label>
                      );
                    })}
                  </div>
                </fieldset>
              )}
            </div>
            <details class="more">
              <summary>More</summary>
              <div class="panel-body fields">
                <Field label="Variables" hint={bad("vars") ?? `NAME=VALUE, one a line${v.rest.env ? `; ${Object.keys(v.rest.env).length} more are as they were` : ""}`} wide>{(p) => <textarea {...p} class="mono" rows={2} spellcheck={false} {...input("vars")} />}</Field>
                <Field label="Labels" hint={bad("labels") ?? "NAME=VALUE, one a line"} wide>{(p) => <textarea {...p} class="mono" rows={2} spellcheck={false} {...input("labels")} />}</Field>
                {v.kind === "command" && <Field label="Shards" hint={bad("shards") ?? "so many tasks; VIRGA_SHARD numbers them"}>{(p) => <input {...p} type="number" min="1" {...input("shards")} />}</Field>}
                <Field label="Retries" hint={bad("retries")}>{(p) => <input {...p} type="number" min="0" {...input("retries")} />}</Field>
                <Field label="Priority" hint={bad("priority")}>{(p) => <input {...p} type="number" min="0" {...input("priority")} placeholder="as usual" />}</Field>
                <Field label="Costs at most" hint={bad("maxCost") ?? "it is ended when it would cost more"}>{(p) => <input {...p} {...input("maxCost")} placeholder="such as 12.50" />}</Field>
                <label class="check"><input type="checkbox" checked={v.preemptible} onChange={(e) => set("preemptible", e.currentTarget.checked)} />may be preempted</label>
              </div>
            </details>
          </Panel>
        </div>
        <div class="grid aside">
          <Forecast b={spec} />
          <Panel title="The same in a shell" end={same ? <CopyButton text={same} /> : null}>
            <div class="panel-body"><code class="code" data-same>{same || "…"}</code></div>
          </Panel>
          {error.value && <Failure text={error.value} />}
          {touched.value && unclear && <Failure text={unclear.message} />}
          <button class="button main big" type="submit" disabled={busy.value}><Icon name="run" />{busy.value ? "Submitting…" : v.kind === "shell" ? "Open a terminal" : "Run"}</button>
        </div>
      </div>
    </form>
  );
}
