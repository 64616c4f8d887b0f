// Users, teams, organisations, tokens, secrets.
import { useSignal, type Signal } from "@preact/signals";
import { call, may, me, part } from "../api";
import { count, parseDuration, plural, size } from "../format";
import { useGet } from "../load";
import { Growing } from "../ui/growing";
import { Ask, Chip, CopyButton, Empty, Field, Note, Panel, say, Show, When, Wide } from "../ui/parts";
import { Icon } from "../ui/icons";

interface User { name: string; team: string | null; org: string | null; role: string; created_usec: number; service: boolean; disabled: boolean; email: string | null; full_name: string | null; seen_usec: number; oidc: boolean }
interface Team { name: string; org: string | null; users: number; created_usec: number }
interface Org { name: string; teams: number; users: number; created_usec: number }
interface Token { id: string; user: string; name: string | null; created_usec: number; expires_usec: number; used_usec: number; scopes: string[] }
interface Secret { name: string; team: string | null; user: string | null; changed_usec: number; version: number; size: number }

const ROLES = ["viewer", "member", "lead", "admin"];
const LED = ["viewer", "member"]; // whom a lead lets in

export function bind<T extends object>(v: Signal<T>, key: keyof T) {
  return { value: String(v.value[key] ?? ""), onInput: (e: { currentTarget: { value: string } }) => (v.value = { ...v.value, [key]: e.currentTarget.value }) };
}

export const Add = ({ what, on }: { what: string; on: () => void }) => (
  <button class="button small" type="button" onClick={on}><Icon name="plus" />{what}</button>
);

export function Remove({ title, text, act, close }: { title: string; text: string; act: () => Promise<unknown>; close: () => void }) {
  return <Ask title={title} yes="Remove" danger close={close} act={async () => { await act(); say("Removed."); }}><p>{text}</p></Ask>;
}

function UserDialog({ of, teams, close, done }: { of: User | null; teams: string[]; close: () => void; done: () => void }) {
  const v = useSignal({ name: of?.name ?? "", team: of?.team ?? (may("manage-users") ? "" : me.value?.team ?? ""), role: of?.role ?? "member", email: of?.email ?? "", full_name: of?.full_name ?? "", service: of?.service ?? false, disabled: of?.disabled ?? false });
  return (
    <Ask title={of ? of.name : "A user"} yes={of ? "Change" : "Add"} close={close} act={async () => {
      const { name, service, disabled, ...rest } = v.value;
      const body: Record<string, unknown> = Object.fromEntries(Object.entries(rest).filter(([k, x]) => (of ? x !== (of[k as keyof User] ?? "") : x)));
      if (of) {
        if (disabled !== of.disabled) body.disabled = disabled;
        await call("PATCH", `/users/${part(of.name)}`, body);
      } else {
        await call("POST", "/users", { name: name.trim(), ...(service ? { service } : {}), ...body });
      }
      say(of ? "Changed." : "Added. Make a token for the user, or let the identity provider sign them in.");
      done();
    }}>
      <div class="fields">
        <Field label="Name">{(p) => <input {...p} required disabled={Boolean(of)} {...bind(v, "name")} />}</Field>
        <Field label="Full name">{(p) => <input {...p} {...bind(v, "full_name")} />}</Field>
        <Field label="E-mail">{(p) => <input {...p} type="email" {...bind(v, "email")} />}</Field>
        {may("manage-users") && <Field label="Team">{(p) => <select {...p} {...bind(v, "team")}><option value="">{of ? "" : "the default"}</option>{teams.map((t) => <option key={t}>{t}</option>)}</select>}</Field>}
        <Field label="Role">{(p) => <select {...p} {...bind(v, "role")}>{(may("manage-users") ? ROLES : ROLES.filter((r) => r === of?.role || LED.includes(r))).map((r) => <option key={r}>{r}</option>)}</select>}</Field>
      </div>
      {!of && <label class="check"><input type="checkbox" checked={v.value.service} onChange={(e) => (v.value = { ...v.value, service: e.currentTarget.checked })} />an account for programs: it has tokens and cannot sign in</label>}
      {of && <label class="check"><input type="checkbox" checked={v.value.disabled} onChange={(e) => (v.value = { ...v.value, disabled: e.currentTarget.checked })} />disabled: may do nothing</label>}
    </Ask>
  );
}

export function Users() {
  const got = useGet<{ users: User[] }>("/users");
  const teams = useGet<{ teams: Team[] }>("/teams");
  const editing = useSignal<User | "new" | null>(null);
  const removing = useSignal<User | null>(null);
  const find = useSignal("");
  const like = (u: User) => `${u.name} ${u.full_name ?? ""} ${u.email ?? ""} ${u.team ?? ""} ${u.role}`.toLowerCase().includes(find.value.trim().toLowerCase());
  return (
    <Panel title="Users" end={<>
      <input type="search" aria-label="Find users" placeholder="Find" value={find.value} onInput={(e) => (find.value = e.currentTarget.value)} />
      <Add what="User" on={() => (editing.value = "new")} />
    </>}>
      <Show of={got}>
        {({ users }) => <Growing of={users.filter(like)}>{(shown) => shown.length ? (
          <Wide>
            <table>
              <thead><tr><th>User</th><th>Team</th><th>Role</th><th>E-mail</th><th>Seen</th><th><span class="unseen">Actions</span></th></tr></thead>
              <tbody>
                {shown.map((u) => (
                  <tr key={u.name}>
                    <td><span class="strong">{u.name}</span> <span class="muted">{u.full_name}</span> {u.service && <Chip tone="still">service</Chip>} {u.disabled && <Chip tone="bad">disabled</Chip>}</td>
                    <td>{u.team}{u.org && <span class="muted"> {u.org}</span>}</td><td>{u.role}</td><td>{u.email}</td>
                    <td>{u.seen_usec ? <When usec={u.seen_usec} /> : <span class="muted">never</span>}</td>
                    <td><div class="row end-row">{(may("manage-users") || LED.includes(u.role)) && <button class="button small" type="button" onClick={() => (editing.value = u)}>Change…</button>}{may("manage-users") && u.name !== me.value?.user && <button class="button small danger" type="button" onClick={() => (removing.value = u)}>Remove…</button>}</div></td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Wide>
        ) : <Empty title="Nobody is like that" />}</Growing>}
      </Show>
      {editing.value && <UserDialog of={editing.value === "new" ? null : editing.value} teams={teams.data?.teams.map((t) => t.name) ?? []} close={() => (editing.value = null)} done={got.again} />}
      {removing.value && <Remove title={`Remove ${removing.value.name}?`} text="Their tokens stop working. What they did stays in the audit log and the ledger." close={() => (removing.value = null)}
        act={async () => { await call("DELETE", `/users/${part(removing.value!.name)}`); got.again(); }} />}
    </Panel>
  );
}

export function Teams() {
  const got = useGet<{ teams: Team[] }>("/teams");
  const adding = useSignal(false);
  const v = useSignal({ name: "", org: "" });
  const removing = useSignal<Team | null>(null);
  return (
    <Panel title="Teams" end={<Add what="Team" on={() => (adding.value = true)} />}>
      <Show of={got}>
        {({ teams }) => <Growing of={teams}>{(shown) => (
          <Wide>
            <table>
              <thead><tr><th>Team</th><th>Organisation</th><th class="number">Users</th><th>Made</th><th><span class="unseen">Actions</span></th></tr></thead>
              <tbody>{shown.map((t) => (
                <tr key={t.name}><td class="strong">{t.name}</td><td>{t.org}</td><td class="number">{count(t.users)}</td><td><When usec={t.created_usec} /></td>
                  <td><div class="row end-row"><button class="button small danger" type="button" onClick={() => (removing.value = t)}>Remove…</button></div></td></tr>
              ))}</tbody>
            </table>
          </Wide>
        )}</Growing>}
      </Show>
      {adding.value && (
        <Ask title="A team" yes="Add" close={() => (adding.value = false)} act={async () => {
          await call("POST", "/teams", { name: v.value.name.trim(), ...(v.value.org.trim() ? { org: v.value.org.trim() } : {}) });
          say("Added.");
          got.again();
        }}>
          <div class="fields">
            <Field label="Name">{(p) => <input {...p} required {...bind(v, "name")} />}</Field>
            <Field label="Organisation">{(p) => <input {...p} {...bind(v, "org")} placeholder="the default" />}</Field>
          </div>
        </Ask>
      )}
      {removing.value && <Remove title={`Remove team ${removing.value.name}?`} text="It must have no users." close={() => (removing.value = null)}
        act={async () => { await call("DELETE", `/teams/${part(removing.value!.name)}`); got.again(); }} />}
    </Panel>
  );
}

export function Orgs() {
  const got = useGet<{ orgs: Org[] }>("/orgs");
  const adding = useSignal(false);
  const v = useSignal({ name: "" });
  return (
    <Panel title="Organisations" end={<Add what="Organisation" on={() => (adding.value = true)} />}>
      <Show of={got}>
        {({ orgs }) => (
          <Wide>
            <table>
              <thead><tr><th>Organisation</th><th class="number">Teams</th><th class="number">Users</th><th>Made</th></tr></thead>
              <tbody>{orgs.map((o) => <tr key={o.name}><td class="strong">{o.name}</td><td class="number">{count(o.teams)}</td><td class="number">{count(o.users)}</td><td><When usec={o.created_usec} /></td></tr>)}</tbody>
            </table>
          </Wide>
        )}
      </Show>
      {adding.value && (
        <Ask title="An organisation" yes="Add" close={() => (adding.value = false)} act={async () => {
          await call("POST", "/orgs", { name: v.value.name.trim() });
          say("Added.");
          got.again();
        }}><Field label="Name">{(p) => <input {...p} required {...bind(v, "name")} />}</Field></Ask>
      )}
    </Panel>
  );
}

export function Tokens() {
  const got = useGet<{ tokens: Token[] }>("/tokens");
  const adding = useSignal(false);
  const made = useSignal<string | null>(null);
  const v = useSignal({ name: "", user: "", ttl: "30d", scopes: "" });
  const removing = useSignal<Token | null>(null);
  return (
    <Panel title="Tokens" end={<Add what="Token" on={() => (adding.value = true)} />}>
      {made.value && (
        <div class="panel-body"><Note>
          <b>This is the token. It is shown once.</b>
          <div class="row"><code class="code" style={{ flex: 1 }}>{made.value}</code><CopyButton text={made.value} /><button class="button small" type="button" onClick={() => (made.value = null)}>Done</button></div>
        </Note></div>
      )}
      <Show of={got}>
        {({ tokens }) => tokens.length ? <Growing of={tokens}>{(shown) => (
          <Wide>
            <table>
              <thead><tr><th>Token</th><th>User</th><th>May</th><th>Made</th><th>Used</th><th>Expires</th><th><span class="unseen">Actions</span></th></tr></thead>
              <tbody>{shown.map((t) => (
                <tr key={t.id}><td><span class="strong">{t.name || "–"}</span> <code class="muted">{t.id}</code></td><td>{t.user}</td><td>{t.scopes?.length ? t.scopes.join(", ") : <span class="muted">all its user may</span>}</td>
                  <td><When usec={t.created_usec} /></td><td>{t.used_usec ? <When usec={t.used_usec} /> : <span class="muted">never</span>}</td><td>{t.expires_usec ? <When usec={t.expires_usec} /> : <span class="muted">never</span>}</td>
                  <td><div class="row end-row"><button class="button small danger" type="button" onClick={() => (removing.value = t)}>Revoke…</button></div></td></tr>
              ))}</tbody>
            </table>
          </Wide>
        )}</Growing> : <Empty title="No tokens">Programs and other machines sign in with one.</Empty>}
      </Show>
      {adding.value && (
        <Ask title="A token" yes="Make" close={() => (adding.value = false)} act={async () => {
          const ttl = parseDuration(v.value.ttl);
          if (ttl === null) throw new Error(`'${v.value.ttl}' is not a time such as 30d or 12h.`);
          const scopes = v.value.scopes.split(/[,\s]+/).filter(Boolean);
          const t = await call<{ token: string }>("POST", "/tokens", {
            ...(v.value.name.trim() ? { name: v.value.name.trim() } : {}), ...(v.value.user.trim() ? { user: v.value.user.trim() } : {}), ...(ttl ? { ttl_usec: ttl } : {}), ...(scopes.length ? { scopes } : {}),
          });
          made.value = t.token;
          got.again();
        }}>
          <div class="fields">
            <Field label="Name" hint="what it is for">{(p) => <input {...p} {...bind(v, "name")} />}</Field>
            {may("manage-users", "manage-team") && <Field label="User" hint="empty: you">{(p) => <input {...p} {...bind(v, "user")} />}</Field>}
            <Field label="Lasts" hint="empty: for ever">{(p) => <input {...p} {...bind(v, "ttl")} />}</Field>
            <Field label="May only" hint="scopes; empty: all you may">{(p) => <input {...p} {...bind(v, "scopes")} />}</Field>
          </div>
        </Ask>
      )}
      {removing.value && <Remove title={`Revoke ${removing.value.name || removing.value.id}?`} text="Whoever uses it is refused from now on." close={() => (removing.value = null)}
        act={async () => { await call("DELETE", `/tokens/${part(removing.value!.id)}`); got.again(); }} />}
    </Panel>
  );
}

export function Secrets() {
  const got = useGet<{ secrets: Secret[] }>("/secrets");
  const editing = useSignal<Secret | "new" | null>(null);
  const removing = useSignal<Secret | null>(null);
  const v = useSignal({ name: "", team: "", value: "" });
  const open = (s: Secret | "new") => {
    v.value = s === "new" ? { name: "", team: "", value: "" } : { name: s.name, team: s.team ?? "", value: "" };
    editing.value = s;
  };
  return (
    <Panel title="Secrets" end={may("run") && <Add what="Secret" on={() => open("new")} />}>
      <Show of={got}>
        {({ secrets }) => secrets.length ? <Growing of={secrets}>{(shown) => (
          <Wide>
            <table>
              <thead><tr><th>Secret</th><th>Whose</th><th class="number">Size</th><th class="number">Version</th><th>Changed</th><th><span class="unseen">Actions</span></th></tr></thead>
              <tbody>{shown.map((s) => (
                <tr key={`${s.team}/${s.name}`}><td class="strong">{s.name}</td><td>{s.team ? `team ${s.team}` : s.user}</td><td class="number">{size(s.size)}</td><td class="number">{s.version}</td><td><When usec={s.changed_usec} /></td>
                  <td>{may(s.team ? "manage-team" : "run", "manage-users") && <div class="row end-row"><button class="button small" type="button" onClick={() => open(s)}>New value…</button><button class="button small danger" type="button" onClick={() => (removing.value = s)}>Remove…</button></div>}</td></tr>
              ))}</tbody>
            </table>
          </Wide>
        )}</Growing> : <Empty title="No secrets">A secret is given to tasks that name it, in memory only; its value is never shown again.</Empty>}
      </Show>
      {editing.value && (
        <Ask title={editing.value === "new" ? "A secret" : `A new value for ${editing.value.name}`} yes="Keep" close={() => (editing.value = null)} act={async () => {
          await call("PUT", `/secrets/${part(v.value.name.trim())}`, { value: v.value.value }, { query: { team: v.value.team.trim() } });
          v.value = { name: "", team: "", value: "" };
          say("It is sealed and kept.");
          got.again();
        }}>
          <div class="fields">
            <Field label="Name">{(p) => <input {...p} required disabled={editing.value !== "new"} spellcheck={false} {...bind(v, "name")} />}</Field>
            <Field label="Team" hint="empty: only you">{(p) => <input {...p} disabled={editing.value !== "new"} {...bind(v, "team")} />}</Field>
          </div>
          <Field label="Value" hint={plural(v.value.value.length, "character")}>{(p) => <textarea {...p} class="mono" required rows={3} spellcheck={false} autocomplete="off" {...bind(v, "value")} />}</Field>
        </Ask>
      )}
      {removing.value && <Remove title={`Remove secret ${removing.value.name}?`} text="Tasks that name it will not start." close={() => (removing.value = null)}
        act={async () => { await call("DELETE", `/secrets/${part(removing.value!.name)}`, undefined, { query: { team: removing.value!.team } }); got.again(); }} />}
    </Panel>
  );
}
