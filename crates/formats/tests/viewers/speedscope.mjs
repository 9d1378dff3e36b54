// Imports a file with speedscope's own importer and prints what it understood:
// `node speedscope.mjs SITE FILE`.
//
// speedscope is built as one script for a browser. Its importer needs no page: the script is run
// against an empty one, and the function that its file chooser calls is handed out first.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const [site, file] = process.argv.slice(2);
const name = readdirSync(site).find((entry) => /^speedscope-.*\.js$/.test(entry));
const source = readFileSync(join(site, name), "utf8");
const found = /loadFileFromBase64:\(\w+,\w+\)=>\{this\.loadProfile\(\(\)=>(\w+)\(/.exec(source);
if (!found || !source.includes("(()=>{")) throw new Error("this build of speedscope is unknown");
const open = source.replace("(()=>{", `(()=>{globalThis.importFile=(...a)=>${found[1]}(...a);`);

/** Anything: can be called, made, read and written. */
function anything() {
  return new Proxy(function () {}, {
    get(target, key) {
      if (key === "then") return undefined;
      if (key === Symbol.toPrimitive) return () => 0;
      if (key === Symbol.iterator) return function* () {};
      if (!(key in target)) target[key] = anything();
      return target[key];
    },
    apply: anything,
    construct: anything,
  });
}

const problems = [];
const page = {
  console: { log() {}, warn() {}, time() {}, timeEnd() {}, error: (...a) => problems.push(a) },
  alert: (text) => problems.push(text),
  document: anything(), localStorage: anything(), navigator: { userAgent: "", platform: "" },
  location: { hash: "", href: "file:///", protocol: "file:" }, devicePixelRatio: 1,
  addEventListener() {}, removeEventListener() {}, matchMedia: anything(),
  requestAnimationFrame() {}, cancelAnimationFrame() {}, setTimeout, clearTimeout, setInterval() {},
  TextDecoder, TextEncoder, URL, Blob, atob, btoa, performance, fetch: anything(), WebAssembly,
  HTMLElement: class {}, FileReader: class {},
};
page.window = page.self = page;
try {
  vm.runInNewContext(open, page, { filename: name });
} catch {
  // It cannot draw on a page that is not there; the importer is defined before it tries.
}
problems.length = 0;
const group = await page.importFile(file, readFileSync(file).toString("base64"));
if (!group) throw new Error(`not imported: ${problems.join(", ")}`);
if (problems.length > 0) throw new Error(problems.join(", "));
console.log(`group ${group.name}`);
for (const profile of group.profiles) {
  console.log(`profile ${profile.getTotalWeight()} ${profile.getWeightUnit()} ${profile.getName()}`);
  profile.forEachFrame((frame) => {
    console.log(`frame ${frame.getSelfWeight()} ${frame.getTotalWeight()} ${frame.name}`);
  });
}
