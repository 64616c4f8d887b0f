import assert from "node:assert/strict";
import test from "node:test";
import { again, BLANK, body, line, notebookAddress, reach, takeDraft, Unclear, type Draft } from "../src/model/draft";
import type { Task } from "../src/types";

const draft = (more: Partial<Draft>): Draft => ({ ...BLANK, ...more });

test("what is left empty is not sent", () => {
  assert.deepEqual(body(draft({ command: "python3 train.py" })), { argv: ["python3", "train.py"] });
});

test("the request and the line say the same", () => {
  const d = draft({ command: "a | b", pool: "big", gpu: "share", share: "0.25", mem: "16G", time: "1h30m", vars: "K=V W", shards: "4", secrets: ["S"], maxCost: "2.5" });
  assert.deepEqual(body(d), {
    argv: ["/bin/sh", "-c", "a | b"], pool: "big", want: { gpu_milli: 250, mem_bytes: 16 * 2 ** 30 }, time_limit_usec: 5400e6,
    env: { K: "V W" }, shards: 4, secrets: ["S"], max_cost_micro: 2_500_000,
  });
  assert.equal(line(d), "vbatch -P big --gpus 0.25 --mem 16G --time 1h30m --secret S -e 'K=V W' -N 4 --max-cost 2.5 -- /bin/sh -c 'a | b'");
});

test("a terminal has a screen and an input", () => {
  const b = body(draft({ kind: "shell" }));
  assert.deepEqual(b.argv, ["/bin/bash", "-l"]);
  assert.ok(b.tty && b.stdin_open);
  assert.match(line(draft({ kind: "shell" })), /^vrun -- /);
});

test("a notebook lives in a session, and says how it is reached", () => {
  const d = draft({ kind: "notebook", name: "nb", gpu: "whole" });
  const b = body(d);
  assert.equal(b.session, "nb");
  assert.equal(line(d), "virga notebook --gpus 1 -n nb");
  assert.equal(reach({ session: "nb", argv: b.argv } as unknown as Task), "vrun -s nb -p 8888:8888 -C / -- sleep infinity");
  assert.equal(reach({ session: "nb", argv: ["a"] } as unknown as Task), null);
});

test("what cannot be understood names its field", () => {
  for (const [field, more] of Object.entries({ command: { command: "" }, mem: { command: "a", mem: "x" }, vars: { command: "a", vars: "novalue" }, share: { command: "a", gpu: "share", share: "2" } } as const))
    assert.throws(() => body(draft(more as Partial<Draft>)), (e) => e instanceof Unclear && e.field === field, field);
});

test("a task runs again as it ran", () => {
  const spec = { argv: ["/bin/sh", "-c", "a | b"], pool: "p", want: { gpus: 2, mem_bytes: 2 ** 30 }, time_limit_usec: 60e6, env: { A: "1", B: "two\nlines" }, labels: { k: "v" }, cwd: "/x", gpu_model: "A100", secrets: [{ name: "S", as_var: "T" }] };
  const told = { ...spec, gang: null, sweep: [], session: null, retry_on: [], image: null, max_cost_micro: null }; // as the cloud tells it
  again({ name: "n", argv: spec.argv, labels: {}, spec: told } as unknown as Task);
  const d = takeDraft();
  assert.deepEqual(body(d), { ...spec, name: "n" });
  assert.deepEqual(body({ ...d, vars: "A=2" }).env, { A: "2", B: "two\nlines" });
  assert.equal(body({ ...d, secrets: [] }).secrets, undefined);
  assert.equal(line(d), "vbatch -P p --gpus 2 --gpu-model A100 --mem 1G --time 60s -n n --secret S=T -l k=v -C /x -- /bin/sh -c 'a | b'");
  assert.deepEqual(takeDraft(), BLANK);
});

test("a notebook's address is the one it printed last, at this machine's port, and nothing else", () => {
  const key = "0123456789abcdef0123456789abcdef";
  assert.equal(notebookAddress(`  http://127.0.0.1:8889/lab?token=${"f".repeat(32)}\n  http://localhost:8889/lab?token=${key}\n`), `http://127.0.0.1:8888/lab?token=${key}`);
  assert.equal(notebookAddress(`http://host-3:8888/?token=${key}`), `http://127.0.0.1:8888/?token=${key}`);
  assert.equal(notebookAddress("http://127.0.0.1:8888/lab?token=<b>"), null);
  assert.equal(notebookAddress(`javascript://x?token=${key}`), null);
  assert.equal(notebookAddress(""), null);
});
