// All tasks that one may see. The address has the filters; the list is a window on as many rows as there are.
import { useSignal } from "@preact/signals";
import { memo } from "preact/compat";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { seesOthers, type Query } from "../api";
import { count, milli, money, plural } from "../format";
import { resync } from "../live";
import { folds, TaskPages, type Row } from "../model/task-pages";
import { navigate, query, setQuery } from "../router";
import { narrow } from "../theme";
import { Icon } from "../ui/icons";
import { Empty, Failure, StateChip, Took, When } from "../ui/parts";
import { CancelMany } from "../ui/cancel";
import { Virtual } from "../ui/virtual";

const STATES = ["running", "queued", "blocked", "succeeded", "failed", "cancelled"];

function filters(): Query {
  const q = query.value;
  return {
    state: q.getAll("state").flatMap((s) => (s === "running" ? ["running", "starting"] : [s])),
    pool: q.get("pool"),
    label: q.getAll("label"),
    search: q.get("search"),
    flat: q.has("flat"),
    all_users: q.get("who") === "all",
  };
}

function progress(r: Row): string | undefined {
  const p = r.progress;
  return p?.total ? `${p.succeeded + p.failed + p.cancelled}/${p.total}` : undefined;
}

interface RowProps { row: Row; changes: number; level: number; index: number; top: number; list: TaskPages; active: boolean; focus: (i: number) => void }

// Scrolling brings a few rows in and takes a few away; those that stay are not looked at again.
const sameRow = (a: RowProps, b: RowProps) =>
  a.row === b.row && a.changes === b.changes && a.index === b.index && a.top === b.top && a.active === b.active && a.level === b.level && a.list === b.list;

const RowView = memo(({ row, level, index, top, list, focus, active }: RowProps) => {
  const open = list.open.value.has(row.id);
  const foldable = level === 1 && folds(row);
  const all = query.value.get("who") === "all";
  return (
    <div class="trow" role="row" data-index={index} data-level={level} aria-rowindex={index + 2} aria-level={level}
      aria-expanded={foldable ? open : undefined} tabIndex={active ? 0 : -1} style={{ transform: `translateY(${top}px)` }}
      onFocus={() => focus(index)}
      onClick={(e) => { if (!(e.target as Element).closest("a,button")) navigate(`/tasks/${row.id}`); }}>
      <span role="gridcell" class="c-state"><StateChip state={row.state} more={progress(row) ?? (row.state === "failed" && row.status ? `(${row.status})` : undefined)} /></span>
      <span role="gridcell" class="c-name">
        {foldable ? (
          <button type="button" class="fold" tabIndex={-1} aria-label={open ? "Fold" : "Unfold"} onClick={() => void list.toggle(row)}>
            <Icon name={open ? "down" : "right"} size={12} />
          </button>
        ) : <i class="fold" />}
        <a href={`/tasks/${row.id}`} tabIndex={-1}>{row.name || row.id.slice(0, 8)}</a>
      </span>
      <span role="gridcell" class="c-command mono">{row.command}</span>
      <span role="gridcell" class="c-user">{all ? row.user : ""}</span>
      <span role="gridcell" class="c-pool">{row.pool}{row.gpus ? <small> {milli(row.gpus)} GPU</small> : null}</span>
      <span role="gridcell" class="c-time number"><Took task={row} /></span>
      <span role="gridcell" class="c-cost number">{row.cost_micro == null ? "" : money(row.cost_micro)}</span>
      <span role="gridcell" class="c-made"><When usec={row.created_usec} /></span>
    </div>
  );
}, sameRow);

function Bone({ index, top }: { index: number; top: number }) {
  return (
    <div class="trow" role="row" aria-rowindex={index + 2} data-index={index} style={{ transform: `translateY(${top}px)` }}>
      <span role="gridcell" class="c-state"><span class="bone" /></span>
      <span role="gridcell" class="c-name"><span class="unseen">loading</span></span>
      <span role="gridcell" class="c-command"><span class="bone" /></span>
    </div>
  );
}

function List({ list }: { list: TaskPages }) {
  const active = useSignal(0);
  const box = useRef<HTMLDivElement | null>(null);
  void list.version.value;
  const height = narrow.value ? 58 : 32;
  const n = list.count;
  const go = (i: number) => {
    const to = Math.max(0, Math.min(n - 1, i));
    active.value = to;
    const el = box.current;
    if (!el) return;
    if (to * height < el.scrollTop) el.scrollTop = to * height;
    if ((to + 1) * height > el.scrollTop + el.clientHeight) el.scrollTop = (to + 1) * height - el.clientHeight;
    requestAnimationFrame(() => requestAnimationFrame(() => el.querySelector<HTMLElement>(`[data-index="${to}"]`)?.focus({ preventScroll: true })));
  };
  const key = (e: KeyboardEvent) => {
    const at = list.get(active.value);
    const page = Math.max(1, Math.floor((box.current?.clientHeight ?? 400) / height) - 1);
    const step: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: page, PageUp: -page, Home: -n, End: n };
    if (e.key in step) go(active.value + step[e.key]);
    else if (e.key === "Enter" && at && !(e.target as Element).closest("button")) navigate(`/tasks/${at.row.id}`);
    else if (e.key === "ArrowRight" && at && folds(at.row) && !list.open.value.has(at.row.id)) void list.toggle(at.row);
    else if (e.key === "ArrowLeft" && at && list.open.value.has(at.row.id)) void list.toggle(at.row);
    else return;
    e.preventDefault();
  };
  // The heading lies above what scrolls and must be as narrow as the scroll bar makes the rows.
  useEffect(() => {
    const el = box.current;
    el?.closest<HTMLElement>(".tlist")?.style.setProperty("--bar", `${el.offsetWidth - el.clientWidth}px`);
  }, [n > 20]);
  const columns = ["State", "Task", "Command", query.value.get("who") === "all" ? "User" : "", "Pool", "Time", "Cost", "Created"];
  const keys = ["state", "name", "command", "user", "pool", "time number", "cost number", "made"];
  return (
    <div class="tlist panel" data-all={query.value.get("who") === "all" || undefined} role="treegrid" aria-label="Tasks, newest first"
      aria-rowcount={n + 1} aria-busy={list.loading.value} onKeyDown={key}>
      <div role="rowgroup">
        <div class="trow thead" role="row" aria-rowindex={1}>
          {columns.map((c, i) => <span key={i} role="columnheader" class={`c-${keys[i]}`}>{c || <span class="unseen">User</span>}</span>)}
        </div>
      </div>
      <Virtual count={n} rowHeight={height} scroller={(el) => (box.current = el)} attrs={{ role: "rowgroup", "data-rows": n }}
        onRange={(r) => list.want(r.last)}
        render={(i, top) => {
          const at = list.get(i);
          return at ? (
            <RowView key={i} row={at.row} changes={at.row.changes} level={at.level} index={i} top={top} list={list} active={active.value === i} focus={(x) => (active.value = x)} />
          ) : <Bone key={i} index={i} top={top} />;
        }} />
    </div>
  );
}

export function Tasks() {
  const q = query.value;
  const filter = filters();
  const key = JSON.stringify(filter);
  const list = useMemo(() => new TaskPages(filter), [key]);
  useEffect(() => () => list.stop(), [list]);
  const anew = resync.value;
  useEffect(() => { if (anew) void list.head(); }, [anew]);
  const cancelling = useSignal(false);
  void list.version.value;
  const states = q.getAll("state");
  const toggle = (s: string) => setQuery({ state: states.includes(s) ? states.filter((x) => x !== s) : [...states, s] });
  const filtered = Boolean(q.toString());
  return (
    <div class="tasks">
      <div class="page-head">
        <h1 tabIndex={-1}>Tasks</h1>
        <span class="muted" role="status">{list.loading.value ? "" : plural(list.total, "task")}{list.requests > 0 ? <span hidden data-requests={list.requests} /> : null}</span>
        <div class="actions">
          {filtered && list.total > 0 && (
            <button class="button" type="button" onClick={() => (cancelling.value = true)}>Cancel these…</button>
          )}
          <a class="button main" href="/run"><Icon name="plus" />Run</a>
        </div>
      </div>
      <div class="row filters" role="group" aria-label="Filters">
        <div class="choices">
          {STATES.map((s) => <button key={s} type="button" class="choice" aria-pressed={states.includes(s)} onClick={() => toggle(s)}>{s}</button>)}
        </div>
        {seesOthers() && (
          <button type="button" class="choice" aria-pressed={q.get("who") === "all"} onClick={() => setQuery({ who: q.get("who") === "all" ? null : "all" })}>everybody's</button>
        )}
        <button type="button" class="choice" aria-pressed={q.has("flat")} onClick={() => setQuery({ flat: q.has("flat") ? null : "1" })} title="Members of groups as rows of their own">unfolded</button>
        {["pool", "search", "label"].flatMap((k) => q.getAll(k).map((v) => (
          <button key={k + v} type="button" class="choice" aria-pressed="true" onClick={() => setQuery({ [k]: q.getAll(k).filter((x) => x !== v) })}>
            {k}: {v}<Icon name="cross" size={11} /><span class="unseen">, remove</span>
          </button>
        )))}
        {filtered && <a class="button quiet small" href="/tasks">Clear</a>}
      </div>
      {list.error.value && <Failure text={list.error.value} again={() => void list.head()} />}
      {!list.loading.value && list.count === 0 && !list.error.value ? (
        <div class="panel">
          {filtered ? <Empty title="No task is like that">Take a filter away, or <a href="/tasks">see all</a>.</Empty>
            : <Empty title="No tasks yet">Run <code>vrun</code> in a shell, or <a href="/run">fill in a form</a>.</Empty>}
        </div>
      ) : <List list={list} />}
      {cancelling.value && <CancelMany filter={filter} count={count(list.total)} close={() => (cancelling.value = false)} />}
    </div>
  );
}
