// An identity provider for the tests: oidc-provider as it is, with people who exist and a client that is this cloud.
// node provider.mjs PORT REDIRECT KIND: KIND is the kind of key it signs with (RS256, ES256, EdDSA) and a word that makes another key.
import { generateKeyPairSync } from "node:crypto";
import Provider from "oidc-provider";

const [port, redirect, kind, word] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const people = {
  ann: { name: "Ann Lee", email: "ann@example.org", email_verified: true, groups: ["staff", "vision-people"] },
  bob: { name: "Bob", email: "bob@example.org", email_verified: true, groups: [] },
  eve: { name: "Eve", email: "eve@evil.example", email_verified: true, preferred_username: "root", groups: [] },
  tim: { name: "Tim", email: "tim@example.org", email_verified: true, groups: ["chiefs"] },
};
const pair = { RS256: ["rsa", { modulusLength: 2048 }], ES256: ["ec", { namedCurve: "P-256" }], EdDSA: ["ed25519", {}] }[kind];
const { privateKey } = generateKeyPairSync(...pair);
const key = { ...privateKey.export({ format: "jwk" }), kid: `${kind}-${word}`, use: "sig", alg: kind };

const provider = new Provider(issuer, {
  jwks: { keys: [key] },
  clients: [{
    client_id: "virga", client_secret: "a secret / with + signs", redirect_uris: [redirect],
    grant_types: ["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"], response_types: ["code"],
    id_token_signed_response_alg: kind,
  }],
  enabledJWA: { idTokenSigningAlgValues: ["RS256", "ES256", "EdDSA"] },
  features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true } },
  claims: { openid: ["sub"], profile: ["name", "preferred_username"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "profile", "email", "groups"],
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  cookies: { keys: ["for tests"] },
  findAccount: (ctx, id) => people[id] && { accountId: id, claims: () => ({ sub: id, preferred_username: id, ...people[id] }) },
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
