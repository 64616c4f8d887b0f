import "./styles/base.css";
import "./styles/parts.css";
import "./styles/shell.css";
import "./styles/tasks.css";
import "./styles/pages.css";
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { me } from "./api";
import { App } from "./app";
import { follow } from "./router";
import { arrive, SignIn } from "./signin";
import "./theme";
import { Mark } from "./ui/icons";
import { Failure } from "./ui/parts";

const AGAIN_MS = 3000;

function Root() {
  const [why, setWhy] = useState<string | null>(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => void arrive().then(setWhy), [turn]);
  useEffect(() => {
    if (me.value !== undefined || !why) return;
    const timer = setTimeout(() => setTurn(turn + 1), AGAIN_MS); // virgad starts, a network comes back
    return () => clearTimeout(timer);
  }, [turn, why]);
  if (me.value === undefined)
    return why ? <main class="door"><div class="door-card"><h1 class="brand"><Mark />Virga</h1><Failure text={why} again={() => setTurn(turn + 1)} /></div></main> : null;
  return me.value ? <App /> : <SignIn key={why ?? ""} why={why} />;
}

document.addEventListener("click", follow);
render(<Root />, document.getElementById("app")!);
