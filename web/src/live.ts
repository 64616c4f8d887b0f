// What changes, as it changes: one stream of events for the whole page. It is begun again after a break, later and
// later, and then whoever shows something asks anew (`resync`), because what happened meanwhile was not told.
import { effect, signal } from "@preact/signals";
import { me, recheck, seesOthers, url } from "./api";
import type { Gpu, NodeInfo, Queue, Task } from "./types";

export const connection = signal<"connecting" | "live" | "lost">("connecting");
/** When it was lost; 0: it was not. */
export const lostAt = signal(0);
export const resync = signal(0);
/** Ticks once a second while the page is seen: running times move. */
export const clock = signal(Date.now());

type Handlers = {
  task: Task;
  node: NodeInfo;
  gpus: { gpus: Gpu[] };
  queue: Queue;
  budget: unknown;
  status: { running: number; queued: number; nodes: number; nodes_ready: number };
};
type Kind = keyof Handlers;

const listeners: { [K in Kind]: Set<(data: Handlers[K]) => void> } = {
  task: new Set(), node: new Set(), gpus: new Set(), queue: new Set(), budget: new Set(), status: new Set(),
};

export function on<K extends Kind>(kind: K, fn: (data: Handlers[K]) => void): () => void {
  listeners[kind].add(fn);
  return () => void listeners[kind].delete(fn);
}

const FIRST_MS = 500;
const MOST_MS = 30_000;
let source: EventSource | null = null;
let timer = 0;
let wait = FIRST_MS;
let was = false;

function open() {
  source?.close();
  source = new EventSource(url("/events", { topics: "tasks,nodes,gpus,queue,budgets,status", all_users: seesOthers() }));
  source.onopen = () => {
    connection.value = "live";
    lostAt.value = 0;
    wait = FIRST_MS;
    if (was) resync.value++;
    was = true;
  };
  source.onerror = () => {
    source?.close();
    connection.value = "lost";
    lostAt.value ||= Date.now();
    clearTimeout(timer);
    timer = window.setTimeout(again, wait * (0.75 + Math.random() / 2));
    wait = Math.min(wait * 2, MOST_MS);
  };
  source.addEventListener("resync", () => resync.value++); // we read too slowly, and events were left out
  for (const kind of Object.keys(listeners) as Kind[])
    source.addEventListener(kind, (e) => {
      const data: unknown = JSON.parse((e as MessageEvent).data);
      for (const fn of listeners[kind]) (fn as (d: unknown) => void)(data);
    });
}

/** A stream does not tell why it ended; a question does. Whoever is signed in no more is not connected again. */
async function again() {
  const mine = source;
  await recheck();
  if (me.value && source === mine) open();
}

export function startLive() {
  if (!source) open();
}

// Whoever is signed out, here or by another tab, hears nothing more.
effect(() => {
  if (me.value === null) stopLive();
});

export function stopLive() {
  clearTimeout(timer);
  source?.close();
  source = null;
  was = false;
  wait = FIRST_MS;
  connection.value = "connecting";
  lostAt.value = 0;
}

setInterval(() => {
  if (document.visibilityState === "visible") clock.value = Date.now();
}, 1000);

// A laptop that wakes up need not wait for the next try.
addEventListener("online", () => {
  if (connection.value === "lost") {
    clearTimeout(timer);
    wait = FIRST_MS;
    void again();
  }
});
