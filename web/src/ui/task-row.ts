// A task as a row of the list: eleven elements, and of them only what is different is written (ui/recycle.ts).
import { duration, milli, money, relative, whenFull } from "../format";
import { folds, type Row } from "../model/task-pages";
import type { Slot } from "./recycle";
import { look } from "./state";

export interface TaskSlot extends Slot {
  id: string | null; // null: it is not here yet
  write(row: Row | undefined, level: number, open: boolean, active: boolean, now: number): void;
}

const CELLS = ["state", "name", "command mono", "user", "pool", "time number", "cost number", "made"];

const PATTERN = (() => {
  const row = document.createElement("div");
  row.className = "trow";
  row.setAttribute("role", "row");
  for (const name of CELLS) {
    const cell = document.createElement("span");
    cell.className = `c-${name}`;
    cell.setAttribute("role", "gridcell");
    row.append(cell);
  }
  const chip = document.createElement("span");
  chip.className = "chip";
  row.children[0].append(chip);
  const link = document.createElement("a");
  link.tabIndex = -1;
  row.children[1].append(link);
  row.children[7].append(document.createElement("time"));
  return row;
})();

/** A text that is written when it is another. */
function words(into: Element): (text: string) => void {
  const node = into.appendChild(document.createTextNode(""));
  let was = "";
  return (text) => {
    if (text !== was) node.data = was = text;
  };
}

function attribute(of: Element, name: string): (value: string | null) => void {
  let was: string | null = null;
  return (value) => {
    if (value === was) return;
    was = value;
    if (value === null) of.removeAttribute(name);
    else of.setAttribute(name, value);
  };
}

function progress(r: Row): string {
  const p = r.progress;
  if (p?.total) return ` ${p.succeeded + p.failed + p.cancelled}/${p.total}`;
  return r.state === "failed" && r.status ? ` (${r.status})` : "";
}

/** How long it has run, or waits, or ran. */
const took = (r: Row, now: number) => duration(Math.max(0, (r.ended_usec || now * 1000) - (r.started_usec || r.created_usec)));

export function taskSlot(): TaskSlot {
  const el = PATTERN.cloneNode(true) as HTMLElement;
  const [state, name, command, user, pool, time, cost, made] = el.children;
  const chip = state.firstElementChild!;
  const link = name.firstElementChild as HTMLAnchorElement;
  const stamp = made.firstElementChild as HTMLTimeElement;
  const say = { state: words(chip), name: words(link), command: words(command), user: words(user), pool: words(pool), time: words(time), cost: words(cost), made: words(stamp) };
  const put = {
    tone: attribute(chip, "data-tone"), shape: attribute(chip, "data-shape"), href: attribute(link, "href"), stamp: attribute(stamp, "datetime"),
    index: attribute(el, "data-index"), place: attribute(el, "aria-rowindex"), level: attribute(el, "aria-level"), busy: attribute(el, "aria-busy"),
    expanded: attribute(el, "aria-expanded"), tab: attribute(el, "tabindex"),
  };
  let fold: HTMLButtonElement | null = null;
  const foldable = (yes: boolean, open: boolean) => {
    put.expanded(yes ? String(open) : null);
    if (!yes) {
      fold?.remove();
      fold = null;
      return;
    }
    if (!fold) {
      fold = document.createElement("button");
      fold.type = "button";
      fold.className = "fold";
      fold.tabIndex = -1;
      name.prepend(fold);
    }
    fold.setAttribute("aria-label", open ? "Fold" : "Unfold");
  };
  stamp.addEventListener("mouseenter", () => (stamp.title = stamp.dateTime && whenFull(Date.parse(stamp.dateTime) * 1000)));
  const slot: TaskSlot = {
    el, index: -1, id: null,
    write(row, level, open, active, now) {
      slot.id = row?.id ?? null;
      put.index(String(slot.index));
      put.place(String(slot.index + 2));
      put.level(String(level));
      put.tab(active ? "0" : "-1");
      put.busy(row ? null : "true");
      foldable(level === 1 && row !== undefined && folds(row), open);
      if (!row) {
        put.href(null);
        for (const write of Object.values(say)) write("");
        say.name("loading");
        return;
      }
      const { tone, shape } = look(row.state);
      put.tone(tone);
      put.shape(shape);
      put.href(`/tasks/${row.id}`);
      put.stamp(row.created_usec ? new Date(row.created_usec / 1000).toISOString() : null);
      say.state(row.state + progress(row));
      say.name(row.name || row.id.slice(0, 8));
      say.command(row.command);
      say.user(row.user);
      say.pool(`${row.pool ?? ""}${row.gpus ? ` · ${milli(row.gpus)} GPU` : ""}`);
      say.time(took(row, now));
      say.cost(row.cost_micro == null ? "" : money(row.cost_micro));
      say.made(relative(row.created_usec, now));
    },
  };
  return slot;
}
