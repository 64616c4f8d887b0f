// The button that leads to the identity provider (a real one: oidc-provider) and back, to the page that was asked for.
import { browser, must, open, picture, tell, URL_ } from "./browser.mjs";

const b = await browser();
try {
  const { page, context } = await open(b);
  const asked = [];
  page.on("request", (r) => asked.push(r.url()));
  await page.goto(`${URL_}/tasks?state=failed`);
  const button = page.getByRole("link", { name: "Continue with Example" });
  await button.waitFor();
  await picture(page, "sign-in-provider");
  await button.focus();
  await page.keyboard.press("Enter");

  // The provider's own pages: who one is, and whether one agrees.
  await page.locator("input[name=login]").fill("ann");
  await page.locator("input[name=password]").fill("x");
  await page.keyboard.press("Enter");
  await page.locator("button[type=submit]", { hasText: "Continue" }).click();

  await page.getByRole("navigation", { name: "Pages" }).waitFor();
  const at = new URL(page.url());
  must(at.origin === new URL(URL_).origin && at.pathname === "/tasks" && at.search === "?state=failed", `back at ${page.url()}`);
  must((await page.locator(".who").textContent()).includes("ann"), "signed in as who one is there");
  const authorize = asked.map((u) => new URL(u)).find((u) => u.searchParams.has("code_challenge"));
  must(authorize?.searchParams.get("code_challenge_method") === "S256", "the way there is bound to this browser (PKCE)");
  must(authorize.searchParams.get("state") && authorize.searchParams.get("nonce"), "and to this sign-in");
  const cookies = (await context.cookies()).filter((c) => c.domain === "127.0.0.1" && !c.name.startsWith("_"));
  must(cookies.some((c) => c.httpOnly && c.secure && c.sameSite !== "None"), `the cookie is no script's: ${JSON.stringify(cookies.map((c) => [c.name, c.httpOnly, c.secure, c.sameSite]))}`);
  await page.reload();
  await page.locator(".who", { hasText: "ann" }).waitFor();

  // Whoever says no there is told so here, once, and can go on in another way.
  const stranger = await open(b);
  await stranger.page.goto(URL_);
  await stranger.page.getByRole("link", { name: "Continue with Example" }).click();
  await stranger.page.locator("a", { hasText: "Cancel" }).click();
  await stranger.page.getByRole("heading", { name: "Sign in to Virga" }).waitFor();
  await stranger.page.getByRole("alert").filter({ hasText: "(access_denied)" }).waitFor();
  await stranger.page.reload();
  await stranger.page.getByLabel("Token").waitFor();
  must((await stranger.page.getByRole("alert").count()) === 0, "it is said once");
  const forged = await stranger.page.goto(`${URL_}/api/v1/login/oidc/callback?error=Call%20this%20number`);
  must(forged.status() === 200 && !(await stranger.page.content()).includes("number"), "nobody's words come by a link");
  tell({ back: at.pathname });
} finally {
  await b.close();
}
