import assert from "node:assert/strict";
import test from "node:test";
import { bare, LogLines, marked, spans } from "../src/model/log-lines";

const texts = (log: LogLines) => log.lines.map((l) => bare(l.text));

test("lines are the same however the bytes are cut", () => {
  const all = "one\ntwo\x1b[31m red\nstill\x1b[0m\n\nlast";
  const whole = new LogLines();
  whole.append(all, false);
  assert.deepEqual(texts(whole), ["one", "two red", "still", "", "last"]);
  for (let cut = 0; cut <= all.length; cut++) {
    const log = new LogLines();
    log.append(all.slice(0, cut), false);
    log.append(all.slice(cut), false);
    assert.deepEqual(texts(log), texts(whole), `cut at ${cut}`);
    assert.deepEqual(log.lines.map(spans), whole.lines.map(spans), `cut at ${cut}`);
  }
});

test("colours go on over line ends until they are taken back", () => {
  const log = new LogLines();
  log.append("\x1b[1;32mok\nmore\x1b[0m plain\n", false);
  assert.deepEqual(spans(log.lines[0]), [{ text: "ok", style: "a-bold f2" }]);
  assert.deepEqual(spans(log.lines[1]), [{ text: "more", style: "a-bold f2" }, { text: " plain", style: "" }]);
});

test("a carriage return writes over the line, and one before a line end does not", () => {
  const log = new LogLines();
  log.append("10%\r50%\r100%\ndos\r\n", false);
  assert.deepEqual(texts(log), ["100%", "dos"]);
});

test("errors and output do not run into one line", () => {
  const log = new LogLines();
  log.append("out", false);
  log.append("err\n", true);
  log.append("put\n", false);
  assert.deepEqual(log.lines.map((l) => l.err), [false, true, false]);
});

test("what is not shown by a terminal is not shown here, and finds are marked across colours", () => {
  const log = new LogLines();
  log.append("\x1b]0;title\x07a\x1b[2Kb\x00c \x1b[38;5;196mfo\x1b[0mo bar\n", false);
  assert.equal(bare(log.lines[0].text), "abc foo bar");
  const parts = marked(spans(log.lines[0]), "FOO");
  assert.equal(parts.filter((p) => p.mark).map((p) => p.text).join(""), "foo");
  assert.equal(parts.map((p) => p.text).join(""), "abc foo bar");
});

test("the newest hundred thousand lines are kept", () => {
  const log = new LogLines();
  log.append("x\n".repeat(100_500), false);
  assert.equal(log.lines.length, 100_000);
  assert.equal(log.dropped, 500);
});
