// A hundred thousand tasks in the list: how many elements and requests that takes, and how smoothly it scrolls.
import { browser, must, open, picture, signIn, tell } from "./browser.mjs";

const TOTAL = Number(process.env.WEB_TOTAL);
const FRAMES = 300;
const STEP = 96; // pixels a frame: three rows, faster than anybody reads

const b = await browser();
try {
  const { page, errors } = await open(b);
  await signIn(page, "/tasks");
  await page.locator(".virtual .trow a").first().waitFor();
  const count = await page.locator("[role=treegrid]").getAttribute("aria-rowcount");
  must(Number(count) === TOTAL + 1, `the list says ${count} rows, not ${TOTAL} and a heading`);

  // The main thread's own time for each frame, as the browser traces it, and when frames came.
  const cdp = await page.context().newCDPSession(page);
  const events = [];
  cdp.on("Tracing.dataCollected", (e) => events.push(...e.value));
  await cdp.send("Tracing.start", { categories: "devtools.timeline,disabled-by-default-devtools.timeline", transferMode: "ReportEvents" });
  const seen = await page.evaluate(async ({ frames, step }) => {
    const el = document.querySelector(".virtual");
    const gaps = [];
    let most = 0;
    let blank = 0;
    await new Promise((done) => {
      let last = 0;
      let n = 0;
      const tick = (t) => {
        if (last) gaps.push(t - last);
        last = t;
        if (n % 20 === 0) most = Math.max(most, document.querySelectorAll("*").length);
        const at = Math.floor((el.scrollTop + el.clientHeight / 2) / 32);
        if (!document.querySelector(`.virtual .trow[data-index="${at}"]`)) blank++;
        el.scrollTop += step;
        if (++n < frames) requestAnimationFrame(tick);
        else done();
      };
      requestAnimationFrame(tick);
    });
    gaps.sort((a, c) => a - c);
    return { gaps, most, blank, requests: Number(document.querySelector("[data-requests]").dataset.requests), top: el.scrollTop };
  }, { frames: FRAMES, step: STEP });
  const finished = new Promise((done) => cdp.once("Tracing.tracingComplete", done));
  await cdp.send("Tracing.end");
  await finished;
  const main = new Map();
  for (const e of events) if (e.name === "FireAnimationFrame" && e.ph === "X") main.set(e.tid, (main.get(e.tid) ?? 0) + 1);
  const thread = [...main].sort((a, c) => c[1] - a[1])[0]?.[0];
  const work = events.filter((e) => e.tid === thread && e.ph === "X" && (e.name === "RunTask" || e.name === "ThreadControllerImpl::RunTask"));
  const busy = work.reduce((s, e) => s + (e.tdur ?? e.dur ?? 0), 0) / 1000;
  const at = (q) => Number(seen.gaps[Math.floor(seen.gaps.length * q)].toFixed(1));
  tell({
    rows: TOTAL, frames: FRAMES, frame_ms_median: at(0.5), frame_ms_p95: at(0.95), frames_over_25_ms: seen.gaps.filter((g) => g > 25).length,
    main_thread_ms_per_frame: Number((busy / FRAMES).toFixed(2)), elements: seen.most, requests: seen.requests, rows_without_element: seen.blank,
  });
  must(seen.top > (FRAMES - 5) * STEP * 0.9, `it scrolled to ${seen.top}`);
  must(seen.most < 1500, `${seen.most} elements are in the page`);
  must(seen.requests <= 14, `${seen.requests} requests for ${Math.round(seen.top / 32)} rows`);
  await picture(page, "list");

  // To the very end, by one key: a hundred requests, one after the other.
  if (process.env.VIRGA_TEST_LONG) {
    await page.locator(".virtual .trow[tabindex='0'], .virtual .trow a").first().focus();
    await page.keyboard.press("End");
    const last = page.locator(`.virtual .trow[data-index="${TOTAL - 1}"] a`);
    await last.waitFor();
    must((await last.textContent()) === "t00000", `the oldest is at the end, not ${await last.textContent()}`);
    const after = await page.evaluate(() => ({ requests: Number(document.querySelector("[data-requests]").dataset.requests), most: document.querySelectorAll("*").length }));
    must(after.requests <= TOTAL / 1000 + 20, `${after.requests} requests for all`);
    must(after.most < 1500, `${after.most} elements at the end`);
    tell({ end_requests: after.requests });
  }

  // What is searched for is the server's to find.
  await page.getByLabel("Search tasks").fill("t77777");
  await page.locator(".virtual .trow a", { hasText: /^t77777$/ }).waitFor();
  await page.waitForFunction(() => document.querySelector("[role=treegrid]").getAttribute("aria-rowcount") === "2");
  must(new URL(page.url()).searchParams.get("search") === "t77777", "the address has the search");
  must(errors.length === 0, `the console has errors:\n${errors.join("\n")}`);
} finally {
  await b.close();
}
