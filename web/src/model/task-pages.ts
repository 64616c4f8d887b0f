// A list of tasks that is longer than one wants to hold: the newest page first, further ones when they come into
// sight, and what happens meanwhile by events. The server filters; a task that is new here is asked for, not guessed.
import { signal } from "@preact/signals";
import { get, sentence, type Query } from "../api";
import { on } from "../live";
import type { Progress, State, Task, TaskPage } from "../types";
import { commandLine } from "../format";

/** What a row shows, and no more: a hundred thousand of these are kept. */
export interface Row {
  id: string;
  name: string | null;
  state: State;
  status: number | null;
  user: string;
  pool: string | null;
  node: string | null;
  command: string;
  created_usec: number;
  started_usec: number;
  ended_usec: number;
  gpus: number; // thousandths
  members: number;
  progress: Progress | null;
  group: string | null;
  parent: string | null;
  cost_micro: number | null;
  changes: number; // so that a row is drawn anew when it is another, and only then
}

const COMMAND_MAX = 160;

export function slim(t: Task): Row {
  const command = commandLine(t.argv.slice(0, 24));
  return {
    id: t.id, name: t.name || null, state: t.state, status: t.status, user: t.user, pool: t.pool, node: t.node,
    command: command.length > COMMAND_MAX ? `${command.slice(0, COMMAND_MAX)}…` : command,
    created_usec: t.created_usec, started_usec: t.started_usec, ended_usec: t.ended_usec,
    gpus: t.want ? t.want.gpus * 1000 + t.want.gpu_milli : 0,
    members: t.members, progress: t.progress, group: t.group, parent: t.parent, cost_micro: t.cost_micro ?? null, changes: 0,
  };
}

const renew = (row: Row, t: Task) => Object.assign(row, slim(t), { changes: row.changes + 1 });

export const folds = (r: Row) => r.members > 0 || (r.progress?.total ?? 0) > 0;

const NEAR = 200; // rows of a page while somebody looks at its surroundings
const FAR = 1000; // and when the place in sight is far away; the server gives no more
const RESYNC = 5000; // rows that are asked for anew after a break
const HEAD_MS = 700; // the newest page is asked for at most this often

export class TaskPages {
  /** Counts changes; whoever draws reads it. */
  readonly version = signal(0);
  readonly error = signal<string | null>(null);
  readonly loading = signal(true);
  readonly open = signal<ReadonlySet<string>>(new Set());
  total = 0;
  requests = 0;
  private rows: Row[] = [];
  private at = new Map<string, Row>();
  private below = new Map<string, Row[]>();
  private next: string | null = null;
  private wanted = 0;
  private busy = false;
  private headTimer = 0;
  private headDue = 0;
  private flat: { row: Row; level: number }[] | null = null;
  private abort = new AbortController();
  private off: () => void;

  constructor(private filter: Query) {
    this.off = on("task", (t) => this.changed(t));
    void this.page(NEAR);
  }

  stop() {
    this.abort.abort();
    clearTimeout(this.headTimer);
    this.off();
  }

  get count() {
    let n = Math.max(this.total, this.rows.length);
    for (const id of this.open.value) n += this.below.get(id)?.length ?? 0;
    return n;
  }

  /** Undefined: it is not here yet. */
  get(i: number): { row: Row; level: number } | undefined {
    if (!this.open.value.size) return this.rows[i] ? { row: this.rows[i], level: 1 } : undefined;
    if (!this.flat) {
      this.flat = [];
      for (const row of this.rows) {
        this.flat.push({ row, level: 1 });
        if (this.open.value.has(row.id)) for (const b of this.below.get(row.id) ?? []) this.flat.push({ row: b, level: 2 });
      }
    }
    return this.flat[i];
  }

  /** Rows up to this one come into sight. */
  want(last: number) {
    this.wanted = Math.min(last, this.count);
    void this.more();
  }

  async toggle(row: Row) {
    const open = new Set(this.open.value);
    if (open.delete(row.id)) {
      this.open.value = open;
      this.touch();
      return;
    }
    try {
      const page = await get<TaskPage>("/tasks", { of: row.id, limit: FAR, all_users: this.filter.all_users }, this.abort.signal);
      this.below.set(row.id, page.tasks.map(slim).sort((a, b) => a.created_usec - b.created_usec));
      open.add(row.id);
      this.open.value = open;
      this.touch();
    } catch (e) {
      if (!this.abort.signal.aborted) this.error.value = sentence(e);
    }
  }

  private touch() {
    this.flat = null;
    this.version.value++;
  }

  private add(row: Row) {
    this.at.set(row.id, row);
    this.rows.push(row);
  }

  private async page(limit: number, before?: string) {
    this.busy = true;
    this.requests++;
    try {
      const page = await get<TaskPage>("/tasks", { ...this.filter, limit, before }, this.abort.signal);
      for (const t of page.tasks) if (!this.at.has(t.id)) this.add(slim(t));
      this.next = page.next;
      if (page.total != null && (!before || page.total > this.total)) this.total = page.total;
      if (!page.next) this.total = this.rows.length;
      this.error.value = null;
      this.touch();
    } catch (e) {
      if (!this.abort.signal.aborted) this.error.value = sentence(e);
    } finally {
      this.busy = false;
      this.loading.value = false;
    }
  }

  private async more() {
    while (!this.busy && this.next && this.wanted + NEAR / 2 > this.rows.length && !this.abort.signal.aborted && !this.error.value)
      await this.page(this.wanted > this.rows.length + NEAR ? FAR : NEAR, this.next);
  }

  /** The newest page again: what is new goes on top, what is known is renewed. */
  async head(): Promise<string | null> {
    if (this.abort.signal.aborted) return null;
    this.headDue = Date.now() + HEAD_MS;
    this.requests++;
    try {
      const page = await get<TaskPage>("/tasks", { ...this.filter, limit: NEAR }, this.abort.signal);
      const fresh: Row[] = [];
      for (const t of page.tasks) {
        const old = this.at.get(t.id);
        if (old) renew(old, t);
        else fresh.push(slim(t));
      }
      for (const r of fresh) this.at.set(r.id, r);
      this.rows = [...fresh, ...this.rows];
      if (fresh.length) this.rows.sort((a, b) => b.created_usec - a.created_usec || (a.id < b.id ? 1 : -1));
      this.total = this.next ? Math.max(page.total ?? this.total, this.rows.length) : this.rows.length;
      this.error.value = null;
      this.touch();
      void this.more(); // what was asked for while nobody answered
      return page.next;
    } catch (e) {
      if (!this.abort.signal.aborted) this.error.value = sentence(e);
      return null;
    }
  }

  /** After a break: also what lies further down and had not ended, as far as that goes in a few questions. */
  async resync() {
    let before = await this.head();
    let seen = NEAR;
    const last = this.rows.map((r) => !r.ended_usec).lastIndexOf(true);
    try {
      while (before && seen <= last && seen < RESYNC && !this.abort.signal.aborted) {
        this.requests++;
        const page: TaskPage = await get("/tasks", { ...this.filter, limit: FAR, before }, this.abort.signal);
        for (const t of page.tasks) {
          const old = this.at.get(t.id);
          if (old) renew(old, t);
        }
        seen += page.tasks.length;
        before = page.tasks.length ? page.next : null;
        this.touch();
      }
    } catch (e) {
      if (!this.abort.signal.aborted) this.error.value = sentence(e);
    }
  }

  private headSoon() {
    clearTimeout(this.headTimer);
    this.headTimer = window.setTimeout(() => void this.head(), Math.max(30, this.headDue - Date.now()));
  }

  private changed(t: Task) {
    const row = this.at.get(t.id);
    const states = this.filter.state as string[] | undefined;
    if (row) {
      renew(row, t);
      if (states?.length && !states.includes(t.state)) {
        this.at.delete(t.id);
        this.rows = this.rows.filter((r) => r !== row);
        this.total = Math.max(0, this.total - 1);
      }
      this.touch();
      return;
    }
    const group = t.group ?? t.parent;
    const member = group && this.below.get(group)?.find((r) => r.id === t.id);
    if (member) {
      renew(member, t);
      this.touch();
    } else if (!group && (!states?.length || states.includes(t.state))) {
      this.headSoon();
    }
  }
}
