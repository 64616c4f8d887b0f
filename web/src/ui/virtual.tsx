// A window on many rows of one height. Only what is seen, and a little around it, is in the document, so that a
// hundred thousand rows cost what fifty do. The scroller is the browser's own.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const STEP = 8; // rows are drawn anew after this many were scrolled, not at each pixel

export interface Range { first: number; last: number }

export function Virtual({ count, rowHeight, render, onRange, scroller, onScroll, attrs }: {
  count: number;
  rowHeight: number;
  render: (index: number, top: number) => ComponentChildren;
  onRange?: (r: Range) => void;
  scroller?: (el: HTMLDivElement | null) => void;
  onScroll?: (el: HTMLDivElement) => void;
  attrs?: Record<string, unknown>;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [range, setRange] = useState<Range>({ first: 0, last: 40 });
  const measure = () => {
    const el = box.current;
    if (!el) return;
    const first = Math.max(0, Math.floor(el.scrollTop / rowHeight / STEP) * STEP - STEP);
    const last = Math.ceil((el.scrollTop + el.clientHeight) / rowHeight / STEP) * STEP + STEP;
    setRange((old) => (old.first === first && old.last === last ? old : { first, last }));
  };
  useLayoutEffect(measure, [rowHeight, count]);
  useEffect(() => {
    const el = box.current!;
    const watch = new ResizeObserver(measure);
    watch.observe(el);
    return () => watch.disconnect();
  }, [rowHeight]);
  useEffect(() => onRange?.(range), [range.first, range.last, count]);
  useEffect(() => {
    scroller?.(box.current);
    return () => scroller?.(null);
  }, []);
  const rows: ComponentChildren[] = [];
  for (let i = range.first; i < Math.min(range.last, count); i++) rows.push(render(i, i * rowHeight));
  return (
    <div class="virtual" ref={box} {...attrs}
      onScroll={() => { measure(); if (box.current) onScroll?.(box.current); }}>
      <div class="virtual-all" role="presentation" style={{ height: `${count * rowHeight}px` }}>{rows}</div>
    </div>
  );
}
