/* People, what they hold and what they did as JSON. */
#include "view/view-int.h"
#include "view/views.h"

SHOWN(me, "Me", me_info, PLAIN("user"), PLAIN("team"), PLAIN("org"), PLAIN("role"),
      AS("acts", "act"), PLAIN("service"), PLAIN("email"), PLAIN("full_name"), PLAIN("cloud"),
      PLAIN("version"), PLAIN("currency"), PLAIN("expires_usec"));
SHOWN(user, "User", user_info, PLAIN("name"), PLAIN("team"), PLAIN("role"), MAYBE("uid"),
      PLAIN("created_usec"), PLAIN("service"), PLAIN("disabled"), PLAIN("email"),
      PLAIN("full_name"), PLAIN("org"), PLAIN("seen_usec"), PLAIN("oidc"));
SHOWN(users, "Users", user_list, INSIDE("users", "user", user));
SHOWN(team, "Team", team_info, PLAIN("name"), PLAIN("org"), MAYBE("users"), PLAIN("created_usec"));
SHOWN(teams, "Teams", team_list, INSIDE("teams", "team", team));
SHOWN(org, "Org", org_info, PLAIN("name"), MAYBE("teams"), MAYBE("users"), PLAIN("created_usec"));
SHOWN(orgs, "Orgs", org_list, INSIDE("orgs", "org", org));
SHOWN(token, "Token", token_info, PLAIN("id"), PLAIN("user"), PLAIN("name"), PLAIN("created_usec"),
      PLAIN("used_usec"), PLAIN("expires_usec"), AS("scopes", "scope"));
SHOWN(tokens, "Tokens", token_list, INSIDE("tokens", "token", token));
SHOWN(token_new, "TokenNew", token_new, PLAIN("id"), PLAIN("token"));
/* Of a new node; the place of the token's id lends its room to the address. */
SHOWN(invitation, "Invitation", token_new, AS("address", "id"), PLAIN("token"));

SHOWN(audit_entry, "AuditEntry", audit_entry, PLAIN("seq"), PLAIN("when_usec"), PLAIN("who"),
      PLAIN("what"), PLAIN("from"), HEX("hash"));
SHOWN(audit, "Audit", audit_list, INSIDE("audit", "entry", audit_entry), MAYBE("next"));
SHOWN(audit_verified, "AuditVerified", audit_list, PLAIN("checked"), PLAIN("broken"), HEX("head"),
      INSIDE("entries", "entry", audit_entry));

SHOWN(login, "Login", login_info, PLAIN("provider"), PLAIN("id"), PLAIN("url"), PLAIN("user_code"),
      PLAIN("interval_usec"), PLAIN("expires_usec"), PLAIN("token"), PLAIN("user"));

SHOWN(secret, "Secret", secret_info, PLAIN("name"), PLAIN("team"), PLAIN("user"),
      PLAIN("created_usec"), PLAIN("changed_usec"), PLAIN("version"), PLAIN("size"));
SHOWN(secrets, "Secrets", secret_list, INSIDE("secrets", "secret", secret));
