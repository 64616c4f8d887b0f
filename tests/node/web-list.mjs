// A hundred thousand tasks in the list: how many elements and requests that takes, and how smoothly it scrolls.
import { browser, must, open, picture, signIn, tell } from "./browser.mjs";
import { traced } from "./trace.mjs";

const TOTAL = Number(process.env.WEB_TOTAL);
const ROW = 32;
const FRAMES = 300;
const STEP = 96; // pixels a frame: three rows, faster than anybody reads
const WHEEL = { px: 17280, speed: 5760 }; // pixels, pixels a second: the same, by a wheel

const b = await browser();
try {
  const { page, errors } = await open(b);
  await signIn(page, "/tasks");
  await page.locator(".virtual .trow a").first().waitFor();
  const count = await page.locator("[role=treegrid]").getAttribute("aria-rowcount");
  must(Number(count) === TOTAL + 1, `the list says ${count} rows, not ${TOTAL} and a heading`);
  const cdp = await page.context().newCDPSession(page);

  // The compositor scrolls it: the list has a layer of its own, as high as all rows.
  const layers = [];
  cdp.on("LayerTree.layerTreeDidChange", (e) => layers.push(...(e.layers ?? [])));
  await cdp.send("DOM.enable");
  await cdp.send("LayerTree.enable");
  await page.evaluate(() => new Promise((done) => { document.querySelector(".virtual").scrollTop = 1; requestAnimationFrame(() => requestAnimationFrame(done)); }));
  for (let i = 0; i < 100 && !layers.length; i++) await page.evaluate(() => new Promise(requestAnimationFrame));
  must(layers.some((l) => l.height === TOTAL * ROW), `no layer is ${TOTAL * ROW} high, the page scrolls by painting: ${layers.map((l) => l.height)}`);
  await cdp.send("LayerTree.disable");

  // By script, three rows in each frame: the main thread's own time for that, and when frames came.
  const byScript = await traced(cdp, () => page.evaluate(async ({ frames, step, row }) => {
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
        const at = Math.floor((el.scrollTop + el.clientHeight / 2) / row);
        if (!document.querySelector(`.virtual .trow[data-index="${at}"]`)) blank++;
        el.scrollTop += step;
        if (++n < frames) requestAnimationFrame(tick);
        else done();
      };
      requestAnimationFrame(tick);
    });
    gaps.sort((a, c) => a - c);
    return { gaps, most, blank, requests: Number(document.querySelector("[data-requests]").dataset.requests), top: el.scrollTop };
  }, { frames: FRAMES, step: STEP, row: ROW }));
  const seen = byScript.value;
  const at = (q) => Number(seen.gaps[Math.floor(seen.gaps.length * q)].toFixed(1));
  tell({
    rows: TOTAL, frames: FRAMES, frame_ms_median: at(0.5), frame_ms_p95: at(0.95), frames_over_25_ms: seen.gaps.filter((g) => g > 25).length,
    main_thread_ms_per_frame: Number((byScript.busy / FRAMES).toFixed(2)), longest_task_ms: Number(byScript.longest.toFixed(1)),
    elements: seen.most, requests: seen.requests, rows_without_element: seen.blank,
  });
  must(seen.top > (FRAMES - 5) * STEP * 0.9, `it scrolled to ${seen.top}`);
  must(seen.most < 1500, `${seen.most} elements are in the page`);
  must(seen.requests <= 14, `${seen.requests} requests for ${Math.round(seen.top / ROW)} rows`);
  await picture(page, "list");

  // By a wheel, as a person does: what the browser itself says of its frames, and what was written into the document.
  await page.evaluate(() => {
    const all = document.querySelector(".virtual-all");
    const seen = (window.seenChanges = { made: 0, texts: 0, attributes: 0, indexes: 0 });
    let last = 0;
    const box = document.querySelector(".virtual");
    box.addEventListener("scroll", () => { last = performance.now(); }, { capture: true });
    window.seenObserver = new MutationObserver((records) => {
      for (const r of records) {
        if (r.type === "childList" && performance.now() - last < 100) seen.made += r.addedNodes.length + r.removedNodes.length; // later it is put in order
        else if (r.type === "characterData") seen.texts++;
        else if (r.attributeName === "data-index") seen.indexes++;
        else if (r.type === "attributes") seen.attributes++;
      }
    });
    window.seenObserver.observe(all, { childList: true, subtree: true, characterData: true, attributes: true });
  });
  const from = seen.top;
  const box = await page.locator(".virtual").boundingBox();
  const byWheel = await traced(cdp, () => cdp.send("Input.synthesizeScrollGesture", {
    x: box.x + box.width / 2, y: box.y + box.height / 2, yDistance: -WHEEL.px, speed: WHEEL.speed, gestureSourceType: "mouse", preventFling: true,
  }));
  const changes = await page.evaluate(() => ({ ...window.seenChanges, top: document.querySelector(".virtual").scrollTop }));
  await page.evaluate(() => window.seenObserver.disconnect());
  tell({ wheel_frames: byWheel.frames, wheel_layouts: byWheel.layouts, wheel_layouts_forced: byWheel.forced, wheel_changes: changes });
  must(changes.top - from > WHEEL.px * 0.9, `the wheel scrolled from ${from} to ${changes.top}`);
  must(changes.made === 0, `${changes.made} elements were made or removed while it scrolled`);
  must(changes.indexes > 0 && changes.indexes <= (changes.top - from) / ROW + 60, `${changes.indexes} rows were written to scroll by ${(changes.top - from) / ROW}`);
  must(changes.texts <= 8 * changes.indexes + 400, `${changes.texts} texts were written for ${changes.indexes} rows`);
  must(byWheel.forced === 0, `${byWheel.forced} times a script had the page laid out at once`);

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
