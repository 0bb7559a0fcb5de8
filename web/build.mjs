// Bundles report.js and report.css with their libraries into op_tools/_report/page.js and page.css. The first line of each names a
// hash of the sources, by which tests/python/test_report.py sees that the files belong together.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const sources = ["package.json", "package-lock.json", "build.mjs", "report.js", "timeline.js", "report.css"];
const hash = createHash("sha256");
for (const name of sources) hash.update(readFileSync(name));
const licenses = ["@tanstack/virtual-core", "uplot"].map(
  (name) => `${name} ${JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version}\n\n` +
    readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim(),
);
const stamp = `sources ${hash.digest("hex")}`;

for (const [name, notice] of [["js", `${stamp}\n\n${licenses.join("\n\n")}\n`], ["css", stamp]]) {
  const { outputFiles } = await build({
    entryPoints: [`report.${name}`],
    bundle: true,
    minify: true,
    write: false,
    format: "iife",
    target: ["chrome100", "firefox115", "safari16.4"],
    charset: "utf8",
    legalComments: "none",
  });
  // The page holds it as the text of an element: nothing in it may end the element.
  const text = outputFiles[0].text.replaceAll("</", "<\\/").replaceAll("<!--", "<\\!--");
  writeFileSync(`../op_tools/_report/page.${name}`, `/* ${notice} */\n${text}`);
}
