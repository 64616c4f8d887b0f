// Environments that are saved in the cloud: snapshots, templates, images.
import { useSignal } from "@preact/signals";
import { call, me, part } from "../api";
import { count, plural, size } from "../format";
import { useGet } from "../load";
import { again } from "../model/draft";
import { navigate } from "../router";
import type { Environment, Task } from "../types";
import { Growing } from "../ui/growing";
import { Ask, Empty, Field, Panel, say, Show, When, Wide } from "../ui/parts";

const refOf = (e: Environment) => (e.owner && e.owner !== me.value?.user ? `${e.owner}//${e.name}@${e.version}` : `${e.name}@${e.version}`);

function runWith(e: Environment) {
  again({ argv: [], name: "", labels: {}, spec: { argv: [], environment: refOf(e) } } as unknown as Task);
  navigate("/run");
}

export function Environments() {
  const got = useGet<{ environments: Environment[]; used_bytes: number; quota_bytes: number }>("/environments");
  const removing = useSignal<Environment | null>(null);
  const sharing = useSignal<Environment | null>(null);
  const team = useSignal("");
  const mine = (e: Environment) => e.owner === me.value?.user;
  return (
    <>
      <div class="page-head">
        <h1 tabIndex={-1}>Environments</h1>
        <span class="muted">{got.data ? `${plural(got.data.environments.length, "version")}, ${size(got.data.used_bytes)}${got.data.quota_bytes ? ` of ${size(got.data.quota_bytes)}` : ""} yours` : ""}</span>
      </div>
      <Panel label="Environments">
        <Show of={got}>
          {({ environments }) => environments.length ? <Growing of={environments}>{(shown) => (
            <Wide>
              <table>
                <thead><tr><th>Environment</th><th>Owner</th><th>From</th><th class="number">Files</th><th class="number">Size</th><th>Saved</th><th><span class="unseen">Actions</span></th></tr></thead>
                <tbody>
                  {shown.map((e) => (
                    <tr key={refOf(e)}>
                      <td><span class="strong">{e.name}</span><span class="muted">@{e.version}</span></td><td>{e.owner}</td><td class="muted">{e.source}</td>
                      <td class="number">{count(e.files)}{e.missing ? <span class="muted" title="files without content"> ({count(e.missing)} missing)</span> : null}</td>
                      <td class="number">{size(e.bytes)}</td><td><When usec={e.created_usec} /></td>
                      <td><div class="row end-row">
                        <button class="button small" type="button" onClick={() => runWith(e)}>Run…</button>
                        {mine(e) && <button class="button small" type="button" onClick={() => (sharing.value = e)}>Share…</button>}
                        {mine(e) && <button class="button small danger" type="button" onClick={() => (removing.value = e)}>Remove…</button>}
                      </div></td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </Wide>
          )}</Growing> : <Empty title="No environment is saved">Save this machine's by <code>virga env save NAME</code>, or bring an image in by <code>virga env import</code>.</Empty>}
        </Show>
      </Panel>
      {removing.value && (
        <Ask title={`Remove ${refOf(removing.value)}?`} yes="Remove" danger close={() => (removing.value = null)}
          act={async () => {
            await call("DELETE", `/environments/${part(refOf(removing.value!))}`);
            say("Removed.");
            got.again();
          }}><p>Tasks that use it keep it until they end. What no other version has is cleared away later.</p></Ask>
      )}
      {sharing.value && (
        <Ask title={`Share ${sharing.value.name}`} yes="Share" close={() => (sharing.value = null)}
          act={async () => {
            await call("POST", `/environments/${part(refOf(sharing.value!))}/share`, { team: team.value.trim() });
            say(`Team ${team.value.trim()} may use it now.`);
          }}>
          <Field label="Team">{(p) => <input {...p} required value={team.value} onInput={(e) => (team.value = e.currentTarget.value)} />}</Field>
        </Ask>
      )}
    </>
  );
}
