// Uses the flame graph of a scene as a user at the screen would, on a page that is only as real
// as the script needs: `node ui.mjs FILE SCENE`. What is drawn is kept as a list of texts and
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
    // Of other pictures than the graph nothing is looked at here.
    const none = () => {};
    const calls = ["setTransform", "save", "restore", "beginPath", "rect", "clip", "moveTo", "lineTo", "stroke", "fill",
      "fillRect", "fillText", "strokeRect"];
    if (this.id !== "canvas") {
      return Object.assign(Object.fromEntries(calls.map((name) => [name, none])), { measureText: () => ({ width: 9 }) });
    }
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
  if (!elements.has(id)) elements.set(id, Object.assign(new Element("div"), { id }));
  return elements.get(id);
};
const space = byId("space");
for (const [, id, value] of html.matchAll(/<select id="([a-z]+)"[^>]*>\s*<option value="([a-z]+)"/g)) {
  byId(id).value = value;
}
for (const [, id] of html.matchAll(/<[a-z]+ id="([a-z-]+)"[^>]* hidden>/g)) byId(id).hidden = true;
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
  window: { devicePixelRatio: 2, addEventListener() {} }, location: { hash: "", pathname: "/page.html", search: "" },
  history: { replaceState() {} }, URLSearchParams, performance, innerWidth: WIDTH, innerHeight: HEIGHT,
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

const search = (text) => {
  byId("search").value = text;
  byId("search").does("input");
  return byId("matched").textContent;
};
const rows = () => [...under(byId("table"))].filter((e) => e.tag === "tr").slice(1)
  .map((row) => row.textContent.replace(/\s+/g, " ").trim());
const header = (name) => [...under(byId("table"))].find((e) => e.tag === "button" && e.textContent === name);

function tiny() {
  assert.equal(byId("stacks").hidden, true, "each sample has one stack");
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
  assert.match(byId("legend").textContent, /managed, optimized.*86\.00 %.*not whole.*3\.00 %/);

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
  assert.equal(search("MEMMOVE"), "0.00 % matched");
  assert.equal(search("memmove"), "5.00 % matched");
  const plain = box("start_thread").color;
  assert.equal(search("sample\\.worker"), "94.00 % matched");
  assert.notEqual(box("Sample.Worker.Parse").color, plain);
  assert.equal(search("(unsigned char**"), "6.00 % matched as plain text (not a valid expression)");
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
  assert.equal(drawn.filter((d) => /Hash {2}\(/.test(d.text ?? "")).length, 3);
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
  assert.match(rows()[0], /^60\.00 % 600\.00 ms 94\.00 % 940\.00 ms 60 Sample\.Worker\.Hash managed sample\.dll/);
  assert.match(rows()[1], /^26\.00 % .* Sample\.Worker\.Parse/);
  header("method").does("click");
  assert.match(rows()[0], /CallDescrWorkerInternal/);
  header("method").does("click");
  assert.match(rows()[0], /start_thread|__libc/);
  [...under(byId("table"))].filter((e) => e.tag === "tr")[1].does("click");
  assert.equal(byId("graph").hidden, false);
  assert.match(byId("search").value, /^\^.*\$$/);
  press("Escape");
  press("Home");

  // Dark.
  const light = box("all").color;
  press("d");
  assert.notEqual(box("all").color, light);
  assert.equal(root.dataset.theme, "dark");
}

function events() {
  // What an event is about is above the method that it happened in.
  assert.equal(byId("event-box").hidden, false);
  assert.equal(byId("about").hidden, true, "cpu samples are about nothing");
  choose("event", 3);
  assert.equal(byId("about").hidden, false);
  near(box("System.FormatException").w, WIDTH * 4 / 6);
  assert.ok(find("System.FormatException").y < find("Shop.Order.Parse").y);
  assert.match(byId("legend").textContent, /exception thrown.*100\.00 %/);
  const tip = hover("System.FormatException");
  assert.match(tip, /total 66\.67 % 4 samples self 66\.67 % 4 samples/);
  assert.match(tip, /kind detail/);
  assert.match(tip, /says The input string 'x' was not in a correct format\.; caught by Shop\.Order\.Parse 75\.00 %/);
  choose("detail", "line");
  assert.equal(drawn.filter((d) => d.text?.includes("FormatException  Th")).length, 2);
  choose("detail", "method");

  // Off: the method has it all.
  byId("about").does("click");
  assert.ok(!drawn.some((d) => d.text === "System.FormatException"));
  assert.match(hover("Shop.Order.Parse"), /self 66\.67 % 4 samples/);
  press("a");
  find("System.FormatException");

  // Bytes, and who allocates a type.
  choose("event", 2);
  assert.equal(byId("measure").value, "value");
  assert.match(hover("System.Collections.Generic.Dictionary<int, Item>.Entry[]"), /total 87\.97 % 1 sample 5\.00 MiB/);
  assert.match(byId("legend").textContent, /type allocated/);
  press("r");
  near(box("System.Collections.Generic.Dictionary<int, Item>.Entry[]").w, WIDTH * 5242880 / 5959680);
  press("r");

  // Also when only managed code is shown.
  choose("event", 1);
  press("m");
  assert.match(hover("Shop.Catalog.Load"), /self 100\.00 % 10 samples/);
  choose("event", 2);
  find("System.Collections.Generic.Dictionary<int, Item>.Entry[]");
  press("m");
  assert.match(byId("honest").textContent, /34 limited \(exception 4, alloc 30 of 3\.00 MiB\).*3 pauses/);
}

function shadow() {
  // Calls beside time.
  assert.match(hover("Tree.Main"), /self 16\.00 % 1 sample 2\.00 ms calls 1/);
  press("t");
  header("calls").does("click");
  assert.match(rows()[0], /^0\.00 % 0 ns 0\.00 % 0 ns 0 8 Tree\.Leaf/);
  assert.match(rows()[1], /^84\.00 % 10\.50 ms 84\.00 % 10\.50 ms 3 7 Tree\.Walk/);
  press("t");
  choose("event", 1);
  near(box("Tree.Leaf").w, WIDTH * 8 / 16);
  assert.equal(byId("measure").value, "value");
}

function two_runtimes() {
  // A stripe under the frames of each CLR, in its colour.
  assert.match(byId("legend").textContent, /\.NET 3\.1\.23 .*50\.00 %.*\.NET 8\.0\.4 .*50\.00 %/);
  assert.match(hover("Shared.Step [3.1.23]"), /CLR \.NET 3\.1\.23/);
  const stripes = (text) => {
    const of = find(text);
    return drawn.filter((d) => !d.text && d.x === of.x - 4 && Math.abs(d.y - of.y - 5.5) < 1);
  };
  assert.equal(stripes("App.Program.Main [8.0.4]").length, 1);
  assert.notEqual(stripes("App.Program.Main [8.0.4]")[0].color, stripes("Shared.Step [3.1.23]")[0].color);
  assert.equal(stripes("bridge_call").length, 0);
}

function awaits() {
  // Who awaits, as the source reads: methods that wait are boxes like those that run.
  assert.equal(byId("stacks").hidden, false);
  near(box("[blocking wait]").w, WIDTH * 30 / 60);
  assert.ok(find("[blocking wait]").y > find("[Task.Run]").y, "callees are above");
  assert.match(hover("[Task.Run]"), /kind async/);
  assert.match(byId("legend").textContent, /managed, awaiting +50\.00 %.*not whole +8\.33 %.*between async methods +50\.00 %/);
  assert.ok(!drawn.some((d) => d.text?.includes("Dispatch")));
  press("t");
  assert.match(rows()[1], /^0\.00 % 0 ns 66\.67 % 400\.00 ms 0 Shop\.Cart\.Checkout/);
  press("t");

  // Managed code only: what is between stays.
  press("m");
  find("[Task.Run]");
  assert.ok(!drawn.some((d) => d.text === "start_thread"));
  press("m");

  // What was on the threads' stacks; as much of everything.
  press("l");
  assert.equal(byId("stacks").value, 1);
  assert.match(hover("all"), /^all total 100\.00 % 60 samples 600\.00 ms/);
  assert.match(hover("System.Threading.ThreadPoolWorkQueue.Dispatch"), /total 58\.33 % 35 samples/);
  assert.ok(!drawn.some((d) => d.text === "[Task.Run]"));
  assert.doesNotMatch(byId("legend").textContent, /awaiting|async/);

  // The choice stays with other choices.
  choose("roots", "each");
  near(box(".NET TP Worker (tid 4712)").w, WIDTH * 35 / 60);
  find("System.Threading.ThreadPoolWorkQueue.Dispatch");
  choose("stacks", 0);
  near(box(".NET TP Worker (tid 4712)").w, WIDTH * 35 / 60);
  find("[Task.Run]");
  choose("roots", "merged");
  near(box("[blocking wait]").w, WIDTH * 30 / 60);
  assert.match(byId("honest").textContent, /36 in resumed async methods, of which 6 without/);
}

({ tiny, events, shadow, two_runtimes, awaits })[process.argv[3]]();
