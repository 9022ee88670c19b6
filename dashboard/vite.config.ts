import { defineConfig } from "vite";

// One script, one style sheet, no inline anything: the server's content security policy allows only files of its own.
export default defineConfig({
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
  },
});
