// One question to the API as a component has it: what was answered, what went wrong, and again when the stream of
// events was broken. What was there stays in sight while it is asked for anew.
import { useEffect, useState } from "preact/hooks";
import { get, sentence, type Query } from "./api";
import { resync } from "./live";

export interface Loaded<T> {
  data: T | undefined;
  error: string | null;
  again: () => void;
  put: (change: (old: T) => T) => void;
}

export function useGet<T>(path: string | null, query: Query = {}, everyMs = 0): Loaded<T> {
  const [state, set] = useState<{ key: string; data?: T; error: string | null }>({ key: "", error: null });
  const [turn, setTurn] = useState(0);
  const key = path === null ? "" : path + JSON.stringify(query);
  const anew = resync.value;
  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    let timer = 0;
    const ask = () =>
      get<T>(path, query, abort.signal).then(
        (data) => set({ key, data, error: null }),
        (e) => {
          if (!abort.signal.aborted) set((old) => ({ key, data: old.key === key ? old.data : undefined, error: sentence(e) }));
        },
      ).then(() => {
        if (everyMs && !abort.signal.aborted) timer = window.setTimeout(ask, everyMs);
      });
    void ask();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key, turn, anew, everyMs]);
  return {
    data: state.key === key ? state.data : undefined,
    error: state.key === key ? state.error : null,
    again: () => setTurn((n) => n + 1),
    put: (change) => set((old) => (old.data === undefined ? old : { ...old, data: change(old.data) })),
  };
}
