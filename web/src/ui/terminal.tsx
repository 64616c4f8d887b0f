// A task's terminal over a WebSocket: bytes both ways as binary messages, sizes and signals as JSON.
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { part, url } from "../api";
import { Icon } from "./icons";

/** xterm writes its colours into <style> elements, which the page's policy forbids. Style sheets made by script are
    allowed: what it takes for a style element is a plain one whose text goes into such a sheet. */
function make(tag: string, options?: ElementCreationOptions): HTMLElement {
  const plain = (t: string) => Document.prototype.createElement.call(document, t, options) as HTMLElement;
  if (tag.toLowerCase() !== "style") return plain(tag);
  const el = plain("template");
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  let text = "";
  Object.defineProperty(el, "textContent", { get: () => text, set: (v: string) => { text = v; sheet.replaceSync(v); } });
  el.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
    Element.prototype.remove.call(el);
  };
  return el;
}

/** The document that xterm is given; while it opens it also asks the page's own. */
function documentWithSheets(): Document {
  return new Proxy(document, {
    get(d, key) {
      if (key === "createElement") return make;
      const value = Reflect.get(d, key, d);
      return typeof value === "function" ? value.bind(d) : value;
    },
  });
}

const THEME = { background: "#0c0f13", foreground: "#e6eaf0", cursor: "#86b6f2", selectionBackground: "#33506f" };

export default function Term({ id, observe }: { id: string; observe: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const state = useSignal("connecting…");
  const gone = useSignal(false);
  const turn = useSignal(0);
  const at = turn.value;
  useEffect(() => {
    const term = new Terminal({
      documentOverride: documentWithSheets(), fontSize: 13, scrollback: 5000, theme: THEME, screenReaderMode: false,
      fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"), disableStdin: observe, cursorBlink: false,
    });
    const fit = new FitAddon();
    term.loadAddon(fit);
    document.createElement = make as typeof document.createElement;
    try {
      term.open(box.current!);
    } finally {
      delete (document as Partial<Document>).createElement; // the prototype's is seen again
    }
    fit.fit();
    const ws = new WebSocket(
      location.origin.replace(/^http/, "ws") + url(`/tasks/${part(id)}/attach`, { rows: term.rows, cols: term.cols, observe }),
    );
    ws.binaryType = "arraybuffer";
    const bytes = new TextEncoder();
    ws.onopen = () => {
      state.value = observe ? "connected, looking only" : "connected";
      term.focus();
    };
    ws.onmessage = (e) => {
      if (typeof e.data !== "string") {
        term.write(new Uint8Array(e.data as ArrayBuffer));
        return;
      }
      const m = JSON.parse(e.data) as { event?: string; status?: number; text?: string };
      if (m.event === "exit") {
        state.value = `ended with status ${m.status}`;
        gone.value = true;
      } else if (m.event === "taken") {
        state.value = "somebody else has taken the terminal";
        gone.value = true;
      } else if (m.event === "notice" && m.text) {
        state.value = m.text;
      }
    };
    ws.onclose = (e) => {
      if (!gone.value) state.value = e.reason || "the connection ended";
      gone.value = true;
    };
    const typed = term.onData((d) => { if (ws.readyState === WebSocket.OPEN) ws.send(bytes.encode(d)); });
    const raw = term.onBinary((d) => { if (ws.readyState === WebSocket.OPEN) ws.send(Uint8Array.from(d, (c) => c.charCodeAt(0))); });
    const sized = term.onResize(({ rows, cols }) => {
      if (ws.readyState === WebSocket.OPEN) ws.send(JSON.stringify({ resize: { rows, cols } }));
    });
    const watch = new ResizeObserver(() => fit.fit());
    watch.observe(box.current!);
    return () => {
      watch.disconnect();
      typed.dispose();
      raw.dispose();
      sized.dispose();
      ws.onclose = null;
      ws.close();
      term.dispose();
    };
  }, [id, observe, at]);
  return (
    <section class="panel" aria-label="Terminal">
      <div class="log-bar">
        <span role="status" class="muted" data-terminal-state>{state.value}</span>
        {gone.value && <button class="button small" type="button" onClick={() => { gone.value = false; state.value = "connecting…"; turn.value++; }}><Icon name="again" />Connect again</button>}
        <span class="muted" style={{ marginLeft: "auto" }}><kbd>Ctrl</kbd> <kbd>Shift</kbd> <kbd>Tab</kbd> leaves the terminal</span>
      </div>
      <div class="terminal" ref={box} onKeyDownCapture={(e) => {
        if (e.key === "Tab" && e.ctrlKey && e.shiftKey) {
          document.getElementById("tab-terminal")?.focus();
          e.preventDefault();
          e.stopPropagation();
        }
      }} />
    </section>
  );
}
