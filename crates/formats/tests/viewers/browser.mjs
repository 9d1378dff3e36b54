// Uses the flame graph in a real browser: `node browser.mjs CHROMIUM FILE FOLDER ASYNC COMPARED`. What is seen
// is asserted, and pictures of it are left in FOLDER. ASYNC is a page with async methods, COMPARED one of two recordings.
//
// Chromium is spoken to over its DevTools pipe (descriptors 3 and 4, messages ended by a zero), so
// nothing need be installed but the browser.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [chromium, file, folder, asyncFile, comparedFile] = process.argv.slice(2);
const profile = mkdtempSync(join(tmpdir(), "sidewalk-browser-"));
const browser = spawn(chromium, ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic",
  "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
  "--hide-scrollbars", "--remote-debugging-pipe", `--user-data-dir=${profile}`],
{ stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });

const waiting = new Map();
const listeners = [];
let number = 0;
let read = "";
browser.stdio[4].setEncoding("utf8");
browser.stdio[4].on("data", (text) => {
  read += text;
  for (let end; (end = read.indexOf("\0")) >= 0; read = read.slice(end + 1)) {
    const message = JSON.parse(read.slice(0, end));
    if (message.id) {
      const { resolve, reject } = waiting.get(message.id);
      waiting.delete(message.id);
      if (message.error) reject(new Error(JSON.stringify(message.error)));
      else resolve(message.result);
    } else {
      for (const listener of [...listeners]) listener(message);
    }
  }
});

function send(method, params = {}, sessionId) {
  const id = ++number;
  browser.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
  return new Promise((resolve, reject) => waiting.set(id, { resolve, reject }));
}

const problems = [];

class Page {
  static async open(url, { dark = false } = {}) {
    const page = new Page();
    const { targetId } = await send("Target.createTarget", { url: "about:blank" });
    page.session = (await send("Target.attachToTarget", { targetId, flatten: true })).sessionId;
    listeners.push((message) => {
      if (message.sessionId !== page.session) return;
      if (message.method === "Runtime.exceptionThrown") problems.push(message.params.exceptionDetails);
      if (message.method === "Log.entryAdded" && message.params.entry.level === "error") {
        problems.push(message.params.entry);
      }
    });
    await page.call("Page.enable");
    await page.call("Runtime.enable");
    await page.call("Log.enable");
    await page.call("Emulation.setDeviceMetricsOverride",
      { width: 1200, height: 700, deviceScaleFactor: 1, mobile: false });
    // The page keeps its one App to itself. Nothing else has a property of this name.
    await page.call("Page.addScriptToEvaluateOnNewDocument", { source: `
      Object.defineProperty(Object.prototype, "original", { configurable: true, set(value) {
        Object.defineProperty(this, "original", { value, writable: true });
        globalThis.app = this;
      } })` });
    await page.prefer(dark);
    await page.go(url);
    return page;
  }

  call(method, params) {
    return send(method, params, this.session);
  }

  prefer(dark) {
    const features = [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }];
    return this.call("Emulation.setEmulatedMedia", { features });
  }

  async go(url) {
    const loaded = new Promise((resolve) => listeners.push((message) => {
      if (message.sessionId === this.session && message.method === "Page.loadEventFired") resolve();
    }));
    await this.call("Page.navigate", { url });
    await loaded;
    // The page says so itself; no clock is asked.
    assert.equal(await this.eval(`new Promise((resolve) => {
      const root = document.documentElement;
      const look = () => root.dataset.ready ? resolve(root.dataset.ready) : requestAnimationFrame(look);
      look();
    })`), "true");
  }

  /** The value of an expression, after the picture has been drawn. */
  async eval(expression) {
    const { result, exceptionDetails } = await this.call("Runtime.evaluate",
      { expression, awaitPromise: true, returnByValue: true });
    assert.equal(exceptionDetails, undefined, JSON.stringify(exceptionDetails));
    return result.value;
  }

  drawn() {
    return this.eval("new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))");
  }

  async key(key, modifiers = 0) {
    const text = key.length === 1 ? key : key === "Enter" ? "\r" : undefined;
    const code = { Enter: 13, Escape: 27 }[key];
    await this.call("Input.dispatchKeyEvent", { type: "keyDown", key, text, modifiers, windowsVirtualKeyCode: code });
    await this.call("Input.dispatchKeyEvent", { type: "keyUp", key, modifiers, windowsVirtualKeyCode: code });
    await this.drawn();
  }

  async click(x, y) {
    for (const type of ["mousePressed", "mouseReleased"]) {
      await this.call("Input.dispatchMouseEvent", { type, x, y, button: "left", clickCount: 1 });
    }
    await this.drawn();
  }

  async clickOn(selector) {
    const { x, y } = await this.eval(`(() => {
      const box = document.querySelector(${JSON.stringify(selector)}).getBoundingClientRect();
      return { x: box.left + box.width / 2, y: box.top + box.height / 2 };
    })()`);
    await this.click(x, y);
  }

  /** Where a node is on the screen. */
  boxOf(node) {
    return this.eval(`(() => {
      const at = app.graph.layout.where(${node});
      if (!at) return null;
      const graph = document.getElementById("graph").getBoundingClientRect();
      const { x, w } = app.graph.layout.boxes;
      const top = app.graph.top(at.row) - app.graph.container.scrollTop;
      return { x: graph.left + x[at.box] + Math.min(w[at.box] / 2, 5), y: graph.top + top + 8, w: w[at.box],
        seen: top >= 0 && top + 10 < graph.height };
    })()`);
  }

  async choose(id, value) {
    await this.eval(`(() => {
      const select = document.getElementById(${JSON.stringify(id)});
      select.value = ${JSON.stringify(value)};
      select.dispatchEvent(new Event("change"));
    })()`);
    await this.drawn();
  }

  async type(text) {
    await this.key("/");
    await this.eval(`document.getElementById("search").value = ""`);
    await this.call("Input.insertText", { text });
    // The page waits a moment for more letters.
    await this.eval(`new Promise((resolve) => {
      const look = () => app.matches && app.searched === document.getElementById("search").value
        ? resolve() : requestAnimationFrame(look);
      look();
    })`);
    await this.drawn();
  }

  text(id) {
    return this.eval(`document.getElementById(${JSON.stringify(id)}).textContent`);
  }

  async picture(name) {
    const { data } = await this.call("Page.captureScreenshot", { format: "png" });
    writeFileSync(join(folder, `${name}.png`), Buffer.from(data, "base64"));
  }
}

const tests = {
  async "one line is one box, also where two tiers ran it"(page) {
    await page.choose("detail", "line");
    await page.clickOn("#tab-table");
    const rows = await page.eval(`[...document.querySelectorAll("#table td.name")].map((td) => td.textContent)`);
    assert.equal(new Set(rows).size, rows.length, "each row has a name of its own");
    assert.equal(rows.filter((name) => name.startsWith("App.Hot.Run")).length, 1);
    await page.choose("detail", "tier");
    const tiers = await page.eval(`[...document.querySelectorAll("#table td.name")].map((td) => td.textContent)`);
    assert.equal(new Set(tiers).size, tiers.length, "a tier says so");
    assert.ok(tiers.includes("App.Hot.Run  (tier-0)") && tiers.includes("App.Hot.Run  (tier-1)"), tiers.slice(0, 5));
  },

  async "a method picked in the table is shown, and the next one too"(page) {
    await page.clickOn("#tab-table");
    await page.picture("table");
    await page.eval(`[...document.querySelectorAll("#table tbody tr")]
      .find((row) => row.querySelector(".name").textContent === "App.Deep.Needle").click()`);
    await page.drawn();
    assert.equal(await page.text("hit"), "1 of 2");
    const first = await page.eval("app.selected");
    for (const picture of ["needle", "needle-next"]) {
      assert.equal(await page.eval("app.tree.name(app.selected)"), "App.Deep.Needle");
      const box = await page.boxOf(await page.eval("app.selected"));
      assert.ok(box && box.seen && box.w >= 12, JSON.stringify(box));
      await page.picture(picture);
      await page.clickOn("#next");
    }
    assert.equal(await page.eval("app.selected"), first, "behind the last comes the first");
    await page.key("N");
    assert.equal(await page.text("hit"), "2 of 2");
  },

  async "the table is of what is zoomed into"(page) {
    const node = await page.eval(`(app.tree.expand(0), (() => {
      const { nodes } = app.tree;
      for (let c = nodes.first[0]; c < nodes.first[0] + nodes.count[0]; c++) {
        if (app.tree.name(c) === "App.Program.Main") return c;
      }
    })())`);
    const box = await page.boxOf(node);
    await page.click(box.x, box.y);
    await page.clickOn("#tab-table");
    const text = await page.text("table");
    assert.ok(text.includes("In App.Program.Main"), text.slice(0, 100));
    assert.ok(!text.includes("native_wait"), "what is not below it is not there");
    assert.ok((await page.text("path")).includes("Main"));
    await page.picture("zoomed-table");
  },

  async "the toolbar stays where it is when Reverse is pressed"(page) {
    const places = () => page.eval(`JSON.stringify([...document.querySelectorAll(".bar > *")].map((element) => {
      const { left, top, width } = element.getBoundingClientRect();
      return [element.id, left, top, width];
    }))`);
    const before = await places();
    for (const button of ["#reverse", "#icicle", "#tab-table", "#tab-graph", "#reverse", "#icicle"]) {
      await page.clickOn(button);
      assert.equal(await places(), before, button);
    }
  },

  async "dark stays dark when the page is opened again"(page, url) {
    const theme = () => page.eval("document.documentElement.dataset.theme");
    assert.equal(await theme(), "light");
    await page.key("d");
    assert.equal(await theme(), "dark");
    await page.picture("dark");
    await page.go(url);
    assert.equal(await theme(), "dark");
    await page.prefer(false);
    assert.equal(await theme(), "dark", "what was chosen counts");
    await page.key("d");
  },

  async "an expression that is none says so"(page) {
    await page.type("Needle(");
    assert.match(await page.text("matched"), /as plain text \(not a valid expression\)/);
    await page.picture("wrong-expression");
    await page.type("needle");
    assert.match(await page.text("matched"), /^\d.*matched$/);
  },

  async "many small callers can be opened"(page) {
    await page.clickOn("#reverse");
    const rest = () => page.eval("[...app.graph.layout.boxes.node.slice(app.graph.layout.rowStart[app.graph.layout.focusRow + 1], app.graph.layout.boxes.length)].find((node) => node < -1) ?? 0");
    const steps = [];
    for (let node = await rest(); node !== 0 && steps.length < 5; node = await rest()) {
      const box = await page.boxOf(node);
      await page.click(box.x, box.y);
      assert.match(await page.text("path"), /more callers/);
      assert.ok(!steps.includes(node), "each click shows others");
      steps.push(node);
      if (steps.length === 1) await page.picture("more-callers");
    }
    assert.ok(steps.length > 0, "the scene has callers too small to be drawn");
    // Escape goes back through all of them.
    for (let step = 0; step < steps.length; step++) await page.key("Escape");
    assert.equal(await page.eval("app.focus"), 0);
    assert.equal(await page.eval("app.part"), -1);
  },

  async "overloads are told apart by a switch"(page) {
    const names = async () => {
      await page.clickOn("#tab-table");
      const rows = await page.eval(`[...document.querySelectorAll("#table td.name")].map((td) => td.textContent)`);
      return rows.filter((name) => name.startsWith("App.Shop.Print")).sort();
    };
    assert.deepEqual(await names(), ["App.Shop.Print"]);
    await page.clickOn("#signatures");
    assert.deepEqual(await names(), ["App.Shop.Print(int)", "App.Shop.Print(string)"]);
    await page.clickOn("#tab-graph");
    await page.picture("signatures");
  },

  async "who awaits an async method, or the thread's stack"(page) {
    assert.equal(await page.eval(`document.getElementById("stacks").checkVisibility()`), false, "each sample has one stack");
    await page.go(pathToFileURL(asyncFile).href);
    const names = () => page.eval(`[...app.graph.layout.boxes.node.slice(0, app.graph.layout.boxes.length)]
      .filter((node) => node >= 0).map((node) => app.tree.name(node))`);
    const dispatch = "System.Threading.ThreadPoolWorkQueue.Dispatch";
    const logical = await names();
    assert.ok(logical.includes("[Task.Run]") && !logical.includes(dispatch), logical.join(", "));
    await page.picture("logical");
    await page.key("l");
    const physical = await names();
    assert.ok(!physical.includes("[Task.Run]") && physical.includes(dispatch), physical.join(", "));
    await page.picture("physical");
    await page.choose("stacks", "0");
    assert.deepEqual(await names(), logical);
  },

  async "how two recordings differ"(page) {
    await page.go(pathToFileURL(comparedFile).href);
    const changes = await page.eval(`Object.fromEntries([...app.graph.layout.boxes.node.slice(0, app.graph.layout.boxes.length)]
      .map((node) => [app.tree.name(node), app.weights.change(app.tree.nodes.weight[node], app.tree.nodes.after[node])]))`);
    assert.equal(changes["App.Shop.New"], 1);
    assert.equal(changes["App.Shop.Gone"], -1);
    assert.ok(Math.abs(changes["App.Shop.More"] - Math.log2(1.5)) < 0.02, JSON.stringify(changes));
    assert.ok(Math.abs(changes["App.Shop.Same"]) < 0.02 && Math.abs(changes["App.Shop.Main"]) < 0.02, JSON.stringify(changes));
    assert.match(await page.text("legend"), /before: before.swk; after: after.swk/);
    await page.picture("compared");
    const more = await page.boxOf(await page.eval(`app.tree.find([...app.keys.name.keys()]
      .filter((key) => ["App.Shop.Main", "App.Shop.More"].includes(app.keys.name[key]))
      .sort((a, b) => app.keys.name[a] < app.keys.name[b] ? -1 : 1))`));
    await page.call("Input.dispatchMouseEvent", { type: "mouseMoved", x: more.x, y: more.y });
    await page.drawn();
    assert.match(await page.text("tip"), /before20.00 %.*after30.00 %\+50.0 %/);
    await page.picture("compared-tip");
    // From the leaves it is the same.
    await page.key("r");
    await page.clickOn("#tab-table");
    const rows = await page.eval(`[...document.querySelectorAll("#table tbody tr")].map((row) =>
      [...row.querySelectorAll("td")].map((td) => td.textContent))`);
    const own = rows.map(([before, after, change, , , , , name]) => [name, before, after, change]);
    assert.deepEqual(own.filter(([name]) => name !== "App.Shop.Main"), [
      ["App.Shop.More", "20.00 %", "30.00 %", "+50.0 %"],
      ["App.Shop.New", "0.00 %", "5.00 %", "new"],
      ["App.Shop.Same", "20.00 %", "20.00 %", "+0.0 % ?"],
      ["App.Shop.Least", "50.00 %", "45.00 %", "−10.0 %"],
      ["App.Shop.Gone", "10.00 %", "0.00 %", "gone"],
    ]);
    await page.picture("compared-table");
    await page.clickOn("#theme");
    await page.clickOn("#tab-graph");
    await page.picture("compared-dark");
    // One side alone is no comparison.
    await page.choose("process", "1");
    assert.doesNotMatch(await page.text("legend"), /before/);
  },

  async "managed code only fills the width"(page) {
    await page.choose("code", "managed");
    const width = await page.eval(`(() => {
      const { layout } = app.graph;
      let sum = 0;
      for (let box = layout.rowStart[1]; box < layout.rowEnd(1); box++) sum += layout.boxes.w[box];
      return sum / layout.width;
    })()`);
    assert.ok(width > 0.99, `${width} of the width`);
    await page.picture("managed-only");
  },
};

let failed = 0;
try {
  const url = pathToFileURL(file).href;
  for (const [name, test] of Object.entries(tests)) {
    let page;
    try {
      page = await Page.open(url);
      await test(page, url);
      assert.deepEqual(problems, []);
      console.log(`ok ${name}`);
    } catch (error) {
      failed++;
      problems.length = 0;
      await page?.picture("failed").catch(() => {});
      console.error(`FAILED ${name}\n${error.stack}`);
    }
  }
} finally {
  const gone = new Promise((resolve) => browser.on("exit", resolve));
  await Promise.race([gone, send("Browser.close")]).catch(() => browser.kill());
  await gone;
  rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
}
process.exit(failed > 0 ? 1 : 0);
