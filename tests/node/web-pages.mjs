// Every page in light and dark and on a phone: no serious fault by axe-core, nothing in the console, a picture of each.
import { browser, faults, go, must, open, picture, signIn, tell, URL_ } from "./browser.mjs";

const TASK = process.env.WEB_TASK;
const PAGES = {
  home: "/", tasks: "/tasks", "tasks-none": "/tasks?search=nothing-has-this", task: `/tasks/${TASK}`, details: `/tasks/${TASK}?tab=about`,
  plots: `/tasks/${TASK}?tab=plots`, attempts: `/tasks/${TASK}?tab=attempts`, run: "/run", cluster: "/cluster", queue: "/queue",
  environments: "/environments", cost: "/cost", users: "/admin/users", teams: "/admin/teams", orgs: "/admin/orgs", tokens: "/admin/tokens",
  secrets: "/admin/secrets", pools: "/admin/pools", prices: "/admin/prices", hooks: "/admin/hooks", audit: "/admin/audit",
};

// Elements are the same in each form: what colours and widths can break is looked at in all, the rest once.
const LOOKS = ["color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size"];

const ALIKE = ["tasks-none", "attempts", "teams", "orgs", "tokens", "secrets", "pools", "hooks", "audit"]; // tables as others

const b = await browser();
const found = [];
let looked = 0;
try {
  for (const [name, how] of Object.entries({ light: {}, dark: { scheme: "dark" }, phone: { width: 390, height: 844 } })) {
    const { page, context, errors } = await open(b, how);
    await page.goto(URL_);
    await page.getByRole("heading", { name: "Sign in to Virga" }).waitFor();
    found.push(...(await faults(page)).map((f) => `sign-in ${name}: ${f}`));
    await signIn(page);
    for (const [what, path] of Object.entries(PAGES)) {
      if (name === "dark" && ALIKE.includes(what)) continue;
      if (name === "light") await page.goto(URL_ + path);
      else await go(page, path);
      await page.locator("#page h1").waitFor();
      await page.waitForFunction(() => !document.querySelector("#page .panel-body.grid[role=status]"));
      found.push(...(await faults(page, name === "light" ? undefined : LOOKS)).map((f) => `${what} ${name}: ${f}`));
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) found.push(`${what} ${name}: ${wide} px wider than the screen`);
      const alert = await page.locator("#page [role=alert]").allTextContents();
      if (alert.length) found.push(`${what} ${name}: says '${alert[0]}'`);
      await picture(page, `${what}-${name}`);
      looked++;
    }
    if (name === "light") {
      // Dialogs are pages, too.
      await page.goto(`${URL_}/cluster`);
      await page.locator(".cell").first().click();
      await page.getByRole("dialog").waitFor();
      found.push(...(await faults(page)).map((f) => `GPU: ${f}`));
      await picture(page, "gpu");
      await page.keyboard.press("Escape");
      await page.getByRole("dialog").waitFor({ state: "detached" });
      await page.keyboard.press("?");
      await page.getByRole("dialog").waitFor();
      found.push(...(await faults(page)).map((f) => `help: ${f}`));
      await page.keyboard.press("Escape");
      // By keys alone: the list, a task, back.
      await page.goto(`${URL_}/tasks`);
      await page.locator(".virtual .trow[tabindex='0']").focus();
      await page.keyboard.press("ArrowDown");
      await page.locator(".virtual .trow[data-index='1']:focus").waitFor();
      await page.keyboard.press("Enter");
      await page.waitForURL(/\/tasks\/[0-9a-f]{16}/);
      await page.keyboard.press("/");
      await page.locator("#finder:focus").waitFor();
    }
    if (errors.length) found.push(...errors.map((e) => `console ${name}: ${e}`));
    await context.close();
  }
  must(!found.length, `found:\n${found.join("\n")}`);
  tell({ pages: looked });
} finally {
  await b.close();
}
