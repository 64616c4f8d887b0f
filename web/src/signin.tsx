// The way in: a token, the identity provider, or the one-time code that `virga dashboard` puts behind the #.
import { useEffect, useState } from "preact/hooks";
import { call, ended, get, me, Problem, recheck, sentence, url } from "./api";
import { startLive } from "./live";
import type { Me } from "./types";
import { Mark } from "./ui/icons";
import { Failure, Field } from "./ui/parts";

/** Takes the code out of the address before anything else, so that it stays in no history. */
function takeCode(): string | null {
  const m = /^#code=([\w.~%-]{8,200})$/.exec(location.hash);
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  return m ? decodeURIComponent(m[1]) : null;
}

const code = takeCode();

/** What the cloud has to say to whoever comes back from the identity provider without a sign-in; once. */
function takeSaid(): string | null {
  const m = /(?:^|; )virga_said=([\w.~%-]*)/.exec(document.cookie);
  if (m) document.cookie = "virga_said=; Path=/; Max-Age=0; Secure; SameSite=Lax";
  try {
    return m ? decodeURIComponent(m[1]) : null;
  } catch {
    return null; // cut in the middle of a letter
  }
}

const said = takeSaid();

// Whether it is worth asking who we are: the cookie cannot be seen from here, and asking without one is refused.
const KNOWN = "virga-signed-in";

function remember(yes: boolean) {
  try {
    if (yes) localStorage.setItem(KNOWN, String(Date.now())); // another each time: then other tabs are told
    else localStorage.removeItem(KNOWN);
  } catch {
    // storage is forbidden: then it is asked each time
  }
}

function maybeKnown(): boolean {
  try {
    return localStorage.getItem(KNOWN) !== null;
  } catch {
    return true;
  }
}

// Another tab signed in or out.
addEventListener("storage", (e) => {
  if (e.key === KNOWN && me.value !== undefined) void recheck().then(() => { if (me.value) startLive(); });
});

/** The way out, for every tab. */
export async function leave() {
  await call("POST", "/logout");
  remember(false);
  ended.value = null;
  me.value = null;
}

async function enter(how: { token: string } | { code: string }) {
  me.value = await call<Me>("POST", "/login", how);
  ended.value = null;
  remember(true);
  startLive();
}

/** Who is here already, or who the code says. */
export async function arrive(): Promise<string | null> {
  try {
    if (said) {
      me.value = null;
      remember(false);
      return said.charAt(0).toUpperCase() + said.slice(1);
    }
    if (code) {
      await enter({ code });
    } else if (maybeKnown()) {
      me.value = await get<Me>("/me");
      startLive();
    } else {
      me.value = null;
    }
    return null;
  } catch (e) {
    const refused = e instanceof Problem && e.status >= 400 && e.status < 500;
    if (refused || code) {
      me.value = null; // else it is not known who we are: there is no answer
      remember(false);
    }
    return refused && e.status === 401 && !code ? null : sentence(e);
  }
}

interface Methods { provider: string | null }

export function SignIn({ why }: { why: string | null }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(why ?? ended.value);
  const [busy, setBusy] = useState(false);
  const [provider, setProvider] = useState<string | null>(null);
  useEffect(() => {
    document.title = "Sign in · Virga";
    get<Methods>("/login/methods").then(
      (m) => setProvider(m.provider),
      () => setProvider(null), // the token's way is there in any case
    );
  }, []);
  const go = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await enter({ token: token.trim() });
    } catch (x) {
      setError(sentence(x));
      setBusy(false);
    }
  };
  return (
    <main class="door">
      <div class="door-card">
        <h1 class="brand"><Mark />Sign in to Virga</h1>
        {provider && (
          <>
            <a class="button main" href={url("/login/oidc", { next: location.pathname + location.search })} onClick={() => remember(true)}>Continue with {provider}</a>
            <div class="or">or</div>
          </>
        )}
        <form onSubmit={go}>
          <Field label="Token" hint={<>from <code>virga token create</code></>}>
            {(p) => <input {...p} type="password" autocomplete="current-password" spellcheck={false} value={token} required autoFocus
              onInput={(e) => setToken(e.currentTarget.value)} />}
          </Field>
          {error && <Failure text={error} />}
          <button class={`button ${provider ? "" : "main"}`} type="submit" disabled={busy || !token.trim()}>{busy ? "Signing in…" : "Sign in"}</button>
        </form>
        <p class="hint">On a machine where <code>virga</code> is set up, <code>virga dashboard</code> opens this page signed in.</p>
      </div>
    </main>
  );
}
