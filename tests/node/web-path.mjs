// A new user's path: sign in, submit a command in the form, watch its output and its plots move, open a terminal and
// type, cancel, see the cost.
import { browser, must, open, picture, signIn, tell, URL_, WAIT } from "./browser.mjs";

const b = await browser();
try {
  const { page, errors } = await open(b);

  // What the first visit transfers, by the browser's own count.
  const cdp = await page.context().newCDPSession(page);
  await cdp.send("Network.enable");
  let bytes = 0;
  cdp.on("Network.loadingFinished", (e) => { bytes += e.encodedDataLength; });
  await page.goto(URL_);
  await page.getByRole("heading", { name: "Sign in to Virga" }).waitFor();
  const door = bytes;
  await picture(page, "sign-in");

  await page.getByLabel("Token").fill("vgt_wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("alert").waitFor();
  must((await page.getByRole("alert").textContent()).length > 20, "a refusal is a sentence");
  must(errors.length === 1 && /401/.test(errors[0]), `only the refusal itself is in the console: ${errors}`);
  errors.length = 0;
  await signIn(page);
  await page.getByRole("heading", { name: "My tasks" }).waitFor();
  await page.locator(".pulse[data-state=live]").waitFor();
  must(bytes < 300_000, `the first pages transfer ${bytes} bytes, not less than 300 kB`);
  tell({ first_paint_bytes: door, home_bytes: bytes });
  await cdp.detach();

  // The form
  await page.keyboard.press("n");
  await page.getByRole("heading", { name: "Run", exact: true }).waitFor();
  await page.getByLabel("Command").fill("i=0; while :; do i=$((i+1)); printf 'step %d \\033[32mgood\\033[0m\\n' $i; sleep 0.2; done");
  await page.getByLabel("Name").fill("first");
  await page.getByLabel("GPU", { exact: true }).selectOption("whole");
  await page.locator("[data-estimate=known]").waitFor();
  const line = await page.locator("[data-same]").textContent();
  must(line.startsWith("vbatch --gpus 1 -n first -- /bin/sh -c "), `the same in a shell is: ${line}`);
  await picture(page, "run");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.waitForURL(/\/tasks\/[0-9a-f]{16}$/);
  const first = page.url().split("/").pop();

  // Its output, as it comes
  await page.locator(".chip", { hasText: "running" }).first().waitFor();
  await page.getByText("step 3 good").waitFor();
  await page.getByText("step 8 good").waitFor();
  await page.locator(".lline .f2", { hasText: "good" }).first().waitFor(); // in its colour
  await page.getByLabel("Search output").fill("step 3 ");
  await page.getByText("1 of").waitFor();
  must((await page.locator(".lline mark").first().textContent()) === "step 3 ", "what is searched for is marked");
  await picture(page, "output");

  // Plots that move
  await page.getByRole("tab", { name: "Plots" }).click();
  const cpu = page.locator("[data-plot=cpu_milli]");
  await cpu.waitFor();
  const before = Number(await cpu.getAttribute("data-points"));
  await page.waitForFunction((n) => Number(document.querySelector("[data-plot=cpu_milli]")?.dataset.points) > n, before, WAIT);
  await page.locator("[data-plot=gpu_percent] canvas").waitFor();
  await picture(page, "plots");

  // A terminal
  await page.goto(`${URL_}/run`);
  await page.getByRole("button", { name: "Terminal" }).click();
  await page.getByLabel(/^Program/).fill("/bin/sh");
  await page.getByLabel("Name").fill("shell");
  await page.getByRole("button", { name: "Open a terminal" }).click();
  await page.locator("[data-terminal-state]", { hasText: "connected" }).waitFor();
  await page.locator(".xterm").click();
  await page.keyboard.type("echo $((6*7))-and-$(stty size | tr ' ' x)\n");
  const screen = () => page.locator(".xterm-rows").innerText();
  await page.waitForFunction(() => /42-and-\d+x\d+/.test(document.querySelector(".xterm-rows")?.innerText ?? ""), null, WAIT);
  const [, rows, cols] = /42-and-(\d+)x(\d+)/.exec(await screen());
  must(rows > 10 && cols > 60, `the terminal has the window's size, not ${rows} by ${cols}`);
  await picture(page, "terminal");
  await page.keyboard.type("exit 3\n");
  await page.locator("[data-terminal-state]", { hasText: "status 3" }).waitFor();

  // Cancel, and the same once more
  const cancel = async () => {
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("button", { name: "Cancel the task" }).click();
    await page.locator(".task-head .chip", { hasText: "cancelled" }).waitFor();
  };
  await page.goto(`${URL_}/tasks/${first}`);
  await cancel();
  await page.getByRole("button", { name: "Run again…" }).click();
  await page.locator("[data-estimate=known]").waitFor();
  const second = await page.locator("[data-same]").textContent();
  must(/^vbatch -P default --gpus 1 .*-n first .*-- \/bin\/sh -c /.test(second), `again is: ${second}`);
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.waitForURL((u) => /\/tasks\/[0-9a-f]{16}$/.test(u.pathname) && !u.pathname.endsWith(first));
  await page.getByText("step 2 good").waitFor();
  await cancel();

  // In the list, with its state, without reloading
  await page.getByRole("link", { name: "Tasks", exact: true }).first().click();
  const listed = page.locator(".virtual .trow", { hasText: "first" });
  await listed.nth(1).locator(".chip", { hasText: "cancelled" }).waitFor();
  must((await listed.count()) === 2, "both are listed");

  // The cost
  await page.goto(`${URL_}/cost`);
  await page.locator("[data-spent]").waitFor();
  await page.waitForFunction(() => Number(document.querySelector("[data-spent]")?.dataset.spent) > 0, null, WAIT);
  await picture(page, "cost");

  must(errors.length === 0, `the console has errors:\n${errors.join("\n")}`);
  tell({ task: first });
} finally {
  await b.close();
}
