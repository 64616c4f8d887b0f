// The frame around every page, and which page it is.
import { signal, useSignalEffect } from "@preact/signals";
import { lazy, Suspense } from "preact/compat";
import type { ComponentType } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { may, me, sentence } from "./api";
import { clock, connection, lostAt, on } from "./live";
import { Home } from "./pages/home";
import { Tasks } from "./pages/tasks";
import { navigate, path, query } from "./router";
import { leave } from "./signin";
import { theme, type Theme } from "./theme";
import { Help } from "./ui/help";
import { Icon, Mark, type IconName } from "./ui/icons";
import { Bones, say, Toasts } from "./ui/parts";
import { count, when } from "./format";

const page = <P,>(load: () => Promise<ComponentType<P>>) => lazy(async () => ({ default: await load() }));
const TaskPage = page(() => import("./pages/task").then((m) => m.TaskPage));
const Cluster = page(() => import("./pages/cluster").then((m) => m.Cluster));
const QueuePage = page(() => import("./pages/queue").then((m) => m.QueuePage));
const Run = page(() => import("./pages/run").then((m) => m.Run));
const Environments = page(() => import("./pages/environments").then((m) => m.Environments));
const CostPage = page(() => import("./pages/cost").then((m) => m.CostPage));
const Admin = page(() => import("./pages/admin").then((m) => m.Admin));

const PLACES: { to: string; name: string; icon: IconName }[] = [
  { to: "/", name: "Home", icon: "home" },
  { to: "/tasks", name: "Tasks", icon: "tasks" },
  { to: "/run", name: "Run", icon: "run" },
  { to: "/cluster", name: "Cluster", icon: "cluster" },
  { to: "/queue", name: "Queue", icon: "queue" },
  { to: "/environments", name: "Environments", icon: "env" },
  { to: "/cost", name: "Cost", icon: "cost" },
  { to: "/admin", name: "Admin", icon: "admin" },
];

const status = signal<{ running: number; queued: number } | null>(null);
on("status", (s) => (status.value = s));

function Routed() {
  const at = path.value;
  const task = /^\/tasks\/([^/]+)$/.exec(at);
  if (task) return <TaskPage key={task[1]} id={decodeURIComponent(task[1])} />;
  if (at === "/") return <Home />;
  if (at === "/tasks") return <Tasks />;
  if (at === "/run") return <Run />;
  if (at === "/cluster") return <Cluster />;
  if (at === "/queue") return <QueuePage />;
  if (at === "/environments") return <Environments />;
  if (at === "/cost") return <CostPage />;
  if (at === "/admin" || at.startsWith("/admin/")) return <Admin section={at.slice(7) || "users"} />;
  return (
    <div class="empty">
      <h1>Nothing is here</h1>
      <p>There is no page <code>{at}</code>. <a href="/">Home</a></p>
    </div>
  );
}

function ThemeSwitch() {
  const next: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };
  const icon: Record<Theme, IconName> = { system: "auto", light: "sun", dark: "moon" };
  const t = theme.value;
  return (
    <button class="button quiet" type="button" onClick={() => (theme.value = next[t])}
      aria-label={`Colours: ${t === "system" ? "as the system has them" : t}. Change to ${next[t]}`} title={`Colours: ${t}`}>
      <Icon name={icon[t]} />
    </button>
  );
}

function Finder() {
  const [text, setText] = useState("");
  const here = path.value === "/tasks";
  const shown = here ? (query.value.get("search") ?? "") : text;
  return (
    <form class="finder" role="search" onSubmit={(e) => {
      e.preventDefault();
      const t = shown.trim();
      navigate(/^[0-9a-f]{16}$/.test(t) ? `/tasks/${t}` : t ? `/tasks?search=${encodeURIComponent(t)}` : "/tasks");
    }}>
      <Icon name="search" />
      <input id="finder" type="search" placeholder="Search tasks" aria-label="Search tasks" value={shown} autocomplete="off"
        onInput={(e) => {
          const t = e.currentTarget.value;
          setText(t);
          if (here) {
            const q = new URLSearchParams(location.search);
            if (t) q.set("search", t);
            else q.delete("search");
            navigate(`/tasks${q.size ? `?${q}` : ""}`, true);
          }
        }} />
      {!shown && <kbd aria-hidden="true">/</kbd>}
    </form>
  );
}

const PULSE = { live: "live", connecting: "connecting…", lost: "reconnecting…" };

async function signOut() {
  try {
    await leave();
    navigate("/");
  } catch (e) {
    if (me.value) say(sentence(e), "bad"); // still signed in, and told so
  }
}

const LOST_MS = 3000; // a short break is not worth a word

/** What is on the screen is not what is. */
function Lost() {
  const since = lostAt.value;
  if (!since || clock.value - since < LOST_MS) return null;
  return <div class="lost-bar" role="alert">The cloud does not answer; what you see is of {when(since * 1000)}. It is tried again by itself.</div>;
}

/** After a change of place the page's heading has the focus, so that its name is read. */
function useArrival() {
  const first = useRef(true);
  useSignalEffect(() => {
    const at = path.value;
    const name = PLACES.find((p) => p.to === at)?.name ?? (at.startsWith("/tasks/") ? "Task" : at.startsWith("/admin") ? "Admin" : "Virga");
    document.title = name === "Virga" ? name : `${name} · Virga`;
    if (!first.current) {
      scrollTo(0, 0);
      const was = document.activeElement;
      requestAnimationFrame(() => {
        // Whoever went on by a key meanwhile stays there.
        if (document.activeElement === was || document.activeElement === document.body)
          document.querySelector<HTMLElement>("#page h1")?.focus({ preventScroll: true });
      });
    }
    first.current = false;
  });
}

function useKeys(help: () => void) {
  useEffect(() => {
    let g = 0;
    const press = (e: KeyboardEvent) => {
      const t = e.target as HTMLElement;
      if (e.ctrlKey || e.metaKey || e.altKey || t.closest("input, textarea, select, dialog, .xterm")) return;
      if (e.key === "/") {
        document.getElementById("finder")?.focus();
        e.preventDefault();
      } else if (e.key === "?") {
        help();
      } else if (e.key === "n") {
        navigate("/run");
      } else if (e.key === "g") {
        g = Date.now();
      } else if (Date.now() - g < 1200) {
        const to = { h: "/", t: "/tasks", r: "/run", c: "/cluster", q: "/queue", e: "/environments", m: "/cost", a: "/admin" }[e.key];
        g = 0;
        if (to) navigate(to);
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

export function App() {
  const [help, setHelp] = useState(false);
  useArrival();
  useKeys(() => setHelp(true));
  const at = path.value;
  const who = me.value!;
  const c = connection.value;
  return (
    <div class="shell">
      <a class="skip" href="#page" onClick={(e) => { e.preventDefault(); document.getElementById("page")?.focus(); }}>Skip to the page</a>
      <header class="top">
        <a class="brand" href="/" aria-label="Virga, home"><Mark /><span>Virga</span></a>
        <Finder />
        <div class="top-end">
          <span class="pulse" data-state={c} role="status"><i aria-hidden="true" /><span>{PULSE[c]}</span></span>
          <ThemeSwitch />
          <button class="button quiet" type="button" aria-label="Keys and help" title="Keys (?)" onClick={() => setHelp(true)}><Icon name="help" /></button>
          <span class="who"><span>{who.user}</span><small>{who.team && who.team !== who.user ? `${who.team}, ` : ""}{who.role}</small></span>
          <button class="button quiet" type="button" aria-label="Sign out" title="Sign out" onClick={signOut}><Icon name="out" /></button>
        </div>
      </header>
      <nav class="places" aria-label="Pages">
        <ul>
          {PLACES.filter((p) => p.to !== "/run" || may("run")).map((p) => {
            const current = p.to === "/" ? at === "/" : at === p.to || at.startsWith(`${p.to}/`);
            const n = p.to === "/tasks" ? status.value?.running : p.to === "/queue" ? status.value?.queued : undefined;
            return (
              <li key={p.to}>
                <a href={p.to} aria-current={current ? "page" : undefined}>
                  <Icon name={p.icon} />{p.name}
                  {n ? <span class="count">{count(n)}<span class="unseen"> {p.to === "/tasks" ? "running" : "waiting"}</span></span> : null}
                </a>
              </li>
            );
          })}
        </ul>
      </nav>
      <main class="page" id="page" tabIndex={-1}>
        <Suspense fallback={<Bones rows={8} />}><Routed /></Suspense>
      </main>
      <Lost />
      <Toasts />
      {help && <Help close={() => setHelp(false)} />}
    </div>
  );
}
