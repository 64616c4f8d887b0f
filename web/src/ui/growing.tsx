// The first of many; further ones when their end comes into sight, or at a press. Ten thousand users are then a table of a
// hundred until somebody looks on.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { count } from "../format";

const AHEAD = "400px";

export function Growing<T>({ of, step = 100, children }: { of: T[]; step?: number; children: (shown: T[]) => ComponentChildren }) {
  const [n, set] = useState(step);
  const end = useRef<HTMLButtonElement>(null);
  const more = of.length - n;
  useEffect(() => {
    if (more <= 0 || !end.current) return;
    const watch = new IntersectionObserver((seen) => { if (seen.some((s) => s.isIntersecting)) set((old) => old + step); }, { rootMargin: AHEAD });
    watch.observe(end.current);
    return () => watch.disconnect();
  }, [n, more > 0]);
  return (
    <>
      {children(more > 0 ? of.slice(0, n) : of)}
      {more > 0 && (
        <div class="panel-body">
          <button ref={end} class="button" type="button" onClick={() => set(n + step)}>Show {count(Math.min(step, more))} more of {count(of.length)}</button>
        </div>
      )}
    </>
  );
}
