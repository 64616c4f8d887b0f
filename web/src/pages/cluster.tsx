// Every node and each of its GPUs as a cell, coloured by how much it is really used.
import { useSignal } from "@preact/signals";
import { useCallback, useEffect, useMemo, useRef } from "preact/hooks";
import { call, may, part } from "../api";
import { count, milli, plural, resources, size, watts } from "../format";
import { on } from "../live";
import { useGet } from "../load";
import { lazy, memo, Suspense } from "preact/compat";
import { heat } from "../ui/heat";
import type { Gpu, NodeInfo } from "../types";
import { Growing } from "../ui/growing";
import { Icon } from "../ui/icons";
import { Ask, Bones, Chip, CopyButton, Empty, Failure, Field, Meter, Panel, say, When } from "../ui/parts";

const Plots = lazy(() => import("../ui/plots"));

const TONE: Record<string, "good" | "wait" | "bad" | "still"> = { ready: "good", draining: "wait", joining: "wait", lost: "bad", quarantined: "bad" };

const OTHERS = "others"; // whom one may not know

function sentenceOf(g: Gpu): string {
  const who = g.holders.map((h) => `${h.user || OTHERS}${h.name ? ` (${h.name})` : ""}`).join(", ");
  return `GPU ${g.index} of ${g.node}: ${g.fault ? `fault, ${g.fault}` : g.state}${g.reason ? `, ${g.reason}` : ""}` +
    `${g.sm_percent == null ? "" : `, ${g.sm_percent} percent used`}${who ? `, held by ${who}` : ""}`;
}

function Cell({ g, open }: { g: Gpu; open: (g: Gpu) => void }) {
  const used = g.mem_bytes && g.mem_used_bytes != null ? g.mem_used_bytes / g.mem_bytes : 0;
  const who = g.holders.length ? g.holders[0].user || OTHERS : null;
  const sick = Boolean(g.fault);
  return (
    <button type="button" class="cell" data-heat={g.state === "away" ? undefined : heat(g.sm_percent)} data-state={sick ? "fault" : g.state}
      title={sentenceOf(g)} onClick={() => open(g)}>
      <span class="cell-top"><b><span class="unseen">GPU </span>{g.index}<span class="unseen">, {g.state}, </span></b><span>{sick ? "fault" : g.state === "drained" || g.state === "away" ? g.state : g.sm_percent == null ? "–" : `${g.sm_percent}%`}</span></span>
      <span class="cell-who">{who ? (g.holders.length > 1 ? `${who} +${g.holders.length - 1}` : who) : " "}</span>
      <span class="cell-mem"><i style={{ width: `${Math.round(used * 100)}%` }} /></span>
    </button>
  );
}

function GpuDialog({ g, close }: { g: Gpu; close: () => void }) {
  const why = useSignal("");
  const drained = g.state === "drained";
  return (
    <Ask title={`GPU ${g.index} of ${g.node}`} close={close} yes={drained ? "Use it again" : "Drain it"} danger={!drained}
      act={may("manage-nodes") ? async () => {
        await call("PATCH", `/gpus/${part(g.node)}/${g.index}`, { state: drained ? "ready" : "drained", text: why.value || undefined });
        say(drained ? "The GPU takes tasks again." : "The GPU takes no new tasks.");
      } : undefined}>
      <dl class="facts">
        <dt>Model</dt><dd>{g.model}{g.simulated ? " (simulated)" : ""}</dd>
        <dt>State</dt><dd>{g.fault ? <Chip tone="bad">{g.fault}</Chip> : g.state}{g.reason ? `: ${g.reason}` : ""}</dd>
        <dt>Used</dt><dd>{g.sm_percent == null ? "–" : `${g.sm_percent} %`}</dd>
        <dt>Memory</dt><dd>{size(g.mem_used_bytes)} of {size(g.mem_bytes)}</dd>
        <dt>Power</dt><dd>{watts(g.power_mw)}{g.power_limit_mw ? ` of ${watts(g.power_limit_mw)}` : ""}{g.temp_c != null ? `, ${g.temp_c} °C` : ""}</dd>
        {g.xid ? <><dt>Last XID</dt><dd>{g.xid}</dd></> : null}
        {g.ecc_uncorrected ? <><dt>ECC, uncorrected</dt><dd>{count(g.ecc_uncorrected)}</dd></> : null}
        <dt>Held by</dt>
        <dd>{g.holders.length ? g.holders.map((h) => <div key={h.task}>{h.task && <a href={`/tasks/${h.task}`} onClick={close}>{h.name || h.task.slice(0, 8)}</a>} <span class="muted">{h.user || OTHERS}{h.gpu_milli && h.gpu_milli < 1000 ? `, ${milli(h.gpu_milli)} of it` : ""}</span></div>) : "nobody"}</dd>
        {g.driver && <><dt>Driver</dt><dd>{g.driver}</dd></>}
      </dl>
      {may("manage-nodes") && !drained && <Field label="Why it is drained">{(p) => <input {...p} value={why.value} onInput={(e) => (why.value = e.currentTarget.value)} placeholder="for the others to read" />}</Field>}
    </Ask>
  );
}

const NONE: Gpu[] = [];
const byName = new Intl.Collator(undefined, { numeric: true });

/** The cards of each node. What is told of one node leaves the others' lists as they are, so that only that one is drawn anew. */
function byNode(gpus: Gpu[], old: Map<string, Gpu[]>): Map<string, Gpu[]> {
  const out = new Map<string, Gpu[]>();
  for (const g of gpus) {
    const of = out.get(g.node);
    if (of) of.push(g);
    else out.set(g.node, [g]);
  }
  for (const [node, of] of out) {
    of.sort((a, b) => a.index - b.index);
    const was = old.get(node);
    if (was?.length === of.length && was.every((g, i) => g === of[i])) out.set(node, was);
  }
  return out;
}

const NodeCard = memo(({ n, gpus, open, more }: { n: NodeInfo; gpus: Gpu[]; open: (g: Gpu) => void; more: (name: string) => void }) => {
  const watt = gpus.reduce((s, g) => s + (g.power_mw ?? 0), 0);
  return (
    <section class="panel node" aria-label={`Node ${n.name}`}>
      <header class="panel-head">
        <h2><button type="button" class="linky" onClick={() => more(n.name)}>{n.name}</button></h2>
        <Chip tone={TONE[n.state] ?? "still"}>{n.state}</Chip>
        <span class="muted end">{plural(n.tasks, "task")}{watt ? `, ${watts(watt)}` : ""}</span>
      </header>
      <div class="panel-body">
        {n.unfit && <Failure text={n.unfit} />}
        {n.state === "lost" && <p class="muted">Last heard of <When usec={n.last_seen_usec} />.</p>}
        {gpus.length > 0 && <div class="cells">{gpus.map((g) => <Cell key={g.index} g={g} open={open} />)}</div>}
        <div class="node-use">
          <span class="muted">CPU</span><Meter part={n.used?.cpu_milli ?? 0} whole={n.total?.cpu_milli ?? 0} label={`${milli(n.used?.cpu_milli ?? 0)} of ${milli(n.total?.cpu_milli ?? 0)} CPUs promised`} /><span class="number">{milli(n.used?.cpu_milli ?? 0)}/{milli(n.total?.cpu_milli ?? 0)}</span>
          <span class="muted">Memory</span><Meter part={n.used?.mem_bytes ?? 0} whole={n.total?.mem_bytes ?? 0} label={`${size(n.used?.mem_bytes)} of ${size(n.total?.mem_bytes)} promised`} /><span class="number">{size(n.used?.mem_bytes)}</span>
        </div>
      </div>
    </section>
  );
});

function NodeDialog({ n, close }: { n: NodeInfo; close: () => void }) {
  const draining = n.state === "draining";
  return (
    <Ask title={n.name} close={close} danger={!draining} yes={draining ? "Take tasks again" : "Drain"}
      act={may("manage-nodes") ? async () => {
        await call("PATCH", `/nodes/${part(n.name)}`, { state: draining ? "ready" : "draining" });
        say(draining ? `${n.name} takes tasks again.` : `${n.name} takes no new tasks; what runs there goes on.`);
      } : undefined}>
      <dl class="facts">
        <dt>State</dt><dd>{n.state}</dd>
        <dt>Has</dt><dd>{resources(n.total)}{n.gpu_model ? ` (${n.gpu_model})` : ""}</dd>
        <dt>Pools</dt><dd>{n.pools.join(", ") || "none"}</dd>
        <dt>Address</dt><dd>{n.address || "–"}</dd>
        <dt>Version</dt><dd>{n.version}</dd>
        <dt>Heard of</dt><dd><When usec={n.last_seen_usec} /></dd>
        {Object.keys(n.labels).length > 0 && <><dt>Labels</dt><dd>{Object.entries(n.labels).map(([k, v]) => `${k}=${v}`).join(", ")}</dd></>}
      </dl>
      <Suspense fallback={<Bones rows={2} />}><Plots path={`/nodes/${part(n.name)}/series`} live={n.state === "ready"} /></Suspense>
    </Ask>
  );
}

function Invite({ close }: { close: () => void }) {
  const got = useSignal<{ address: string; token: string } | null>(null);
  const line = got.value && `virga join ${got.value.address} --token ${got.value.token}`;
  return (
    <Ask title="Invite a node" yes={got.value ? "Done" : "Make an invitation"} close={close} stay={!got.value}
      act={async () => { if (!got.value) got.value = await call("POST", "/nodes/invite", {}); }}>
      {line ? <><p>On the machine that shall join, as root:</p><code class="code">{line}</code><div><CopyButton text={line} /></div></>
        : <p>An invitation lets one machine join, once.</p>}
    </Ask>
  );
}

export function Cluster() {
  const nodes = useGet<{ nodes: NodeInfo[] }>("/nodes");
  const gpus = useGet<{ gpus: Gpu[] }>("/gpus", { live: 1 });
  const open = useSignal<{ node: string; index: number } | null>(null);
  const about = useSignal<string | null>(null);
  const inviting = useSignal(false);
  useEffect(() => on("node", (n) => nodes.put((d) => ({
    nodes: [...d.nodes.filter((x) => x.name !== n.name), ...(n.state === "gone" ? [] : [n])],
  }))), []);
  useEffect(() => on("gpus", (g) => gpus.put((d) => {
    const told = new Set(g.gpus.map((x) => x.node));
    return { gpus: [...d.gpus.filter((x) => !told.has(x.node)), ...g.gpus] };
  })), []);
  const all = gpus.data?.gpus ?? NONE;
  const last = useRef(new Map<string, Gpu[]>());
  const cards = useMemo(() => (last.current = byNode(all, last.current)), [all]);
  const sorted = useMemo(() => [...(nodes.data?.nodes ?? [])].sort((a, b) => byName.compare(a.name, b.name)), [nodes.data]);
  const choose = useCallback((g: Gpu) => (open.value = { node: g.node, index: g.index }), []);
  const tell = useCallback((name: string) => (about.value = name), []);
  const held = all.filter((g) => g.holders.length).length;
  const busy = all.filter((g) => (g.sm_percent ?? 0) >= 2).length;
  const idle = all.filter((g) => g.holders.length && g.sm_percent != null && g.sm_percent < 2).length;
  const sick = all.filter((g) => g.fault).length;
  const chosen = open.value && all.find((g) => g.node === open.value!.node && g.index === open.value!.index);
  const node = about.value && nodes.data?.nodes.find((n) => n.name === about.value);
  return (
    <>
      <div class="page-head"><h1 tabIndex={-1}>Cluster</h1>
        <div class="legend" role="img" aria-label="Colour: use of the GPU, from none to full">
          <span class="muted">use</span>{[0, 1, 2, 3, 4, 5].map((h) => <i key={h} class="swatch" data-heat={h} />)}<span class="muted">full</span>
        </div>
        {may("manage-nodes") && <button class="button" type="button" onClick={() => (inviting.value = true)}><Icon name="plus" />Node</button>}
      </div>
      <dl class="tiles">
        <div class="tile"><dt>Nodes</dt><dd>{nodes.data ? nodes.data.nodes.filter((n) => n.state === "ready").length : "–"} <small>of {nodes.data?.nodes.length ?? "–"} ready</small></dd></div>
        <div class="tile"><dt>GPUs held</dt><dd>{held} <small>of {all.length}</small></dd></div>
        <div class="tile"><dt>In use now</dt><dd>{busy}</dd></div>
        <div class="tile"><dt>Held and idle</dt><dd>{idle}</dd></div>
        <div class="tile"><dt>Power</dt><dd>{watts(all.reduce((s, g) => s + (g.power_mw ?? 0), 0))}</dd></div>
        {sick > 0 && <div class="tile"><dt>Faults</dt><dd class="bad">{sick}</dd></div>}
      </dl>
      {nodes.error && <Failure text={nodes.error} again={nodes.again} />}
      {gpus.error && <Failure text={gpus.error} again={gpus.again} />}
      {!nodes.data ? (nodes.error ? null : <Bones rows={6} />) : nodes.data.nodes.length === 0 ? (
        <Panel label="Nodes"><Empty title="No node has joined">On the machine that shall: <code>virga join</code> with an invitation from <code>virga node invite</code>.</Empty></Panel>
      ) : (
        <Growing of={sorted} step={60}>
          {(shown) => (
            <div class="nodes">
              {shown.map((n) => <NodeCard key={n.id || n.name} n={n} gpus={cards.get(n.name) ?? NONE} open={choose} more={tell} />)}
            </div>
          )}
        </Growing>
      )}
      {chosen && <GpuDialog g={chosen} close={() => (open.value = null)} />}
      {inviting.value && <Invite close={() => (inviting.value = false)} />}
      {node && <NodeDialog n={node} close={() => (about.value = null)} />}
    </>
  );
}
