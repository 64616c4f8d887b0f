// Requests to /api/v1. The cookie of the sign-in goes along by itself. An error is always a Problem with the server's
// own sentence; 401 brings the sign-in page back.
import { signal } from "@preact/signals";
import type { Me } from "./types";

export const BASE = "/api/v1";

/** null: nobody is signed in; undefined: not known yet. */
export const me = signal<Me | null | undefined>(undefined);

/** Why somebody who was signed in is so no more; for the sign-in page. */
export const ended = signal<string | null>(null);

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

export type Query = Record<string, string | number | boolean | string[] | null | undefined>;

export function url(path: string, query: Query = {}): string {
  const q = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    for (const v of Array.isArray(value) ? value : [value])
      if (v !== null && v !== undefined && v !== "" && v !== false) q.append(key, v === true ? "1" : String(v));
  }
  const text = q.toString();
  return BASE + path + (text ? `?${text}` : "");
}

async function problem(r: Response): Promise<Problem> {
  let text = `The cloud answered ${r.status}.`;
  let code = "";
  try {
    const body = await r.json();
    text = body.detail || body.title || text;
    code = body.code ?? "";
  } catch {
    // not JSON: the status says it
  }
  return new Problem(r.status, code, text);
}

async function send(method: string, address: string, init: RequestInit = {}): Promise<Response> {
  let r: Response;
  try {
    r = await fetch(address, { method, credentials: "same-origin", ...init });
  } catch (e) {
    if (e instanceof DOMException && e.name === "AbortError") throw e;
    throw new Problem(0, "network", "The cloud cannot be reached; is virgad running, and this machine online?");
  }
  if (r.ok) return r;
  const p = await problem(r);
  if (r.status === 401 && me.value) {
    ended.value = "Your sign-in has ended: its time is over, or it was taken back. Sign in again to go on where you were.";
    me.value = null;
  }
  throw p;
}

/** Asks anew who we are: a sign-in ends, a role changes, another tab signs in as somebody else. False: nobody answered. */
export async function recheck(): Promise<boolean> {
  try {
    const now = await get<Me>("/me");
    if (JSON.stringify(now) !== JSON.stringify(me.value)) me.value = now;
    return true;
  } catch (e) {
    return e instanceof Problem && e.status === 401;
  }
}

export async function get<T>(path: string, query?: Query, abort?: AbortSignal): Promise<T> {
  const r = await send("GET", url(path, query), { signal: abort, headers: { Accept: "application/json" } });
  return (await r.json()) as T;
}

export async function text(path: string, query?: Query, abort?: AbortSignal): Promise<string> {
  return (await send("GET", url(path, query), { signal: abort, headers: { Accept: "text/plain" } })).text();
}

export async function call<T>(
  method: "POST" | "PUT" | "PATCH" | "DELETE",
  path: string,
  body?: unknown,
  more: { query?: Query; headers?: Record<string, string>; signal?: AbortSignal } = {},
): Promise<T> {
  const r = await send(method, url(path, more.query), {
    headers: { Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...more.headers },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: more.signal,
  });
  const said = await r.text();
  return (said ? JSON.parse(said) : null) as T;
}

export const sentence = (e: unknown) => (e instanceof Error ? e.message : String(e));

/** A part of a path. */
export const part = encodeURIComponent;

export type Act = "see-team" | "run" | "end-team" | "manage-team" | "see-all" | "end-all" | "manage-nodes" | "manage-users" | "manage-money" | "see-audit";

/** What role and token allow, as the cloud says it. What is shown follows from it; what is done the cloud decides itself. */
export const may = (...acts: Act[]) => acts.some((a) => Boolean(me.value?.acts.includes(a)));

/** May others' tasks be listed? */
export const seesOthers = () => may("see-all", "see-team");
