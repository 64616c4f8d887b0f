import { useEffect, useRef } from "preact/hooks";

const KEYS: [string[], string][] = [
  [["/"], "search tasks"],
  [["n"], "run something new"],
  [["g", "h"], "home"],
  [["g", "t"], "tasks"],
  [["g", "c"], "cluster"],
  [["g", "q"], "queue"],
  [["g", "m"], "cost"],
  [["↑", "↓"], "move in a list; Home and End go to its ends"],
  [["→", "←"], "unfold and fold a group"],
  [["Enter"], "open"],
  [["?"], "this"],
];

export function Help({ close }: { close: () => void }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => box.current?.showModal(), []);
  return (
    <dialog ref={box} aria-labelledby="help-title" onClose={close} onClick={(e) => e.target === box.current && close()}>
      <h2 id="help-title">Keys</h2>
      <div class="dialog-body">
        <dl class="facts">
          {KEYS.map(([keys, what]) => [
            <dt key={`${what}k`}>{keys.map((k, i) => <>{i > 0 && " then "}<kbd>{k}</kbd></>)}</dt>,
            <dd key={what}>{what}</dd>,
          ])}
        </dl>
        <p class="muted">Everything here can be done by the <code>virga</code> command, too; see <code>virga help</code>.</p>
      </div>
      <div class="dialog-end"><button class="button main" type="button" onClick={close}>Close</button></div>
    </dialog>
  );
}
