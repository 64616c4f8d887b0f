// A real browser (Chromium) and what the web tests do with it. Run by tests/e2e/test_web.py, which says by variables
// where the cloud is: WEB_URL, WEB_TOKEN, WEB_OUT (pictures go there), CHROMIUM.
import { readFileSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

export const URL_ = process.env.WEB_URL;
export const OUT = process.env.WEB_OUT;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"];
export const WAIT = { timeout: Number(process.env.VIRGA_TEST_WAIT ?? 30) * 1000 };

export const tell = (what) => console.log(JSON.stringify(what));

export async function browser() {
  mkdirSync(OUT, { recursive: true });
  return chromium.launch({ executablePath: process.env.CHROMIUM, args: FLAGS });
}

/** A page of its own that notes whatever the console calls an error. */
export async function open(b, { width = 1280, height = 800, scheme = "light" } = {}) {
  const context = await b.newContext({ viewport: { width, height }, colorScheme: scheme, ignoreHTTPSErrors: true, reducedMotion: "reduce" });
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT.timeout);
  const errors = [];
  page.on("console", (m) => { if (m.type() === "error") errors.push(`${m.text()} (${m.location().url})`); });
  page.on("pageerror", (e) => errors.push(String(e)));
  return { context, page, errors };
}

export async function signIn(page, to = "/", token = process.env.WEB_TOKEN) {
  await page.goto(URL_ + to);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("navigation", { name: "Pages" }).waitFor();
}

export const picture = (page, name) => page.screenshot({ path: `${OUT}/${name}.png` });

/** As a link would, without loading everything anew. */
export const go = (page, path) => page.evaluate((to) => {
  history.pushState(null, "", to);
  dispatchEvent(new PopStateEvent("popstate"));
}, path);

/** Faults that keep somebody from using the page, or one part of it, by axe-core. */
export async function faults(page, rules, part) {
  // By the debugger, which the page's policy does not bind.
  if (!(await page.evaluate(() => Boolean(window.axe)))) {
    const cdp = await page.context().newCDPSession(page);
    await cdp.send("Runtime.evaluate", { expression: AXE });
    await cdp.detach();
  }
  const found = await page.evaluate(([only, of]) => window.axe.run(of ?? document, { resultTypes: ["violations"], ...(only ? { runOnly: only } : {}) }), [rules, part]);
  return found.violations.filter((v) => v.impact === "serious" || v.impact === "critical")
    .map((v) => `${v.impact} ${v.id}: ${v.nodes.slice(0, 3).map((n) => n.target.join(" ")).join(", ")}`);
}

export function must(truth, what) {
  if (!truth) throw new Error(what);
}
