// Every dialog that changes the cloud, with the keys alone, as an administrator; then the same page, and the same requests, as a
// member, who finds none of them and is refused. At the end the member's token is revoked under his open page.
import { createServer } from "node:http";
import { browser, faults, go, must, open, picture, signIn, tell, WAIT } from "./browser.mjs";

const b = await browser();
const found = [];

const focused = (page) => page.evaluate(() => {
  const e = document.activeElement;
  return e?.labels?.[0]?.textContent ?? e?.getAttribute("aria-label") ?? e?.textContent ?? "";
});

/** Tab until this has the focus; its name is what a person reads. */
async function tabTo(page, name) {
  for (let i = 0; i < 20; i++) {
    if ((await focused(page)).trim() === name) return;
    await page.keyboard.press("Tab");
  }
  throw new Error(`no Tab leads to '${name}', the last was '${await focused(page)}'`);
}

/** Of a list that has the focus; by the arrows, because letters that are typed slowly mean something else. */
async function choose(page, value) {
  await page.keyboard.press("Home");
  for (let i = 0; i < 50; i++) {
    if ((await page.evaluate(() => document.activeElement.selectedOptions[0]?.textContent)) === value) return;
    await page.keyboard.press("ArrowDown");
  }
  throw new Error(`no arrow leads to '${value}'`);
}

/** Opens the dialog twice: Escape gives the focus back to where it was; then what is written is sent by Enter. */
async function dialog(page, opener, fields, yes) {
  const box = page.getByRole("dialog");
  await opener.focus();
  await page.keyboard.press("Enter");
  await box.waitFor();
  const title = await box.getByRole("heading").textContent();
  found.push(...(await faults(page, undefined, "dialog")).map((f) => `${title}: ${f}`));
  await page.keyboard.press("Escape");
  await box.waitFor({ state: "detached" });
  const back = await page.waitForFunction((e) => e === document.activeElement, await opener.elementHandle(), WAIT).catch(() => null);
  must(back, `${title}: Escape gives the focus back, not to '${await focused(page)}'`);
  await page.keyboard.press("Enter");
  await box.waitFor();
  for (const [name, value] of Object.entries(fields)) {
    await tabTo(page, name);
    if (await page.evaluate(() => document.activeElement instanceof HTMLSelectElement)) {
      await choose(page, value);
      continue;
    }
    if (await page.evaluate(() => document.activeElement instanceof HTMLInputElement)) await page.keyboard.press("Control+A");
    await page.keyboard.type(value);
  }
  await tabTo(page, yes);
  await page.keyboard.press("Enter");
  await box.waitFor({ state: "detached" });
}

const button = (page, name) => page.getByRole("button", { name, exact: true });
const row = (page, text) => page.locator("tbody tr", { hasText: text });

let told = 0;
const listener = createServer((request, answer) => {
  request.resume().on("end", () => { told++; answer.writeHead(204).end(); });
});
await new Promise((done) => listener.listen(0, "127.0.0.1", done));

try {
  const { page, errors } = await open(b);
  await signIn(page, "/admin/teams");

  await dialog(page, button(page, "Team"), { Name: "blue" }, "Add");
  await row(page, "blue").waitFor();

  await go(page, "/admin/users");
  await dialog(page, button(page, "User"), { Name: "nia", "Full name": "Nia Ode", "E-mail": "nia@example.org", Team: "blue", Role: "member" }, "Add");
  await row(page, "nia").filter({ hasText: "member" }).waitFor();
  await dialog(page, row(page, "nia").getByRole("button", { name: "Change…" }), { Role: "lead" }, "Change");
  await row(page, "nia").filter({ hasText: "lead" }).waitFor();

  await go(page, "/admin/tokens");
  await dialog(page, button(page, "Token"), { Name: "of-nia", User: "nia", Lasts: "2h", "May only": "read" }, "Make");
  await page.getByText("It is shown once").waitFor();
  const made = await page.locator(".note code").textContent();
  must(/^vgt_/.test(made), `the token is shown: ${made}`);
  await button(page, "Done").focus();
  await page.keyboard.press("Enter");
  await page.getByText("It is shown once").waitFor({ state: "detached" });
  must(!(await page.content()).includes(made), "the token is nowhere in the page any more");
  await dialog(page, row(page, "of-nia").getByRole("button", { name: "Revoke…" }), {}, "Remove");
  await row(page, "of-nia").waitFor({ state: "detached" });

  await go(page, "/admin/secrets");
  await dialog(page, button(page, "Secret"), { Name: "WEB_KEY", Value: "s3cret-of-the-web" }, "Keep");
  await row(page, "WEB_KEY").waitFor();
  must(!(await page.content()).includes("s3cret-of-the-web"), "a secret's value is nowhere in the page");

  await go(page, "/admin/prices");
  await dialog(page, button(page, "Price"), { Pool: "shared", "GPU-hour": "7.25", "CPU-hour": "0.5" }, "Set from now on");
  await row(page, "7.25").filter({ hasText: "shared" }).waitFor();

  await go(page, "/cost");
  await dialog(page, button(page, "Budget"), { Name: "web", "At most": "1200.50", "Warn at (%)": "40, 90" }, "Set");
  await page.locator(".budgets li", { hasText: "1 200.50" }).waitFor();

  await go(page, "/admin/hooks");
  await dialog(page, button(page, "Hook"), { Name: "here", "Where to": `http://127.0.0.1:${listener.address().port}/`, "Of what": "task.ended" }, "Set");
  await row(page, "here").getByRole("button", { name: "Test" }).focus();
  await page.keyboard.press("Enter");
  await page.locator(".toast", { hasText: "Sent" }).waitFor();
  must(told === 1, `the hook's server heard of the test ${told} times`);
  await dialog(page, row(page, "here").getByRole("button", { name: "Remove…" }), {}, "Remove");
  await row(page, "here").waitFor({ state: "detached" });

  await go(page, "/cluster");
  const node = page.locator(".node h2 button").first();
  const name = await node.textContent();
  await dialog(page, node, {}, "Drain");
  await page.locator(".node .chip", { hasText: "draining" }).waitFor();
  await dialog(page, node, {}, "Take tasks again");
  await page.locator(".node .chip", { hasText: "ready" }).waitFor();
  await picture(page, "admin-done");
  must(!errors.length, `the console has errors:\n${errors.join("\n")}`);

  // A member
  const other = await open(b);
  await signIn(other.page, "/admin", process.env.WEB_MEMBER);
  await other.page.getByRole("tab", { name: "Prices" }).waitFor();
  const tabs = await other.page.getByRole("tab").allTextContents();
  must(tabs.join() === "Tokens,Secrets,Pools,Prices,Hooks", `a member's sections: ${tabs}`);
  for (const [path, no] of [["/admin/users", "User"], ["/admin/teams", "Team"], ["/admin/prices", "Price"], ["/cost", "Budget"], ["/cluster", "Node"]]) {
    await go(other.page, path);
    await other.page.locator("#page h1").waitFor();
    await other.page.waitForFunction(() => !document.querySelector("#page .panel-body.grid[role=status]"));
    must((await button(other.page, no).count()) === 0, `a member finds '${no}' at ${path}`);
  }
  await other.page.locator(".node h2 button").first().click();
  must((await other.page.getByRole("dialog").getByRole("button").allTextContents()).join() === "Close", "a member only looks at a node");
  await other.page.keyboard.press("Escape");
  const answers = await other.page.evaluate(async (of) => {
    const out = {};
    for (const [method, path, body] of [
      ["POST", "/users", { name: "evil", role: "member" }], ["PATCH", "/users/nia", { role: "viewer" }], ["DELETE", "/users/nia"],
      ["POST", "/teams", { name: "evil" }], ["DELETE", "/teams/blue"], ["POST", "/orgs", { name: "evil" }],
      ["POST", "/tokens", { user: "nia" }], ["PUT", "/secrets/EVIL?team=blue", { value: "x" }],
      ["POST", "/prices", { gpu_hour_micro: 1 }], ["PUT", "/budgets/web", { scope: "cloud", limit_micro: 1, period: "month", policy: "stop" }], ["DELETE", "/budgets/web"],
      ["PATCH", `/nodes/${of}`, { state: "draining" }], ["PATCH", `/gpus/${of}/0`, { state: "drained" }], ["POST", "/nodes/invite", {}],
      ["POST", "/hooks/here/test"], ["POST", "/config/reload"], ["GET", "/audit"],
    ]) {
      const r = await fetch(`/api/v1${path}`, { method, headers: body ? { "Content-Type": "application/json" } : {}, body: body && JSON.stringify(body) });
      out[`${method} ${path}`] = r.status;
    }
    return out;
  }, name);
  const let_ = Object.entries(answers).filter(([, status]) => status !== 403 && status !== 404);
  must(!let_.length, `a member is not refused: ${JSON.stringify(let_)}`);
  other.errors.length = 0; // the refusals

  // What he came with is revoked while he looks: the page says so, and is where it was after the next sign-in.
  await go(other.page, "/queue");
  await other.page.locator(".pulse[data-state=live]").waitFor();
  await go(page, "/admin/tokens");
  await dialog(page, row(page, "of-member").getByRole("button", { name: "Revoke…" }), {}, "Remove");
  await other.page.getByRole("heading", { name: "Sign in to Virga" }).waitFor();
  await other.page.getByRole("alert").filter({ hasText: "Your sign-in has ended" }).waitFor();
  must(new URL(other.page.url()).pathname === "/queue", "the address stays");

  // Two tabs: who signs out in one is out in the other.
  const second = await page.context().newPage();
  await signInAgain(second);
  await button(second, "Sign out").click();
  await page.getByRole("heading", { name: "Sign in to Virga" }).waitFor();
  must(!found.length, `found:\n${found.join("\n")}`);
  tell({ dialogs: true });
} finally {
  await b.close();
  listener.close();
}

/** The cookie is there already. */
async function signInAgain(page) {
  await page.goto(`${process.env.WEB_URL}/queue`);
  await page.locator(".pulse[data-state=live]").waitFor();
}
