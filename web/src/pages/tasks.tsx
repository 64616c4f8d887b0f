// All tasks that one may see. The address has the filters; the list is a window on as many rows as there are.
import { effect, untracked, useComputed, useSignal } from "@preact/signals";
import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { seesOthers, type Query } from "../api";
import { count, plural } from "../format";
import { clock, resync } from "../live";
import { folds, TaskPages } from "../model/task-pages";
import { navigate, query, setQuery } from "../router";
import { narrow } from "../theme";
import { CancelMany } from "../ui/cancel";
import { Icon } from "../ui/icons";
import { Empty, Failure } from "../ui/parts";
import { Recycler } from "../ui/recycle";
import { taskSlot, type TaskSlot } from "../ui/task-row";

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

const COLUMNS = [["state", "State"], ["name", "Task"], ["command", "Command"], ["user", "User"], ["pool", "Pool"], ["time number", "Time"], ["cost number", "Cost"], ["made", "Created"]];
const ROW_PX = 32;
const ROW_NARROW_PX = 58;

/** The rows as plain elements, and the row that the keys are at. */
class Window {
  private rows: Recycler<TaskSlot>;
  private active = 0;
  private off: () => void;
  private tick: () => void;

  constructor(private grid: HTMLElement, box: HTMLElement, all: HTMLElement, private list: TaskPages) {
    this.rows = new Recycler(box, all, {
      make: taskSlot,
      fill: (slot, i) => this.fill(slot, i),
      range: (_, last) => list.want(last),
      settled: (first) => this.settled(first),
      resized: () => grid.style.setProperty("--bar", `${box.offsetWidth - box.clientWidth}px`), // the heading is as narrow as the scroll bar makes the rows
    });
    // Untracked inside: only what is named here has it drawn anew.
    this.off = effect(() => {
      void list.version.value;
      void list.open.value;
      const height = narrow.value ? ROW_NARROW_PX : ROW_PX;
      untracked(() => this.rows.set(list.count, height));
    });
    this.tick = clock.subscribe(() => this.rows.refill());
  }

  stop() {
    this.off();
    this.tick();
    this.rows.stop();
  }

  private fill(slot: TaskSlot, i: number) {
    if (i < 0) return;
    const at = this.list.get(i);
    const active = i === this.active;
    if (!active && slot.el.tabIndex === 0 && slot.el === document.activeElement) this.grid.focus({ preventScroll: true }); // it went out of sight: keys still work
    slot.write(at?.row, at?.level ?? 1, at !== undefined && this.list.open.peek().has(at.row.id), active, clock.peek());
  }

  /** Tab finds a row wherever the list is. */
  private settled(firstSeen: number) {
    if (!this.rows.at(this.active)) this.activate(firstSeen);
  }

  private activate(i: number) {
    const old = this.rows.at(this.active);
    this.active = i;
    for (const slot of [old, this.rows.at(i)]) if (slot) this.fill(slot, slot.index);
  }

  private go(i: number) {
    const to = Math.max(0, Math.min(this.list.count - 1, i));
    this.rows.show(to);
    this.activate(to);
    this.rows.at(to)?.el.focus({ preventScroll: true });
  }

  key = (e: KeyboardEvent) => {
    const { list } = this;
    const at = list.get(this.active);
    const page = this.rows.pageRows;
    const n = list.count;
    const step: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: page, PageUp: -page, Home: -n, End: n };
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key in step) this.go(this.active + step[e.key]);
    else if (e.key === "Enter" && at && !(e.target as Element).closest("button")) navigate(`/tasks/${at.row.id}`);
    else if (e.key === "ArrowRight" && at && folds(at.row) && !list.open.value.has(at.row.id)) void list.toggle(at.row);
    else if (e.key === "ArrowLeft" && at && list.open.value.has(at.row.id)) void list.toggle(at.row);
    else return;
    e.preventDefault();
  };

  private of(e: Event): number {
    return Number((e.target as Element).closest<HTMLElement>(".trow")?.dataset.index ?? -1);
  }

  focus = (e: FocusEvent) => {
    const i = this.of(e);
    if (i >= 0 && i !== this.active) this.activate(i);
  };

  click = (e: MouseEvent) => {
    const at = this.list.get(this.of(e));
    const on = e.target as Element;
    if (!at) return;
    if (on.closest("button")) void this.list.toggle(at.row);
    else if (!on.closest("a") && !getSelection()?.toString()) navigate(`/tasks/${at.row.id}`);
  };
}

const List = memo(({ list, all }: { list: TaskPages; all: boolean }) => {
  const grid = useRef<HTMLDivElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const view = useRef<Window | null>(null);
  const n = useComputed(() => (list.version.value, list.count));
  useLayoutEffect(() => {
    const w = (view.current = new Window(grid.current!, box.current!, inner.current!, list));
    return () => w.stop();
  }, [list]);
  return (
    <div class="tlist panel" ref={grid} tabIndex={-1} data-all={all || undefined} role="treegrid" aria-label="Tasks, newest first"
      aria-rowcount={n.value + 1} aria-busy={list.loading.value} onKeyDown={(e) => view.current?.key(e)}>
      <div role="rowgroup">
        <div class="trow thead" role="row" aria-rowindex={1}>
          {COLUMNS.map(([key, name]) => <span key={key} role="columnheader" class={`c-${key}`}>{name}</span>)}
        </div>
      </div>
      <div class="virtual" ref={box} role="rowgroup" data-rows={n.value} onFocusCapture={(e) => view.current?.focus(e)} onClick={(e) => view.current?.click(e)}>
        <div class="virtual-all" ref={inner} role="presentation" />
      </div>
    </div>
  );
});

export function Tasks() {
  const q = query.value;
  const filter = filters();
  const key = JSON.stringify(filter);
  const list = useMemo(() => new TaskPages(filter), [key]);
  useEffect(() => () => list.stop(), [list]);
  const anew = resync.value;
  useEffect(() => { if (anew) void list.resync(); }, [anew]);
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
      ) : <List key={key} list={list} all={q.get("who") === "all"} />}
      {cancelling.value && <CancelMany filter={filter} count={count(list.total)} close={() => (cancelling.value = false)} />}
    </div>
  );
}
