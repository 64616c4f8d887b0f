// What Chromium's own trace says of a stretch of time: the main thread's work, layouts, and what became of each frame.
const CATEGORIES = "devtools.timeline,disabled-by-default-devtools.timeline,disabled-by-default-devtools.timeline.frame";

const SCRIPTS = new Set(["FunctionCall", "FireAnimationFrame", "TimerFire", "EventDispatch", "RunMicrotasks"]);

/** The thread that runs the page's scripts. */
function mainOf(events) {
  const runs = new Map();
  for (const e of events) if (e.ph === "X" && (e.name === "FunctionCall" || e.name === "FireAnimationFrame")) runs.set(`${e.pid}/${e.tid}`, (runs.get(`${e.pid}/${e.tid}`) ?? 0) + 1);
  return [...runs].sort((a, c) => c[1] - a[1])[0]?.[0];
}

/** Layouts that a script asked for by measuring, inside of its own time. */
function forcedLayouts(layouts, scripts) {
  return layouts.filter((l) => scripts.some((s) => s.ts <= l.ts && l.ts < s.ts + s.dur)).length;
}

/** Milliseconds are the processor's where the trace has them: others' load is then no part of it. */
export async function traced(cdp, act) {
  const events = [];
  const collect = (e) => events.push(...e.value);
  cdp.on("Tracing.dataCollected", collect);
  await cdp.send("Tracing.start", { categories: CATEGORIES, transferMode: "ReportEvents" });
  const value = await act();
  const finished = new Promise((done) => cdp.once("Tracing.tracingComplete", done));
  await cdp.send("Tracing.end");
  await finished;
  cdp.off("Tracing.dataCollected", collect);

  const main = mainOf(events);
  const mine = events.filter((e) => e.ph === "X" && `${e.pid}/${e.tid}` === main);
  const tasks = mine.filter((e) => e.name === "RunTask").map((e) => (e.tdur ?? e.dur ?? 0) / 1000);
  const layouts = mine.filter((e) => e.name === "Layout");
  const scripts = mine.filter((e) => SCRIPTS.has(e.name));
  const frames = {};
  for (const e of events) {
    const f = e.name === "PipelineReporter" && e.ph === "b" && (e.args.frame_reporter ?? e.args.chrome_frame_reporter);
    if (f && f.scroll_state !== "SCROLL_NONE") frames[f.state.replace("STATE_", "").toLowerCase()] = (frames[f.state.replace("STATE_", "").toLowerCase()] ?? 0) + 1;
  }
  return { value, busy: tasks.reduce((s, t) => s + t, 0), longest: Math.max(0, ...tasks), layouts: layouts.length, forced: forcedLayouts(layouts, scripts), frames };
}
