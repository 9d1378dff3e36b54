// Uses the flame graph in a real browser: `node browser.mjs CHROMIUM FOLDER FILE ASYNC COMPARED`. What is seen
// is asserted, and pictures of it are left in FOLDER. ASYNC is a page with async methods, COMPARED one of two recordings.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { run } from "./chromium.mjs";

const [file, asyncFile, comparedFile] = process.argv.slice(4);

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

await run(tests, pathToFileURL(file).href);
