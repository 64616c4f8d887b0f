// A task's output as it comes: followed to its end, searched, in its colours.
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { part, url } from "../api";
import { count, plural, size } from "../format";
import { bare, LogLines, marked, spans } from "../model/log-lines";
import { Icon } from "./icons";
import { Empty, Failure } from "./parts";
import { Virtual } from "./virtual";

const LINE = 19;
const SHOW_MS = 60; // what comes is drawn this often, however much it is
const TAIL_BYTES = 4 << 20;

interface Piece { stream?: string; text?: string; index?: number }

/** Reads the log's event stream into lines; begins again after a break. */
function useLog(id: string, attempt: number) {
  const log = useMemo(() => new LogLines(), [id, attempt]);
  const version = useSignal(0);
  const state = useSignal<"loading" | "open" | "ended" | "lost">("loading");
  useEffect(() => {
    let source: EventSource | null = null;
    let timer = 0;
    let draw = 0;
    let wait = 500;
    const soon = () => {
      if (!draw) draw = window.setTimeout(() => { draw = 0; version.value++; }, SHOW_MS);
    };
    const open = () => {
      source = new EventSource(url(`/tasks/${part(id)}/logs`, { follow: 1, attempt: attempt || null, tail_bytes: TAIL_BYTES }));
      source.onopen = () => {
        log.clear();
        state.value = "open";
        wait = 500;
        soon();
      };
      const take = (e: MessageEvent) => {
        const p = JSON.parse(e.data) as Piece;
        if (p.text) log.append(p.index === undefined ? p.text : p.text.replace(/^(?=.)/gm, `${p.index}: `), p.stream === "stderr");
        soon();
      };
      source.addEventListener("log", take);
      source.addEventListener("gap", (e) => {
        const { bytes } = JSON.parse((e as MessageEvent).data) as { bytes: number };
        log.append(`\n\x1b[2m… ${size(bytes)} were not kept …\x1b[0m\n`, false);
        soon();
      });
      source.addEventListener("end", () => {
        source?.close();
        state.value = "ended";
        soon();
      });
      source.onerror = () => {
        source?.close();
        state.value = "lost";
        timer = window.setTimeout(open, wait);
        wait = Math.min(wait * 2, 15_000);
      };
    };
    open();
    return () => {
      source?.close();
      clearTimeout(timer);
      clearTimeout(draw);
    };
  }, [id, attempt]);
  return { log, version, state };
}

export function Log({ id, attempt = 0, running }: { id: string; attempt?: number; running: boolean }) {
  const { log, version, state } = useLog(id, attempt);
  const needle = useSignal("");
  const only = useSignal(false);
  const at = useSignal(0);
  const stick = useSignal(true);
  const box = useRef<HTMLDivElement | null>(null);
  const v = version.value;
  const text = needle.value;
  const hits = useMemo(() => {
    if (!text) return [];
    const low = text.toLowerCase();
    const out: number[] = [];
    log.lines.forEach((l, i) => { if (bare(l.text).toLowerCase().includes(low)) out.push(i); });
    return out;
  }, [text, v]);
  const shown = only.value && text ? hits : null;
  const n = shown ? shown.length : log.lines.length;
  useEffect(() => {
    if (stick.value && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [v, n]);
  const go = (step: number) => {
    if (!hits.length) return;
    at.value = (at.value + step + hits.length) % hits.length;
    const row = shown ? at.value : hits[at.value];
    stick.value = false;
    if (box.current) box.current.scrollTop = Math.max(0, row * LINE - box.current.clientHeight / 2);
  };
  return (
    <section class="panel log" aria-label="Output">
      <div class="log-bar">
        <input type="search" placeholder="Search output" aria-label="Search output" value={text}
          onInput={(e) => { needle.value = e.currentTarget.value; at.value = 0; }}
          onKeyDown={(e) => { if (e.key === "Enter") { go(e.shiftKey ? -1 : 1); e.preventDefault(); } }} />
        {text && (
          <>
            <button class="button small" type="button" aria-label="Previous match" onClick={() => go(-1)}><Icon name="up" size={12} /></button>
            <button class="button small" type="button" aria-label="Next match" onClick={() => go(1)}><Icon name="down" size={12} /></button>
            <span class="muted" role="status">{hits.length ? `${count(at.value + 1)} of ${plural(hits.length, "line")}` : "nothing found"}</span>
            <label class="check"><input type="checkbox" checked={only.value} onChange={(e) => (only.value = e.currentTarget.checked)} />only these</label>
          </>
        )}
        <span class="muted end" style={{ marginLeft: "auto" }} role="status" data-log-state={state.value}>
          {plural(log.lines.length + log.dropped, "line")}{state.value === "open" && running ? ", live" : state.value === "lost" ? ", reconnecting…" : ""}
        </span>
        <label class="check"><input type="checkbox" checked={stick.value} onChange={(e) => {
          stick.value = e.currentTarget.checked;
          if (stick.value && box.current) box.current.scrollTop = box.current.scrollHeight;
        }} />follow</label>
        <a class="button small" href={url(`/tasks/${part(id)}/logs`, { attempt: attempt || null })} download={`${id}.log`}><Icon name="save" />Save</a>
      </div>
      {state.value === "lost" && !log.lines.length && <Failure text="The output cannot be read now; trying again." />}
      {n === 0 && state.value !== "loading" && state.value !== "lost" ? (
        <Empty title={text && only.value ? "No line has that" : running ? "Nothing was printed yet" : "It printed nothing"} />
      ) : (
        <Virtual count={n} rowHeight={LINE} scroller={(el) => (box.current = el)} attrs={{ tabIndex: 0, role: "log", "aria-label": "Lines of output", "aria-live": "off" }}
          onScroll={(el) => { stick.value = el.scrollTop + el.clientHeight >= el.scrollHeight - LINE; }}
          render={(i, top) => {
            const index = shown ? shown[i] : i;
            const line = log.lines[index];
            if (!line) return null;
            const hit = hits.length > 0 && hits[at.value] === index;
            return (
              <div key={i} class={`lline ${hit ? "hit" : ""}`} data-err={line.err || undefined} style={{ transform: `translateY(${top}px)` }}>
                <span class="n" aria-hidden="true">{index + 1 + log.dropped}</span>
                <span>{marked(spans(line), text).map((s, k) => s.mark ? <mark key={k}>{s.text}</mark> : <span key={k} class={s.style}>{s.text}</span>)}</span>
              </div>
            );
          }} />
      )}
    </section>
  );
}
