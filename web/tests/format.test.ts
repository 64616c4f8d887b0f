import assert from "node:assert/strict";
import test from "node:test";
import { commandLine, duration, money, needsShell, parseDuration, parseMoney, parseSize, resources, size, words, zone } from "../src/format";

test("sizes, times and money have few digits and a unit", () => {
  assert.equal(size(0), "0 B");
  assert.equal(size(1536), "1.5 KiB");
  assert.equal(size(80 * 2 ** 30), "80 GiB");
  assert.equal(size(null), "–");
  assert.equal(duration(1500), "2 ms");
  assert.equal(duration(3.2e6), "3.2 s");
  assert.equal(duration(3725e6), "1 h 02 min");
  assert.equal(money(1_234_567_890_000, "EUR"), "1 234 567.89 EUR");
  assert.equal(money(1), "< 0.01");
  assert.equal(money(0), "0.00");
  assert.equal(money(-2_500_000), "−2.50");
  assert.equal(resources({ gpus: 2, cpu_milli: 1500, mem_bytes: 2 ** 34 }), "2 GPUs, 1.5 CPUs, 16 GiB");
});

test("what is typed is understood or refused, never guessed", () => {
  assert.equal(parseDuration("1h30m"), 5400e6);
  assert.equal(parseDuration("90"), 90e6);
  assert.equal(parseDuration("soon"), null);
  assert.equal(parseDuration("1h x"), null);
  assert.equal(parseSize("16G"), 16 * 2 ** 30);
  assert.equal(parseSize("1.5 GiB"), 1.5 * 2 ** 30);
  assert.equal(parseSize("16 apples"), null);
  assert.equal(parseMoney("12.5"), 12_500_000);
  assert.equal(parseMoney("0.000001"), 1);
  assert.equal(parseMoney("1e9"), null);
  assert.equal(parseMoney("-1"), null);
});

test("a command survives being written as a line and read again", () => {
  for (const argv of [["a"], ["a b", "c'd", '"e"', "", "$f", "\\"], ["python3", "-c", "print('x y')"]])
    assert.deepEqual(words(commandLine(argv)), argv);
  assert.equal(words("echo 'open"), null);
  assert.deepEqual(words('a "b \\" c" d\\ e'), ["a", 'b " c', "d e"]);
});

test("only a line with a shell's own characters needs a shell", () => {
  for (const line of ["a | b", "a > b", "a $HOME", "X=1 a", "a; b", "ls *.py"]) assert.equal(needsShell(line), true, line);
  for (const line of ["python3 train.py --lr=0.1", "echo 'a | b'"]) assert.equal(needsShell(line), false, line);
});

test("days keep to the clocks of whoever looks, also when those were changed", () => {
  process.env.TZ = "Europe/Berlin";
  const usec = (text: string) => Date.parse(text) * 1000;
  assert.deepEqual(zone(usec("2026-07-01T00:00:00+02:00"), usec("2026-07-20T12:00:00Z")), { zone_minutes: 120 });
  assert.deepEqual(zone(usec("2026-10-20T00:00:00+02:00"), usec("2026-11-02T12:00:00Z")), { zone_minutes: 120, zone_changes: `${usec("2026-10-25T01:00:00Z")}:60` });
  assert.deepEqual(zone(usec("2026-03-20T00:00:00+01:00"), usec("2026-04-02T12:00:00.5Z")), { zone_minutes: 60, zone_changes: `${usec("2026-03-29T01:00:00Z")}:120` });
  process.env.TZ = "UTC";
  assert.deepEqual(zone(usec("2026-03-20T00:00:00Z"), usec("2026-04-02T12:00:00Z")), { zone_minutes: 0 });
});
