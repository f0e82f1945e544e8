// Bundle the viewer into a folder: node bundle.mjs FOLDER

import { build } from "esbuild";

const folder = process.argv[2];
const entries = {
  "src/main.ts": "viewer.js", "src/main_gaussians.ts": "viewer_gaussians.js", "src/main_prompts.ts": "prompts.js",
};
for (const [entry, name] of Object.entries(entries)) {
  await build({
    entryPoints: [entry], outfile: `${folder}/${name}`, bundle: true, minify: true, format: "iife", target: "es2022",
    loader: { ".css": "text" }, legalComments: "eof", logLevel: "warning",
  });
}
