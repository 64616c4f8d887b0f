import { defineConfig } from "vite";

// Hashed names are kept for ever by browsers; index.html is asked for anew. Nothing is inlined: the policy that
// virgad sends with every page allows neither inline scripts nor inline styles.
export default defineConfig({
  base: "/",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    target: "es2021",
    outDir: "dist",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 400,
  },
  server: { proxy: { "/api": { target: process.env.VIRGA_URL ?? "https://127.0.0.1:8443", secure: false, ws: true } } },
});
