// Who may do what, and what it costs. Everybody finds their own tokens and secrets here; the rest is refused by the
// cloud, with its sentence, to whoever may not.
import { isAdmin } from "../api";
import { navigate } from "../router";
import { Tabs } from "../ui/parts";
import { Audit, Hooks, Pools, Prices } from "./admin-cloud";
import { Orgs, Secrets, Teams, Tokens, Users } from "./admin-people";

const SECTIONS = [
  { key: "users", name: "Users", admin: true, page: Users },
  { key: "teams", name: "Teams", admin: true, page: Teams },
  { key: "orgs", name: "Organisations", admin: true, page: Orgs },
  { key: "tokens", name: "Tokens", admin: false, page: Tokens },
  { key: "secrets", name: "Secrets", admin: false, page: Secrets },
  { key: "pools", name: "Pools", admin: false, page: Pools },
  { key: "prices", name: "Prices", admin: false, page: Prices },
  { key: "hooks", name: "Hooks", admin: false, page: Hooks },
  { key: "audit", name: "Audit", admin: true, page: Audit },
];

export function Admin({ section }: { section: string }) {
  const seen = SECTIONS.filter((s) => !s.admin || isAdmin());
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
