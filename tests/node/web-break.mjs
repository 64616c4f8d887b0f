// virgad dies while somebody looks: the page says so, comes back by itself, and shows what happened meanwhile.
import { browser, must, open, tell, URL_ } from "./browser.mjs";

const b = await browser();
try {
  // Signed in by the address that `virga dashboard` prints: its code works once and stays in no history.
  const { page } = await open(b);
  await page.goto(process.env.WEB_DOOR);
  await page.locator(".pulse[data-state=live]").waitFor();
  must(!page.url().includes("code"), `the code is still in the address: ${page.url()}`);
  const again = await open(b);
  await again.page.goto(process.env.WEB_DOOR);
  await again.page.getByRole("alert").waitFor();
  must(await again.page.getByLabel("Token").count(), "a code that was used opens nothing");

  await page.goto(`${URL_}/tasks`);
  await page.locator(".virtual .trow", { hasText: "before" }).waitFor();
  tell({ ready: true }); // virgad is killed now, and a task is submitted as soon as it is back
  await page.locator(".pulse[data-state=lost]").waitFor();
  await page.locator(".virtual .trow", { hasText: "meanwhile" }).locator(".chip", { hasText: "succeeded" }).waitFor();
  await page.locator(".pulse[data-state=live]").waitFor();
  must((await page.locator(".virtual .trow", { hasText: "before" }).count()) === 1, "what was there stays, once");

  // A break that lasts is said in words, until it is over.
  await page.route("**/api/v1/events*", (r) => r.abort());
  await page.reload();
  await page.locator(".lost-bar").waitFor();
  await page.unroute("**/api/v1/events*");
  await page.locator(".lost-bar").waitFor({ state: "detached" });
} finally {
  await b.close();
}
