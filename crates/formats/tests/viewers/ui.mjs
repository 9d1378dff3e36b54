// Uses the flame graph of the scene `tiny` as somebody at the screen would, on a page that is only
// as real as the script needs: `node ui.mjs FILE`. What is drawn is kept as a list of texts and
// boxes, each frame anew.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import vm from "node:vm";

const html = readFileSync(process.argv[2], "utf8");
const inner = (pattern) => pattern.exec(html)[1];

const WIDTH = 1000;
const HEIGHT = 600;
let drawn = [];
let frames = [];
let timers = [];

class Element {
  constructor(tag) {
    Object.assign(this, {
      tag, children: [], listeners: {}, style: {}, dataset: {}, attributes: {}, value: "",
      hidden: false, scrollTop: 0, clientWidth: WIDTH, clientHeight: HEIGHT, offsetWidth: 200,
      offsetHeight: 80, open: false, text: "", classes: new Set(),
    });
    this.classList = {
      add: (name) => this.classes.add(name), remove: (name) => this.classes.delete(name),
    };
  }

  get textContent() {
    return this.text + this.children.map((c) => typeof c === "string" ? c : c.textContent).join(" ");
  }

  set textContent(text) {
    this.children = [];
    this.text = text;
  }

  get lastChild() { return this.children.at(-1); }
  get scrollHeight() { return Math.max(this.clientHeight, parseFloat(space.style.height ?? "0")); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.text = ""; this.children = children; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener(type, action) { (this.listeners[type] ??= []).push(action); }
  getBoundingClientRect() { return { left: 0, top: 0, width: WIDTH, height: HEIGHT, bottom: HEIGHT }; }
  focus() {}
  blur() {}
  select() {}
  showModal() { this.open = true; }

  getContext() {
    const context = {
      fillRect: (x, y, w, h) => {
        if (h === HEIGHT) drawn = [];
        else drawn.push({ x, y, w, color: context.fillStyle });
      },
      fillText: (text, x, y) => drawn.push({ text, x, y }),
      measureText: (text) => ({ width: 7 * text.length }),
    };
    for (const name of ["setTransform", "save", "restore", "beginPath", "rect", "clip", "moveTo",
      "lineTo", "stroke"]) context[name] = () => {};
    return context;
  }

  /** What the user does to it. */
  does(type, event = {}) {
    for (const action of this.listeners[type] ?? []) {
      action({ target: this, preventDefault() {}, ...event });
    }
    settle();
  }
}

/** All elements under this one. */
function* under(element) {
  for (const child of element.children) {
    if (typeof child === "string") continue;
    yield child;
    yield* under(child);
  }
}

function settle() {
  while (frames.length + timers.length > 0) {
    const due = [...timers, ...frames];
    timers = [];
    frames = [];
    for (const action of due) action();
  }
}

const elements = new Map();
const byId = (id) => {
  if (!html.includes(`id="${id}"`)) throw new Error(`the page has no ${id}`);
  if (!elements.has(id)) elements.set(id, new Element("div"));
  return elements.get(id);
};
const space = byId("space");
for (const [, id, value] of html.matchAll(/<select id="([a-z]+)"[^>]*>\s*<option value="([a-z]+)"/g)) {
  byId(id).value = value;
}
const payload = byId("profile");
payload.text = inner(/<script type="text\/plain" id="profile"[^>]*>([^<]*)<\/script>/);
payload.dataset.encoding = inner(/data-encoding="([a-z-]+)"/);

const root = new Element("html");
const keyboard = new Element("document");
const page = {
  document: {
    getElementById: byId, createElement: (tag) => new Element(tag), documentElement: root,
    body: new Element("body"), title: "",
    addEventListener: (type, action) => keyboard.addEventListener(type, action),
  },
  window: { devicePixelRatio: 2 }, innerWidth: WIDTH, innerHeight: HEIGHT,
  matchMedia: () => ({ matches: false, addEventListener() {} }),
  requestAnimationFrame: (action) => frames.push(action),
  setTimeout: (action) => timers.push(action), clearTimeout: () => { timers = []; },
  ResizeObserver: class { observe() {} },
  HTMLInputElement: class {}, HTMLSelectElement: class {},
  atob, Blob, Response, DecompressionStream, TextDecoder,
};
vm.runInNewContext(inner(/<script>([\s\S]*)<\/script>/), page);
while (root.dataset.ready === undefined) await new Promise((done) => setImmediate(done));
assert.equal(root.dataset.ready, "true", byId("message").textContent);
settle();

const press = (key) => keyboard.does("keydown", { key, target: page.document.body });
const choose = (id, value) => {
  byId(id).value = value;
  byId(id).does("change");
};
const find = (text) => drawn.find((d) => d.text === text) ?? assert.fail(
  `${text} is not drawn: ${drawn.filter((d) => d.text).map((d) => d.text).join(", ")}`);
/** The box that a text stands in. */
const box = (text) => {
  const at = find(text);
  return drawn.find((d) => !d.text && d.x === at.x - 4 && Math.abs(d.y + 9.5 - at.y) < 1);
};
const at = (text) => ({ clientX: find(text).x, clientY: find(text).y });
const hover = (text) => {
  byId("graph").does("pointermove", at(text));
  return byId("tip").textContent.replace(/\s+/g, " ");
};
const near = (is, expected) => assert.ok(Math.abs(is - expected) < 1.5, `${is}, not ${expected}`);

// What is there at first.
assert.equal(page.document.title, "/opt/dotnet/dotnet sample.dll --fast");
assert.equal(byId("title").textContent, "dotnet sample.dll --fast");
assert.match(byId("facts").textContent, /1\.000 s · every 10\.00 ms · \.NET 8\.0\.4 · 3 threads/);
assert.match(byId("honest").textContent, /^100 samples, 3 lost \(2\.91 %/);
assert.equal(byId("message").hidden, true);
near(box("all").w, WIDTH);
near(box("Sample.Program.Main").w, 480);
near(box("start_thread").w, 490);
assert.ok(find("Sample.Program.Main").y < find("__libc_start_main").y, "callees are above");
assert.match(byId("legend").textContent, /managed, optimized.*86\.00 %.*broken or truncated.*3\.00 %/);

// Hovering says everything.
assert.match(hover("all"), /^all total 100\.00 % 100 samples 1\.000 s/);
const tip = hover("Sample.Worker.Parse");
assert.match(tip, /^Sample\.Worker\.Parse total 25\.00 % 25 samples 250\.00 ms self 25\.00 % 25 samples/);
assert.match(tip, /of caller 55\.56 %/);
assert.match(tip, /kind managed, tier-1 module \/srv\/app\/sample\.dll/);
byId("graph").does("pointerleave");
assert.equal(byId("tip").hidden, true);

// Zoom and back.
byId("graph").does("click", at("Sample.Worker.Parse"));
near(box("Sample.Worker.Parse").w, WIDTH);
near(box("start_thread").w, WIDTH);
assert.match(byId("path").textContent, /all .*Worker\.Hash .*Worker\.Parse .*Reset zoom/);
press("Escape");
near(box("Sample.Worker.Parse").w, 250);
byId("graph").does("click", at("start_thread"));
[...under(byId("path"))].find((e) => e.textContent === "Reset zoom").does("click");
near(box("start_thread").w, 490);

// Search: any case unless there is an upper case letter; what is no expression is text.
const search = (text) => {
  byId("search").value = text;
  byId("search").does("input");
  return byId("matched").textContent;
};
assert.equal(search("MEMMOVE"), "0.00 % matched");
assert.equal(search("memmove"), "5.00 % matched");
const plain = box("start_thread").color;
assert.equal(search("sample\\.worker"), "94.00 % matched");
assert.notEqual(box("Sample.Worker.Parse").color, plain);
assert.equal(search("(unsigned char**"), "6.00 % matched");
assert.ok(byId("search").classes.has("literal"));
press("Escape");
assert.equal(byId("matched").textContent, "");

// Filters; the zoom stays where there is something to zoom into.
choose("thread", "id:2");
assert.match(hover("all"), /^all total 100\.00 % 6 samples 60\.00 ms/);
choose("thread", "name:.NET Main");
assert.match(hover("all"), /48 samples/);
byId("graph").does("click", at("Sample.Program.Main"));
choose("thread", "");
near(box("Sample.Program.Main").w, WIDTH);
press("Home");
choose("measure", "samples");
assert.match(hover("all"), /Percentages are of samples/);
choose("measure", "value");

// Threads at the roots, one by one.
choose("roots", "each");
near(box(".NET Main (tid 4242)").w, 480);
near(box("thread 4250 (tid 4250)").w, 460);
choose("roots", "merged");

// Managed code only: the rest counts for its caller.
press("m");
assert.match(hover("Sample.Worker.Hash"), /total 48\.00 % 48 samples/);
assert.ok(!drawn.some((d) => d.text === "start_thread"));
press("m");

// Tiers apart.
choose("detail", "tier");
assert.equal(drawn.filter((d) => d.text?.endsWith("Worker.Hash")).length, 3);
choose("detail", "method");

// From the leaves, and downwards.
press("r");
near(box("Sample.Worker.Hash").w, 600);
assert.match(hover("all, from the leaves"), /100 samples/);
press("i");
assert.ok(find("Sample.Worker.Hash").y > find("all, from the leaves").y, "callers are below");
press("r");
press("i");

// Keys alone.
byId("graph").does("pointerleave");
press("ArrowUp");
press("ArrowUp");
assert.match(byId("tip").textContent, /^start_thread/);
press("ArrowRight");
assert.match(byId("tip").textContent, /^__libc_start_main/);
press("ArrowLeft");
press("Enter");
near(box("start_thread").w, WIDTH);
press("Home");

// The table.
press("t");
assert.equal(byId("graph").hidden, true);
const rows = () => [...under(byId("table"))].filter((e) => e.tag === "tr").slice(1)
  .map((row) => row.textContent.replace(/\s+/g, " ").trim());
assert.match(rows()[0], /^60\.00 % 600\.00 ms 94\.00 % 940\.00 ms 60 Sample\.Worker\.Hash managed sample\.dll/);
assert.match(rows()[1], /^26\.00 % .* Sample\.Worker\.Parse/);
const header = (name) => [...under(byId("table"))].find((e) => e.tag === "button" && e.textContent === name);
header("method").does("click");
assert.match(rows()[0], /CallDescrWorkerInternal/);
header("method").does("click");
assert.match(rows()[0], /start_thread|__libc/);
[...under(byId("table"))].filter((e) => e.tag === "tr")[1].does("click");
assert.equal(byId("graph").hidden, false);
assert.match(byId("search").value, /^\^.*\$$/);
press("Escape");

// Dark.
const light = box("all").color;
press("d");
assert.notEqual(box("all").color, light);
assert.equal(root.dataset.theme, "dark");
