// A notebook started in the form: its page says how one's own machine reaches it, and has its address with its key.
import { browser, faults, must, open, picture, signIn, tell } from "./browser.mjs";

const b = await browser();
try {
  const { page, errors } = await open(b);
  await signIn(page, "/run");
  await page.getByRole("button", { name: "Notebook" }).click();
  await page.getByLabel("Name").fill("paper");
  await page.getByText("More", { exact: true }).click();
  await page.getByLabel("Variables").fill(`PATH=${process.env.WEB_PATH}`);
  must((await page.locator("[data-same]").textContent()).startsWith("virga notebook "), "the same in a shell");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.waitForURL(/\/tasks\/[0-9a-f]{16}$/);
  const link = page.locator("a[data-notebook]");
  await link.waitFor();
  must((await link.getAttribute("rel")).includes("noopener") && (await link.getAttribute("target")) === "_blank", "it opens apart from this page");
  must(!(await link.textContent()).includes("token"), "the key is not on the screen");
  const found = await faults(page);
  must(!found.length, found.join("\n"));
  await picture(page, "notebook");
  must(!errors.length, `the console has errors:\n${errors.join("\n")}`);
  tell({ line: await page.locator("[data-reach]").textContent(), address: await link.getAttribute("href"), task: page.url().split("/").pop() });
} finally {
  await b.close();
}
