// What the form is about to submit, the same as a request and as a command line. Pure but for `again`, which keeps
// what the form begins with; tests/draft.test.mjs.
import { commandLine, needsShell, parseDuration, parseMoney, parseSize, quote, words } from "../format";
import type { Spec, Task } from "../types";

export type Kind = "command" | "shell" | "notebook";

export interface Draft {
  kind: Kind;
  command: string;
  name: string;
  pool: string;
  gpu: "none" | "whole" | "share";
  gpus: string; // of "whole"
  share: string; // of "share": part of one
  gpuMem: string;
  cpus: string;
  mem: string;
  time: string;
  files: "node" | "environment" | "image";
  environment: string;
  image: string;
  secrets: string[];
  project: string;
  labels: string;
  vars: string;
  cwd: string;
  shards: string;
  retries: string;
  preemptible: boolean;
  maxCost: string;
  priority: string;
  rest: Partial<Spec>; // of a task that runs again: what the form has no field for, and its variables
}

export const BLANK: Draft = {
  kind: "command", command: "", name: "", pool: "", gpu: "none", gpus: "1", share: "0.5", gpuMem: "", cpus: "", mem: "", time: "",
  files: "node", environment: "", image: "", secrets: [], project: "", labels: "", vars: "", cwd: "", shards: "", retries: "",
  preemptible: false, maxCost: "", priority: "", rest: {},
};

export const NOTEBOOK_PORT = 8888;
const NOTEBOOK = ["jupyter", "lab", "--no-browser", "--ip=127.0.0.1", `--port=${NOTEBOOK_PORT}`, "--port-retries=0", "--allow-root"];
const SHELL = ["/bin/bash", "-l"];
const SCREEN = { rows: 24, cols: 80 };

export class Unclear extends Error {
  constructor(readonly field: keyof Draft, message: string) {
    super(message);
  }
}

function argvOf(d: Draft): string[] {
  if (d.kind === "notebook") return NOTEBOOK;
  const text = d.command.trim();
  if (d.kind === "shell" && !text) return SHELL;
  if (!text) throw new Unclear("command", "Say what to run.");
  if (needsShell(text)) return ["/bin/sh", "-c", text];
  const split = words(text);
  if (!split) throw new Unclear("command", "A quote is not closed.");
  return split;
}

function number(d: Draft, field: "gpus" | "share" | "cpus" | "shards" | "retries" | "priority", what: string, lo: number, hi: number): number {
  const n = Number(d[field].trim());
  if (!d[field].trim() || !Number.isFinite(n) || n < lo || n > hi) throw new Unclear(field, `${what} is a number from ${lo} to ${hi}.`);
  return n;
}

/** "K=V" a line, or separated by commas where that cannot be part of a value. */
function pairs(text: string, field: "labels" | "vars", separator: RegExp): Record<string, string> {
  const out: Record<string, string> = {};
  for (const line of text.split(separator).map((l) => l.trim()).filter(Boolean)) {
    const eq = line.indexOf("=");
    if (eq < 1) throw new Unclear(field, `'${line}' is not NAME=VALUE.`);
    out[line.slice(0, eq)] = line.slice(eq + 1);
  }
  return out;
}

function parsed(d: Draft, field: "gpuMem" | "mem" | "time" | "maxCost", parse: (t: string) => number | null, like: string): number {
  const n = parse(d[field]);
  if (n === null) throw new Unclear(field, `'${d[field]}' is not ${like}.`);
  return n;
}

/** Throws Unclear when a field cannot be understood; whether the cloud agrees is its own matter. */
export function body(d: Draft): Spec {
  const b: Spec = { ...d.rest, argv: argvOf(d) };
  const want: Spec["want"] = {};
  if (d.name.trim()) b.name = d.name.trim();
  if (d.pool) b.pool = d.pool;
  if (d.project.trim()) b.project = d.project.trim();
  if (d.cwd.trim()) b.cwd = d.cwd.trim();
  if (d.gpu === "whole") want.gpus = Math.round(number(d, "gpus", "GPUs", 1, 1024));
  if (d.gpu === "share") want.gpu_milli = Math.round(number(d, "share", "A share of a GPU", 0.001, 0.999) * 1000);
  if (d.gpu !== "none" && d.gpuMem.trim()) want.gpu_mem_bytes = parsed(d, "gpuMem", parseSize, "a size such as 16G");
  if (d.cpus.trim()) want.cpu_milli = Math.round(number(d, "cpus", "CPUs", 0.001, 4096) * 1000);
  if (d.mem.trim()) want.mem_bytes = parsed(d, "mem", parseSize, "a size such as 16G");
  if (Object.keys(want).length) b.want = want;
  if (d.time.trim()) b.time_limit_usec = parsed(d, "time", parseDuration, "a time such as 90m or 1h30m");
  if (d.files === "environment" && d.environment) b.environment = d.environment;
  if (d.files === "image" && d.image.trim()) b.image = d.image.trim();
  if (d.secrets.length) b.secrets = d.secrets.map((n) => d.rest.secrets?.find((s) => typeof s !== "string" && s.name === n) ?? n);
  else delete b.secrets;
  if (d.labels.trim()) b.labels = pairs(d.labels, "labels", /[\n,]/);
  if (d.vars.trim()) b.env = { ...d.rest.env, ...pairs(d.vars, "vars", /\n/) };
  if (d.shards.trim() && d.kind === "command") {
    const n = Math.round(number(d, "shards", "Shards", 1, 100000));
    if (n > 1) b.shards = n;
  }
  if (d.retries.trim()) b.retries = Math.round(number(d, "retries", "Retries", 0, 1000));
  if (d.priority.trim()) b.priority = Math.round(number(d, "priority", "Priority", 0, 100000));
  if (d.preemptible) b.preemptible = true;
  if (d.maxCost.trim()) b.max_cost_micro = parsed(d, "maxCost", parseMoney, "an amount such as 12.50");
  if (d.kind === "notebook") b.session = b.name ?? "notebook"; // a place that a port can be led out of
  if (d.kind === "shell") {
    b.tty = SCREEN;
    b.stdin_open = true;
  }
  return b;
}

/** The command that does the same. */
export function line(d: Draft): string {
  const b = body(d);
  const out = [{ command: "vbatch", shell: "vrun", notebook: "virga notebook" }[d.kind]];
  const add = (option: string, value: string | number | undefined | false) => {
    if (value !== undefined && value !== false && value !== "") out.push(option, quote(String(value)));
  };
  add("-P", [b.pool, ...(b.also_pools ?? [])].filter(Boolean).join(","));
  if (b.want?.gpus) add("--gpus", b.want.gpus);
  if (b.want?.gpu_milli) add("--gpus", b.want.gpu_milli / 1000);
  if (b.want?.gpu_mem_bytes) add("--gpu-mem", d.gpuMem.trim());
  add("--gpu-model", b.gpu_model);
  if (b.want?.cpu_milli) add("--cpus", b.want.cpu_milli / 1000);
  if (b.want?.mem_bytes) add("--mem", d.mem.trim());
  if (b.time_limit_usec) add("--time", d.time.trim().replace(/\s+/g, ""));
  add("-n", b.name);
  add("--project", b.project);
  add("--env", b.environment);
  add("--image", b.image);
  for (const s of b.secrets ?? []) add("--secret", typeof s === "string" ? s : s.as_file ? `${s.name}:${s.as_file}` : s.as_var ? `${s.name}=${s.as_var}` : s.name);
  for (const [k, v] of Object.entries(b.labels ?? {})) add("-l", `${k}=${v}`);
  for (const [k, v] of Object.entries(pairs(d.vars, "vars", /\n/))) add("-e", `${k}=${v}`);
  add("-C", b.cwd);
  add("-N", b.shards);
  if (b.gang) out.push("--gang");
  for (const s of b.sweep ?? []) add("--sweep", `${s.name}=${s.value.join(",")}`);
  add("--retries", b.retries);
  add("--priority", b.priority);
  if (b.preemptible) out.push("--preemptible");
  if (b.max_cost_micro) add("--max-cost", d.maxCost.trim());
  if (d.kind !== "notebook") out.push("--", commandLine(b.argv));
  return out.join(" ");
}

/** How a port of a notebook's task is reached from one's own machine; null: it is none. `-C /`: the session has none of its folders. */
export function reach(t: Task): string | null {
  return t.session && t.argv[0] === "jupyter" ? `vrun -s ${quote(t.session)} -p ${NOTEBOOK_PORT}:${NOTEBOOK_PORT} -C / -- sleep infinity` : null;
}

/** The address that Jupyter printed, with its key, as one's own machine has it. Only such a one: a log says what its task wants. */
export function notebookAddress(log: string): string | null {
  const found = [...log.matchAll(/http:\/\/[\w.-]+:\d+(\/[\w/-]*)?\?token=([0-9a-f]{16,128})\b/g)].pop();
  return found ? `http://127.0.0.1:${NOTEBOOK_PORT}${found[1] ?? "/"}?token=${found[2]}` : null;
}

let kept: Draft | null = null;

const REST = ["also_pools", "gpu_model", "gpu_hard", "node_labels", "retry_on", "backoff_usec", "backoff_max_usec", "grace_signal", "grace_usec",
  "gang", "gang_policy", "sweep", "env", "secrets"] as const;

/** What the form cannot show of a task, without what was not said. */
function restOf(s: Spec): Partial<Spec> {
  const said = (v: unknown) => v !== null && v !== undefined && v !== false && (typeof v !== "object" || Object.keys(v as object).length > 0);
  return Object.fromEntries(REST.filter((k) => said(s[k])).map((k) => [k, s[k]]));
}

/** The form will begin with what this task was. */
export function again(t: Task) {
  const s: Spec = t.spec ?? { argv: t.argv, cwd: t.cwd ?? undefined, pool: t.pool ?? undefined, want: t.want ?? undefined, labels: t.labels, project: t.project ?? undefined };
  const argv = s.argv;
  const shell = argv.length === 3 && argv[0] === "/bin/sh" && argv[1] === "-c";
  const w = s.want ?? {};
  const mib = (n?: number) => (n ? (n % 2 ** 30 === 0 ? `${n / 2 ** 30}G` : `${Math.round(n / 2 ** 20)}M`) : "");
  kept = {
    ...BLANK,
    kind: s.tty ? "shell" : argv.join(" ") === NOTEBOOK.join(" ") ? "notebook" : "command",
    command: shell ? argv[2] : commandLine(argv),
    name: t.name ?? "",
    pool: s.pool ?? t.pool ?? "",
    gpu: w.gpus ? "whole" : w.gpu_milli ? "share" : "none",
    gpus: w.gpus ? String(w.gpus) : "1",
    share: w.gpu_milli ? String(w.gpu_milli / 1000) : "0.5",
    gpuMem: mib(w.gpu_mem_bytes),
    cpus: w.cpu_milli ? String(w.cpu_milli / 1000) : "",
    mem: mib(w.mem_bytes),
    time: s.time_limit_usec ? `${Math.round(s.time_limit_usec / 1e6)}s` : "",
    files: s.image ? "image" : s.environment ? "environment" : "node",
    environment: s.environment ?? "",
    image: s.image ?? "",
    secrets: (s.secrets ?? []).map((x) => (typeof x === "string" ? x : x.name)),
    project: s.project ?? "",
    labels: Object.entries(s.labels ?? {}).map(([k, v]) => `${k}=${v}`).join("\n"),
    rest: restOf(s),
    cwd: s.cwd ?? t.cwd ?? "",
    shards: s.shards && s.shards > 1 ? String(s.shards) : "",
    retries: s.retries ? String(s.retries) : "",
    preemptible: s.preemptible ?? false,
    priority: s.priority ? String(s.priority) : "",
    maxCost: s.max_cost_micro ? String(s.max_cost_micro / 1e6) : "",
  };
}

export function takeDraft(): Draft {
  const d = kept ?? { ...BLANK };
  kept = null;
  return d;
}
