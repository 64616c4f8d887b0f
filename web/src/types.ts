// What the API answers: the same objects as `virga ... -o json` prints. Times are microseconds since 1970, 0 or null
// for none; money is in millionths.

export interface Resources {
  cpu_milli: number;
  mem_bytes: number;
  gpus: number;
  gpu_milli: number;
  gpu_mem_bytes: number;
}

export interface Progress {
  total: number;
  blocked: number;
  queued: number;
  running: number;
  succeeded: number;
  failed: number;
  cancelled: number;
  expected_end_usec: number;
}

export interface GpuUsage {
  sm_mean_milli: number | null;
  sm_max_percent: number | null;
  mem_peak_bytes: number | null;
  energy_mj: number | null;
  power_mw: number | null;
  idle_usec: number | null;
  share_limit_bytes: number | null;
  share_used_bytes: number | null;
}

export type State = "blocked" | "queued" | "starting" | "running" | "succeeded" | "failed" | "cancelled";

export interface Task {
  id: string;
  name: string | null;
  state: State;
  status: number | null;
  reason: string | null;
  notice: string | null;
  argv: string[];
  cwd: string | null;
  user: string;
  team: string | null;
  project?: string | null; // only when it has one
  pool: string | null;
  node: string | null;
  session: string | null;
  attempt: number;
  parent: string | null;
  interactive: boolean;
  want: Resources | null;
  labels: Record<string, string>;
  created_usec: number;
  started_usec: number;
  ended_usec: number;
  time_limit_usec: number;
  out_bytes: number;
  cpu_usec: number;
  mem_peak_bytes: number;
  gpus: number[];
  gpu_usage: GpuUsage | null;
  members: number;
  progress: Progress | null;
  group: string | null;
  index: number | null;
  of: number | null;
  gang: boolean;
  after: string[];
  priority: number | null;
  key?: string;
  retries_left: number;
  preempted: number;
  expected_start_usec: number;
  expected_end_usec: number;
  cost_micro: number | null;
  currency: string | null;
  secrets: string[];
  org: string | null;
  spec?: Spec | null; // of one task that was asked for by its owner
}

/** What POST /tasks takes. */
export interface Spec {
  argv: string[];
  name?: string;
  pool?: string;
  project?: string;
  cwd?: string;
  env?: Record<string, string>;
  want?: Partial<Resources>;
  labels?: Record<string, string>;
  priority?: number;
  time_limit_usec?: number;
  retries?: number;
  preemptible?: boolean;
  max_cost_micro?: number;
  shards?: number;
  gang?: boolean;
  secrets?: (string | { name: string; as_var?: string; as_file?: string })[];
  environment?: string;
  image?: string;
  tty?: { rows: number; cols: number } | null;
  stdin_open?: boolean;
  session?: string;
  also_pools?: string[];
  gpu_model?: string;
  gpu_hard?: boolean;
  node_labels?: Record<string, string>;
  retry_on?: number[];
  backoff_usec?: number;
  backoff_max_usec?: number;
  grace_signal?: number;
  grace_usec?: number;
  gang_policy?: string;
  sweep?: { name: string; value: string[] }[];
}

export interface TaskPage {
  tasks: Task[];
  next: string | null;
  total: number | null;
}

export interface Why {
  state: string | null;
  code: string | null;
  text: string | null;
  ahead: number;
  pool: string | null;
  node: string | null;
  holders: { tenant: string | null; tasks: number; gpu_milli: number; until_usec: number }[];
  expected_start_usec: number;
  expected_run_usec: number;
  basis: string | null;
  cost_micro: number | null;
  currency: string | null;
}

export interface Attempt {
  attempt: number;
  node: string | null;
  pool: string | null;
  from_usec: number;
  until_usec: number;
  how: string | null;
  held: Resources | null;
  gpu_usage: GpuUsage | null;
  cost_micro: number | null;
  cpu_usec: number;
  mem_peak_bytes: number;
}

export interface Series {
  when_usec: number[];
  cpu_milli: number[];
  mem_bytes: number[];
  gpu_percent: number[];
  gpu_mem_bytes: number[];
  power_mw: number[];
  read_bytes: number[];
  write_bytes: number[];
  cpu_milli_limit: number | null;
  mem_bytes_limit: number | null;
  gpu_mem_bytes_limit: number | null;
}

export interface NodeInfo {
  id: string;
  name: string;
  state: string;
  unfit: string | null;
  total: Resources;
  used: Resources;
  tasks: number;
  gpu_model: string | null;
  labels: Record<string, string>;
  pools: string[];
  version: string | null;
  address: string | null;
  last_seen_usec: number;
}

export interface Gpu {
  node: string;
  index: number;
  model: string | null;
  simulated: boolean;
  state: string;
  reason: string | null;
  fault: string | null;
  mem_bytes: number | null;
  mem_used_bytes: number | null;
  sm_percent: number | null;
  power_mw: number | null;
  power_limit_mw: number | null;
  temp_c: number | null;
  driver: string | null;
  uuid: string | null;
  ecc_uncorrected: number | null;
  xid: number | null;
  holders: { task: string | null; name: string | null; user: string | null; gpu_milli: number; usage: GpuUsage | null }[]; // of others: who is not told
}

export interface Pool {
  name: string;
  class: string;
  default: boolean;
  shape: Resources | null;
  nodes: number;
  free_slots: number;
  total_slots: number;
  running: number;
  queued: number;
  network: string | null;
  description: string | null;
  price: Price | null;
}

export interface QueueRow {
  task: string | null; // of others: what and who is not told
  name: string | null;
  user: string | null;
  team: string | null;
  pool: string | null;
  want: Resources | null;
  priority: number;
  members: number;
  created_usec: number;
  expected_start_usec: number;
}

export interface TenantRow {
  name: string;
  queued: number;
  running: number;
  gpu_milli: number;
  cpu_milli: number;
  quota_gpu_milli: number;
  limit_gpu_milli: number | null;
  weight: number;
  fair_ppm: number;
  share_ppm: number;
  usage_ppm: number;
}

export interface Queue {
  queue: QueueRow[];
  total: number;
  tenants: TenantRow[];
}

export interface Me {
  user: string;
  team: string | null;
  org: string | null;
  role: string;
  acts: string[];
  email: string | null;
  full_name: string | null;
  cloud: string | null;
  version: string | null;
  currency: string | null;
  expires_usec: number;
}

export interface Environment {
  name: string;
  version: number;
  owner: string;
  files: number;
  bytes: number;
  missing: number;
  source: string | null;
  created_usec: number;
}

export interface CostRow {
  key: string[];
  cost_micro: number;
  gpu_msec: number;
  cpu_msec: number;
  held_msec: number;
  gpu_busy_msec: number;
  energy_mj: number;
  co2_mg: number;
  tasks: number;
  idle_cost_micro: number;
}

export interface Cost {
  rows: CostRow[];
  total: CostRow;
  currency: string | null;
  from_usec: number;
  until_usec: number;
  around_clock_micro: number;
  running_micro: number;
  more: number;
}

export interface Budget {
  name: string;
  scope: string;
  limit_micro: number;
  period: string;
  warn_percent: number[];
  policy: string;
  grace_usec: number;
  paused: boolean;
  spent_micro: number;
  rate_micro_hour: number;
  from_usec: number;
  until_usec: number;
  reached_usec: number;
  state: string;
  currency: string | null;
}

export interface Price {
  id: number;
  pool: string | null;
  class: string | null;
  from_usec: number;
  gpu_hour_micro: number;
  cpu_hour_micro: number;
  gib_hour_micro: number;
  storage_gib_month_micro: number;
  idle_milli: number;
  preemptible_milli: number;
  currency: string | null;
  who: string | null;
  set_usec: number;
}

export interface Status {
  cloud: string | null;
  version: string;
  nodes: number;
  nodes_ready: number;
  running: number;
  queued: number;
}
