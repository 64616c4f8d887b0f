// Who may do what, and what it costs. Everybody finds their own tokens and secrets here; the rest is refused by the
// cloud, with its sentence, to whoever may not.
import { may, type Act } from "../api";
import type { ComponentType } from "preact";
import { navigate } from "../router";
import { Tabs } from "../ui/parts";
import { Audit, Hooks, Pools, Prices } from "./admin-cloud";
import { Orgs, Secrets, Teams, Tokens, Users } from "./admin-people";

const SECTIONS: { key: string; name: string; acts?: Act[]; page: ComponentType }[] = [
  { key: "users", name: "Users", acts: ["manage-users", "manage-team"], page: Users },
  { key: "teams", name: "Teams", acts: ["manage-users"], page: Teams },
  { key: "orgs", name: "Organisations", acts: ["manage-users"], page: Orgs },
  { key: "tokens", name: "Tokens", page: Tokens },
  { key: "secrets", name: "Secrets", page: Secrets },
  { key: "pools", name: "Pools", page: Pools },
  { key: "prices", name: "Prices", page: Prices },
  { key: "hooks", name: "Hooks", page: Hooks },
  { key: "audit", name: "Audit", acts: ["see-audit"], page: Audit },
];

export function Admin({ section }: { section: string }) {
  const seen = SECTIONS.filter((s) => !s.acts || may(...s.acts));
  const at = seen.find((s) => s.key === section) ?? seen[0];
  const Page = at.page;
  return (
    <>
      <div class="page-head"><h1 tabIndex={-1}>Admin</h1></div>
      <Tabs label="Sections" tabs={seen.map((s) => ({ key: s.key, name: s.name }))} open={at.key} set={(k) => navigate(`/admin/${k}`)} />
      <div role="tabpanel" id="tab-panel" aria-labelledby={`tab-${at.key}`}><Page /></div>
    </>
  );
}
