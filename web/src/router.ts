// Where we are. The address is the state: filters and tabs live in its query, so that it can be kept and sent.
import { batch, computed, signal } from "@preact/signals";

const here = () => ({ path: location.pathname, query: new URLSearchParams(location.search) });

export const place = signal(here());
export const path = computed(() => place.value.path);
export const query = computed(() => place.value.query);

export function navigate(to: string, replace = false) {
  if (to === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  batch(() => (place.value = here()));
}

/** Changes members of the query; null or "" removes one. */
export function setQuery(change: Record<string, string | string[] | null>, replace = true) {
  const q = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(change)) {
    q.delete(key);
    for (const v of Array.isArray(value) ? value : [value]) if (v) q.append(key, v);
  }
  const text = q.toString();
  navigate(location.pathname + (text ? `?${text}` : ""), replace);
}

/** Plain links stay plain; those of this site do not load the page anew. */
export function follow(e: MouseEvent) {
  if (e.defaultPrevented || e.button || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return;
  const a = (e.target as Element).closest?.("a");
  if (!a || a.target || a.origin !== location.origin || a.hasAttribute("download") || a.pathname.startsWith("/api/")) return;
  if (a.getAttribute("href")?.startsWith("#")) return;
  e.preventDefault();
  navigate(a.pathname + a.search);
}

addEventListener("popstate", () => (place.value = here()));
