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

function Root() {
  const [why, setWhy] = useState<string | null>(null);
  useEffect(() => void arrive().then(setWhy), []);
  if (me.value === undefined) return null;
  return me.value ? <App /> : <SignIn key={why ?? ""} why={why} />;
}

document.addEventListener("click", follow);
render(<Root />, document.getElementById("app")!);
