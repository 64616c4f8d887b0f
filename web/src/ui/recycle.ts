// A window on many rows of one height, as plain elements that are used again: a row that leaves at one end comes back at
// the other with other words in it. While somebody scrolls nothing is made, nothing is removed, and nothing is measured:
// the browser gives the place (scroll) and the size (ResizeObserver) when it has them anyway.

export interface Slot {
  readonly el: HTMLElement;
  index: number; // -1: none yet
}

export interface Rows<S extends Slot> {
  make(): S;
  /** Shows this row, and writes only what is different. Also called for rows that stay, when their data may be new. */
  fill(slot: S, index: number): void;
  /** Rows [first, last) are in the document. */
  range?(first: number, last: number): void;
  /** The window has another size; it can be measured now. */
  resized?(): void;
  /** Nothing moved for a moment. */
  settled?(firstSeen: number): void;
}

const MARGIN = 10; // rows ready on either side of what is seen
const STEP = 4; // and come in by so many: most frames of a slow scroll then have nothing to do
const SETTLED_MS = 200;

export class Recycler<S extends Slot> {
  private slots: S[] = [];
  private first = 0;
  private count = 0;
  private rowHeight = 1;
  private height = 0;
  private top = 0;
  private still = 0;
  private watch: ResizeObserver;

  constructor(private box: HTMLElement, private all: HTMLElement, private rows: Rows<S>) {
    this.watch = new ResizeObserver((seen) => {
      this.height = seen[seen.length - 1].contentRect.height;
      this.rows.resized?.();
      this.fit();
    });
    this.watch.observe(box);
    box.addEventListener("scroll", this.scrolled, { passive: true });
  }

  stop() {
    this.watch.disconnect();
    clearTimeout(this.still);
    this.box.removeEventListener("scroll", this.scrolled);
    this.all.replaceChildren();
    this.slots = [];
  }

  /** How many rows there are and how high each is. All that is in the document is filled anew. */
  set(count: number, rowHeight: number) {
    if (count !== this.count || rowHeight !== this.rowHeight) {
      this.count = count;
      this.rowHeight = rowHeight;
      this.all.style.height = `${count * rowHeight}px`;
    }
    this.fit();
  }

  refill() {
    for (const s of this.slots) this.rows.fill(s, s.index);
  }

  at(index: number): S | undefined {
    const s = this.slots[index % this.slots.length];
    return s?.index === index ? s : undefined;
  }

  /** So that this row is seen. */
  show(index: number) {
    const from = index * this.rowHeight;
    if (from < this.top) this.top = from;
    else if (from + this.rowHeight > this.top + this.height) this.top = from + this.rowHeight - this.height;
    else return;
    this.box.scrollTop = this.top;
    this.place();
  }

  get pageRows() {
    return Math.max(1, Math.floor(this.height / this.rowHeight) - 1);
  }

  private scrolled = () => {
    this.top = this.box.scrollTop;
    this.place();
    this.soon();
  };

  private soon() {
    clearTimeout(this.still);
    this.still = window.setTimeout(() => this.settle(), SETTLED_MS);
  }

  /** As many elements as the window needs. */
  private fit() {
    const n = Math.min(this.count, Math.ceil(this.height / this.rowHeight) + STEP + 2 * MARGIN);
    if (n !== this.slots.length) {
      for (const s of this.slots.splice(n)) s.el.remove();
      while (this.slots.length < n) {
        const s = this.rows.make();
        this.slots.push(s);
        this.all.append(s.el);
      }
      for (const s of this.slots) s.index = -1;
    }
    this.place();
    this.refill();
    this.soon();
  }

  /** Row i is shown by element i modulo their number, so that each row that stays keeps its own. */
  private place() {
    const n = this.slots.length;
    const first = Math.max(0, Math.min(Math.floor(this.top / this.rowHeight / STEP) * STEP - MARGIN, this.count - n));
    this.first = first;
    let moved = false;
    for (let i = first; i < first + n; i++) {
      const s = this.slots[i % n];
      if (s.index === i) continue;
      moved = true;
      s.index = i;
      s.el.style.transform = `translateY(${i * this.rowHeight}px)`;
      this.rows.fill(s, i);
    }
    if (moved) this.rows.range?.(first, first + n);
  }

  private settle() {
    this.order();
    this.rows.settled?.(Math.ceil(this.top / this.rowHeight));
  }

  /** In the document's order, too, for whoever reads it aloud. The order is right but for where it begins, so that one of
      two ends is moved to the other: the one that has not the focus. */
  private order() {
    const n = this.slots.length;
    if (!n) return;
    const head = this.slots[this.first % n].el;
    if (this.all.firstElementChild === head) return;
    const kids = [...this.all.children];
    const at = kids.indexOf(head);
    const before = kids.slice(0, at);
    if (before.some((k) => k.contains(document.activeElement))) this.all.prepend(...kids.slice(at));
    else this.all.append(...before);
  }
}
