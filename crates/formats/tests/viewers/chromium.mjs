// A real browser for tests: spoken to over Chromium's DevTools pipe (descriptors 3 and 4, messages ended by a zero), so
// nothing need be installed but the browser. The first two arguments of the process are the browser and
// the folder for pictures.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [chromium, folder] = process.argv.slice(2);
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

/** Exceptions and errors of pages; a test that has some fails. */
export const problems = [];

export class Page {
  static async open(url, { dark = false, width = 1200, height = 700 } = {}) {
    const page = new Page();
    const { targetId } = await send("Target.createTarget", { url: "about:blank" });
    page.target = targetId;
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
      { width, height, deviceScaleFactor: 1, mobile: false });
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

  /** Pages that are left open take their part of the machine. */
  close() {
    return send("Target.closeTarget", { targetId: this.target });
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
    const code = { Backspace: 8, Enter: 13, Escape: 27, Tab: 9, " ": 32, End: 35, Home: 36, ArrowLeft: 37, ArrowUp: 38, ArrowRight: 39, ArrowDown: 40, F10: 121 }[key];
    await this.call("Input.dispatchKeyEvent", { type: "keyDown", key, text, modifiers, windowsVirtualKeyCode: code });
    await this.call("Input.dispatchKeyEvent", { type: "keyUp", key, modifiers, windowsVirtualKeyCode: code });
    await this.drawn();
  }

  async click(x, y, button = "left") {
    for (const type of ["mousePressed", "mouseReleased"]) {
      await this.call("Input.dispatchMouseEvent", { type, x, y, button, clickCount: 1 });
    }
    await this.drawn();
  }

  /** Presses at one point and lets go at another. */
  async drag(from, to) {
    const mouse = (type, at, buttons) => this.call("Input.dispatchMouseEvent",
      { type, ...at, button: "left", buttons, clickCount: 1 });
    await mouse("mousePressed", from, 1);
    await mouse("mouseMoved", { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 }, 1);
    await mouse("mouseMoved", to, 1);
    await mouse("mouseReleased", to, 0);
    await this.drawn();
  }

  async move(x, y) {
    await this.call("Input.dispatchMouseEvent", { type: "mouseMoved", x, y });
    await this.drawn();
  }

  rectOf(selector) {
    return this.eval(`(() => {
      const { left, top, width, height } = document.querySelector(${JSON.stringify(selector)}).getBoundingClientRect();
      return { left, top, width, height };
    })()`);
  }

  async clickOn(selector, button = "left") {
    const { left, top, width, height } = await this.rectOf(selector);
    await this.click(left + width / 2, top + height / 2, button);
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

/** Each test on a page of its own at `url`; then ends the browser, and the process with 1 where one failed. */
export async function run(tests, url, options) {
  let failed = 0;
  try {
    for (const [name, test] of Object.entries(tests)) {
      let page;
      try {
        page = await Page.open(url, options);
        await test(page, url);
        assert.deepEqual(problems, []);
        console.log(`ok ${name}`);
      } catch (error) {
        failed++;
        problems.length = 0;
        await page?.picture("failed").catch(() => {});
        console.error(`FAILED ${name}\n${error.stack}`);
      }
      await page?.close();
    }
  } finally {
    const gone = new Promise((resolve) => browser.on("exit", resolve));
    await Promise.race([gone, send("Browser.close")]).catch(() => browser.kill());
    await gone;
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  }
  process.exit(failed > 0 ? 1 : 0);
}
