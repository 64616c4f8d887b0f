// Parts that every page is made of: states of tasks, what is said while nothing is there yet, dialogs, notices.
import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { sentence } from "../api";
import { clock } from "../live";
import { duration, relative, whenFull } from "../format";
import type { Loaded } from "../load";
import type { Task } from "../types";
import { Icon } from "./icons";
import { look, type Tone } from "./state";

export function StateChip({ state, more }: { state: string; more?: string }) {
  const { tone, shape } = look(state);
  return <span class="chip" data-tone={tone} data-shape={shape}>{state}{more ? ` ${more}` : ""}</span>;
}

export function Chip({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return <span class="chip" data-tone={tone}>{children}</span>;
}

export const ended = (state: string) => state === "succeeded" || state === "failed" || state === "cancelled";

/** How long it has run, or waits, or ran; moves by itself. */
export function Took({ task }: { task: Pick<Task, "started_usec" | "ended_usec" | "created_usec" | "state"> }) {
  const end = task.ended_usec || clock.value * 1000;
  return <>{duration(Math.max(0, end - (task.started_usec || task.created_usec)))}</>;
}

export function When({ usec }: { usec: number }) {
  return usec ? (
    <time dateTime={new Date(usec / 1000).toISOString()} title={whenFull(usec)}>{relative(usec, clock.value)}</time>
  ) : (
    <>–</>
  );
}

export function Note({ tone, children }: { tone?: "bad" | "wait"; children: ComponentChildren }) {
  return <div class="note" data-tone={tone} role={tone === "bad" ? "alert" : undefined}>{children}</div>;
}

export function Failure({ text, again }: { text: string; again?: () => void }) {
  return (
    <Note tone="bad">
      {text}
      {again && (
        <div class="row"><button class="button small" type="button" onClick={again}><Icon name="again" />Try again</button></div>
      )}
    </Note>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return <div class="empty"><strong>{title}</strong>{children}</div>;
}

export function Bones({ rows = 4 }: { rows?: number }) {
  return (
    <div class="panel-body grid" role="status">
      <span class="unseen">Loading…</span>
      {Array.from({ length: rows }, (_, i) => <span key={i} class="bone" style={{ width: `${92 - ((i * 17) % 45)}%` }} />)}
    </div>
  );
}

/** What was asked for, or what stands for it: bones while it is on its way, the server's sentence when it failed. */
export function Show<T>({ of, rows, children }: { of: Loaded<T>; rows?: number; children: (data: T) => ComponentChildren }) {
  return (
    <>
      {of.error && <div class="panel-body"><Failure text={of.error} again={of.again} /></div>}
      {of.data !== undefined ? children(of.data) : of.error ? null : <Bones rows={rows} />}
    </>
  );
}

export function Panel({ title, end, children, label, class: cls }: {
  title?: ComponentChildren; end?: ComponentChildren; children: ComponentChildren; label?: string; class?: string;
}) {
  const id = useId();
  return (
    <section class={`panel ${cls ?? ""}`} aria-labelledby={title ? id : undefined} aria-label={title ? undefined : label}>
      {title && <header class="panel-head"><h2 id={id}>{title}</h2>{end && <div class="end row">{end}</div>}</header>}
      {children}
    </section>
  );
}

/** What may be wider than the screen scrolls by itself, and with the keys when it does. */
export function Wide({ children }: { children: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const el = box.current!;
    const look = () => (el.scrollWidth > el.clientWidth ? el.setAttribute("tabindex", "0") : el.removeAttribute("tabindex"));
    const watch = new ResizeObserver(look);
    look();
    watch.observe(el);
    if (el.firstElementChild) watch.observe(el.firstElementChild); // it grows without its frame
    return () => watch.disconnect();
  }, []);
  return <div class="table-wrap" ref={box}>{children}</div>;
}

export function Meter({ part, whole, mark, tone, label }: {
  part: number; whole: number; mark?: number; tone?: "wait" | "bad"; label: string;
}) {
  const at = (n: number) => `${whole > 0 ? Math.min(100, Math.max(0, (100 * n) / whole)) : 0}%`;
  return (
    <div class="meter" data-tone={tone} role="img" aria-label={label} title={label}>
      <i style={{ width: at(part) }} />
      {mark !== undefined && <b style={{ left: at(mark) }} />}
    </div>
  );
}

export function Field({ label, hint, children, wide }: {
  label: string; hint?: ComponentChildren; wide?: boolean;
  children: (p: { id: string; "aria-describedby"?: string }) => ComponentChildren;
}) {
  const id = useId();
  return (
    <div class="field" style={wide ? { gridColumn: "1 / -1" } : undefined}>
      <label for={id}>{label}</label>
      {children({ id, "aria-describedby": hint ? `${id}-hint` : undefined })}
      {hint && <small id={`${id}-hint`}>{hint}</small>}
    </div>
  );
}

// ---------------------------------------------------------------- notices

interface Toast { id: number; tone: "good" | "bad"; text: string }
const toasts = signal<Toast[]>([]);
let toastId = 0;

export function say(text: string, tone: "good" | "bad" = "good") {
  const id = ++toastId;
  toasts.value = [...toasts.value.slice(-3), { id, tone, text }];
  if (tone === "good") setTimeout(() => drop(id), 6000);
}
const drop = (id: number) => (toasts.value = toasts.value.filter((t) => t.id !== id));

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((t) => (
        <div key={t.id} class="toast" data-tone={t.tone}>
          <p>{t.text}</p>
          <button class="button quiet small" type="button" aria-label="Dismiss" onClick={() => drop(t.id)}><Icon name="cross" /></button>
        </div>
      ))}
    </div>
  );
}

// ---------------------------------------------------------------- dialogs

/** A dialog that does one thing, or only shows something (without `act`). It stays open, with the sentence, when that fails. */
export function Ask({ title, yes, danger, act, close, stay, children }: {
  title: string; yes?: string; danger?: boolean; stay?: boolean; children?: ComponentChildren;
  act?: () => Promise<unknown> | void; close: () => void;
}) {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    box.current?.showModal();
    return () => box.current?.close();
  }, []);
  const go = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await act?.();
      if (stay) setBusy(false); // there is something to read
      else close();
    } catch (x) {
      setError(sentence(x));
      setBusy(false);
    }
  };
  return (
    <dialog ref={box} aria-labelledby={id} onCancel={(e) => { e.preventDefault(); close(); }}
      onClick={(e) => e.target === box.current && close()}>
      <form onSubmit={go}>
        <h2 id={id}>{title}</h2>
        <div class="dialog-body">
          {children}
          {error && <Failure text={error} />}
        </div>
        <div class="dialog-end">
          <button class="button" type="button" onClick={close}>{act ? "Not now" : "Close"}</button>
          {act && <button class={`button main ${danger ? "danger" : ""}`} type="submit" disabled={busy}>{yes}</button>}
        </div>
      </form>
    </dialog>
  );
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    } catch {
      say("The browser did not allow copying; select the text instead.", "bad");
    }
  };
  return (
    <button class="button small" type="button" onClick={copy}>
      <Icon name={done ? "check" : "copy"} />{done ? "Copied" : label}
    </button>
  );
}

/** Tabs with the arrow keys; which one is open is the caller's to keep (in the address). */
export function Tabs<T extends string>({ tabs, open, set, label }: {
  tabs: { key: T; name: ComponentChildren }[]; open: T; set: (key: T) => void; label: string;
}) {
  const move = (e: JSX.TargetedKeyboardEvent<HTMLDivElement>) => {
    const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const at = tabs.findIndex((t) => t.key === open);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    set(next.key);
    e.currentTarget.querySelector<HTMLElement>(`[data-key="${next.key}"]`)?.focus();
    e.preventDefault();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} onKeyDown={move}>
      {tabs.map((t) => (
        <button key={t.key} type="button" role="tab" data-key={t.key} id={`tab-${t.key}`} aria-controls="tab-panel"
          aria-selected={t.key === open} tabIndex={t.key === open ? 0 : -1} onClick={() => set(t.key)}>{t.name}</button>
      ))}
    </div>
  );
}
