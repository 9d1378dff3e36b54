// Time and single methods in a real browser: `node time.mjs CHROMIUM FOLDER FILE HOSTILE LIVE`. FILE burns in one method for two
// seconds, waits for one, burns in another one for two.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { Page, run } from "./chromium.mjs";

const [file, hostile, live] = process.argv.slice(4);
const BURNS = ["App.Phases.BurnFirst [8.0.4]", "App.Phases.BurnSecond [8.0.4]", "App.Phases.Inner [8.0.4]"];

/** Names in the graph. */
const names = (page) => page.eval(`[...new Set([...app.graph.layout.boxes.node.slice(0, app.graph.layout.boxes.length)]
  .filter((node) => node > 0).map((node) => app.tree.name(node)))].sort()`);
/** Names in the table, whatever is shown now. */
async function rows(page) {
  await page.clickOn("#tab-table");
  const rows = await page.eval(`[...document.querySelectorAll("#table td.name")].map((td) => td.textContent).sort()`);
  await page.clickOn("#tab-graph");
  return rows;
}
const samples = (page) => page.eval("app.weights.allSamples");
const range = (page) => page.eval(`app.range && [app.time.seconds(app.range.from), app.time.seconds(app.range.to)]`);
/** A point of the strip at a time. */
async function at(page, seconds, down = 40) {
  const { left, top } = await page.rectOf("#strip");
  return { x: left + await page.eval(`app.strip.x(app.time.ticks(${seconds}))`), y: top + down };
}
const near = (is, should, by = 0.02) => assert.ok(is && Math.abs(is[0] - should[0]) < by && Math.abs(is[1] - should[1]) < by,
  `${JSON.stringify(is)}, not ${JSON.stringify(should)}`);
const SHIFT = 8;

/** All views are of the wait and of nothing else. */
async function onlyTheWait(page) {
  const seen = await names(page);
  assert.ok(seen.includes("App.Phases.Wait [8.0.4]"), seen.join(", "));
  for (const burn of BURNS) assert.ok(!seen.includes(burn), `${burn} in ${seen.join(", ")}`);
  const table = await rows(page);
  assert.ok(table.includes("App.Phases.Wait [8.0.4]") && !table.some((name) => BURNS.includes(name)), table.join(", "));
}

const tests = {
  async "a range typed in leaves nothing but what was in it"(page) {
    assert.equal(await samples(page), 550);
    await page.eval(`document.getElementById("from").focus()`);
    await page.call("Input.insertText", { text: "2" });
    await page.eval(`document.getElementById("to").focus()`);
    await page.call("Input.insertText", { text: "3 s" });
    await page.key("Enter");
    assert.deepEqual(await range(page), [2, 3]);
    assert.equal(await samples(page), 110);
    await onlyTheWait(page);
    // Callers and callees too.
    await page.eval(`app.openMethod(app.keys.name.indexOf("App.Phases.Main [8.0.4]"))`);
    await page.drawn();
    const callees = await page.eval(`(() => { const { tree } = app.method.callees; const { nodes } = tree;
      return [...Array(nodes.count[0]).keys()].map((c) => tree.name(nodes.first[0] + c)); })()`);
    assert.deepEqual(callees, ["App.Phases.Wait [8.0.4]"]);
    assert.match(await page.text("range-says"), /1\.000 s, 110 samples/);
    await page.key("x");
    assert.equal(await range(page), null);
    assert.equal(await samples(page), 550);
  },

  async "a range dragged, resized and let go by mouse"(page) {
    await page.drag(await at(page, 2), await at(page, 3));
    near(await range(page), [2, 3]);
    await onlyTheWait(page);
    await page.picture("range");
    await page.drag(await at(page, (await range(page))[1]), await at(page, 3.5));
    near(await range(page), [2, 3.5]);
    assert.ok((await names(page)).includes("App.Phases.BurnSecond [8.0.4]"));
    await page.eval(`document.getElementById("range-zoom").click()`);
    near(await page.eval("[app.time.seconds(app.strip.view.from), app.time.seconds(app.strip.view.to)]"), [2, 3.5]);
    await page.click(...Object.values(await at(page, 2.5)));
    assert.equal(await range(page), null, "a click is everything");
    await page.key("Z");
    near(await page.eval("[app.time.seconds(app.strip.view.from), app.time.seconds(app.strip.view.to)]"), [0, 5]);
  },

  async "a range by keyboard"(page) {
    await page.key("e");
    assert.equal(await page.eval("document.activeElement.id"), "strip");
    for (let n = 0; await page.eval("app.strip.cursor") < await page.eval("app.time.ticks(2)"); n++) {
      assert.ok(n < 200);
      await page.key("ArrowRight");
    }
    for (let n = 0; !await range(page) || (await range(page))[1] < 3; n++) {
      assert.ok(n < 200);
      await page.key("ArrowRight", SHIFT);
    }
    assert.deepEqual(await range(page), [2, 3]);
    await onlyTheWait(page);
    await page.key("e");
    await page.key("Escape");
    assert.equal(await range(page), null);
  },

  async "collections and exceptions are marks"(page) {
    const marks = await page.eval("app.strip.marks.map(({ name, list }) => [name, list.length])");
    assert.deepEqual(marks, [["collections", 10], ["exceptions", 1]]);
    assert.match(await page.text("marks"), /10 collections.*1 exception/);
    const { x, y } = await at(page, 4.25, 20);
    await page.move(x, y);
    assert.match(await page.text("at"), /collection gen 2 5\.00 ms/);
    await page.move(...Object.values(await at(page, 4.1, 20)));
    assert.match(await page.text("at"), /exception System\.FormatException/);
  },

  async "the heatmap: a cell, a drag, the keyboard"(page) {
    await page.key("w");
    assert.equal(await page.eval(`document.getElementById("lane").value`), "heatmap");
    await page.picture("heatmap");
    const { column, cell } = await page.eval("({ column: app.time.seconds(app.strip.map.column), cell: app.time.seconds(app.strip.map.cell) })");
    assert.deepEqual([column, cell], [0.5, 0.01]);
    const cellAt = (seconds) => at(page, Math.floor(seconds / column) * column + column / 2, 27 + 3 * ((seconds % column) / cell + 0.5));
    await page.click(...Object.values(await cellAt(2.1)));
    near(await range(page), [2.1, 2.11], 1e-9);
    assert.equal(await samples(page), 2);
    await onlyTheWait(page);
    await page.drag(await cellAt(2), await cellAt(2.99));
    near(await range(page), [2, 3], 1e-9);
    await onlyTheWait(page);
    await page.key("x");
    await page.key("e");
    for (const key of ["ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown"]) await page.key(key);
    await page.key("Enter");
    near(await range(page), [2.02, 2.03], 1e-9);
    await page.key("ArrowRight", SHIFT);
    near(await range(page), [2.02, 2.53], 1e-9);
    await onlyTheWait(page);
  },

  async "tracks of processes and threads"(page) {
    await page.key("w");
    await page.key("w");
    const tracks = await page.eval("app.strip.tracks.map(({ name }) => name)");
    assert.equal(tracks.length, 4);
    assert.match(tracks[0], /app\.dll.*4711/);
    assert.equal(tracks[1], "main (tid 1)");
    assert.match(tracks[2], /worker\.dll.*4712/);
    await page.picture("tracks");
    const { left, top } = await page.rectOf("#strip");
    await page.click(left + 300, top + 27 + 19 + 24 + 19 + 12);
    assert.deepEqual(await rows(page), ["App.Worker.Idle [9.0.1]"]);
    await page.key("e");
    for (let n = 0; n < 2; n++) await page.key("ArrowUp");
    for (let n = 0; await page.eval("app.strip.tracks[app.strip.track]?.name") !== "main (tid 1)"; n++) {
      assert.ok(n < 4);
      await page.key("ArrowDown");
    }
    await page.key("Enter");
    assert.ok(!(await rows(page)).includes("App.Worker.Idle [9.0.1]"));
    // One process alone.
    await page.choose("thread", "");
    await page.choose("process", "1");
    assert.deepEqual(await rows(page), ["App.Worker.Idle [9.0.1]"]);
    assert.equal(await page.eval("app.strip.tracks.filter(({ group }) => group).length"), 1);
  },

  async "times by the clock on the wall"(page) {
    await page.clickOn("#clock");
    const begin = await page.eval(`document.getElementById("from").placeholder`);
    const [hours, minutes, seconds] = begin.split(":").map(Number);
    const clock = (more) => new Date(Date.UTC(2026, 0, 1, hours, minutes, seconds + more)).toISOString().slice(11, 19);
    await page.eval(`document.getElementById("from").value = ${JSON.stringify(clock(2))};
      document.getElementById("to").value = ${JSON.stringify(`${clock(3)}.000`)};
      document.getElementById("to").dispatchEvent(new Event("change"))`);
    await page.drawn();
    assert.deepEqual(await range(page), [2, 3]);
    await onlyTheWait(page);
    assert.equal(await page.eval(`document.getElementById("from").value`), `${clock(2)}.000`);
    await page.picture("clock");
    await page.key("k");
    assert.equal(await page.eval(`document.getElementById("from").value`), "2.000 s");
    await page.eval(`document.getElementById("from").value = "soon"; document.getElementById("from").dispatchEvent(new Event("change"))`);
    assert.equal(await page.eval(`document.getElementById("range").className`), "wrong");
    assert.deepEqual(await range(page), [2, 3]);
  },

  async "callers, callees and lines of a method"(page) {
    // By mouse: the menu of a box.
    const inner = await page.eval(`app.tree.matching(Uint8Array.from(app.keys.name, (name) => name === "App.Phases.Inner [8.0.4]" ? 1 : 0), 0, 9)[0]`);
    const box = await page.boxOf(inner);
    await page.click(box.x, box.y, "right");
    await page.picture("menu");
    await page.clickOn("#menu button");
    assert.match(await page.text("method-head"), /App\.Phases\.Inner.*total 72\.73 %.*self 72\.73 %/);
    const below = (half) => page.eval(`(() => { const { tree } = app.method.${half}; const { nodes } = tree; tree.expand(0);
      return [...Array(nodes.count[0]).keys()].map((c) => [tree.name(nodes.first[0] + c), nodes.samples[nodes.first[0] + c]]); })()`);
    assert.deepEqual(await below("callers"), [["App.Phases.BurnFirst [8.0.4]", 200], ["App.Phases.BurnSecond [8.0.4]", 200]]);
    assert.deepEqual(await below("callees"), []);
    assert.match(await page.text("lines"), /Phases\.cs.*72\.73 %72\.73 %30\tline <b>30<\/b>; \/\/ \\u\{202e\}31/);
    assert.equal(await page.eval(`document.querySelectorAll("#lines .source b").length`), 0);
    assert.deepEqual(await page.eval(`[...document.querySelectorAll("#lines .line")].map((td) => Number(td.textContent))`),
      [27, 28, 29, 30, 31, 32, 33]);
    await page.picture("method");
    // A caller by keyboard, and back.
    await page.eval(`document.getElementById("callers").focus()`);
    await page.key("ArrowUp");
    await page.key("ArrowUp");
    await page.key("Enter");
    assert.match(await page.text("method-head"), /Back.*App\.Phases\.BurnFirst.*total 36\.36 %.*self 0\.00 %/);
    assert.deepEqual(await below("callers"), [["App.Phases.Main [8.0.4]", 200]]);
    assert.deepEqual(await below("callees"), [["App.Phases.Inner [8.0.4]", 200]]);
    await page.key("Backspace");
    assert.match(await page.text("method-head"), /App\.Phases\.Inner/);
    // A callee by mouse.
    await page.eval(`app.openMethod(app.keys.name.indexOf("App.Phases.Main [8.0.4]"))`);
    await page.drawn();
    const { left, top } = await page.rectOf("#callees");
    await page.click(left + 10, top + 19 + 8);
    assert.match(await page.text("method-head"), /App\.Phases\.Burn/);
    for (let n = 0; n < 3; n++) await page.key("Escape");
    assert.equal(await page.eval("app.tab"), "graph");
    // From the table, by keyboard.
    await page.key("t");
    await page.eval(`document.querySelector("#table tbody tr").focus()`);
    await page.key("ArrowDown");
    const second = await page.eval(`document.querySelectorAll("#table tbody tr")[1].querySelector(".name").textContent`);
    await page.key("c");
    assert.ok((await page.text("method-head")).includes(second));
  },

  async "recursion merged, the runtime folded or hidden, one CLR"(page) {
    const depth = (name) => page.eval(`[...app.graph.layout.boxes.node.slice(0, app.graph.layout.boxes.length)]
      .filter((node) => node > 0 && app.tree.name(node) === ${JSON.stringify(name)}).length`);
    assert.equal(await depth("App.Phases.BurnSecond [8.0.4]"), 3);
    await page.key("u");
    assert.equal(await depth("App.Phases.BurnSecond [8.0.4]"), 1);
    assert.equal(await samples(page), 550);
    // Lines are those of the frames, whichever call they are of.
    assert.equal(await page.eval(`app.profile === app.whole`), false);
    await page.key("u");
    assert.equal(await page.eval(`app.profile === app.whole`), true);
    await page.key("u");
    assert.equal(await depth("MethodDescCallSite::CallTargetWorker"), 1);
    await page.key("f");
    assert.equal(await depth("MethodDescCallSite::CallTargetWorker"), 0);
    assert.equal(await depth("CallDescrWorkerInternal"), 1);
    await page.choose("code", "runtime");
    assert.equal(await depth("CallDescrWorkerInternal"), 0);
    await page.choose("runtime", "2");
    assert.deepEqual(await rows(page), ["App.Worker.Idle [9.0.1]"]);
    assert.equal(await samples(page), 50);
  },

  async "a link opens the same view"(page, url) {
    await page.drag(await at(page, 2), await at(page, 4));
    await page.choose("code", "managed");
    await page.choose("recursion", "merged");
    await page.key("k");
    await page.key("i");
    await page.type("burn");
    const second = await page.eval(`app.tree.find(["App.Phases.Main [8.0.4]", "App.Phases.BurnSecond [8.0.4]"]
      .map((name) => app.keys.name.indexOf(name)))`);
    assert.equal(await page.eval(`app.tree.name(${second})`), "App.Phases.BurnSecond [8.0.4]");
    await page.eval(`document.activeElement.blur(); app.zoom(${second})`);
    await page.drawn();
    const state = `JSON.stringify([app.range, app.time.wall, app.graph.icicle, app.tree.name(app.focus), app.searched,
      app.weights.all, document.getElementById("code").value, document.getElementById("matched").textContent])`;
    const [before, hash] = [await page.eval(state), await page.eval("location.hash")];
    assert.match(hash, /from=.*to=.*search=burn/);
    const other = await Page.open(`${url}${hash}`);
    assert.equal(await other.eval(state), before);
    await other.picture("linked");
    // A link with nonsense is a page that works.
    await other.eval(`location.hash = "#event=none&process=99&from=-1&to=x&zoom=1.x.999&method=1e9&tab=none&view=3-1&search=("`);
    await other.drawn();
    await other.drawn();
    assert.equal(await samples(other), 550);
    await other.eval(`location.hash = ${JSON.stringify(hash)}`);
    await other.drawn();
    await other.drawn();
    assert.equal(await other.eval(state), before);
  },

  async "names can be copied"(page, url) {
    await page.eval(`navigator.clipboard.writeText = (text) => { globalThis.copied = text; return Promise.resolve(); }`);
    await page.key("ArrowUp");
    await page.key("ArrowUp");
    await page.key("y");
    assert.equal(await page.eval("globalThis.copied"), "App.Phases.Main [8.0.4]");
    assert.equal(await page.text("toast"), "Copied App.Phases.Main [8.0.4]");
    await page.key("c");
    await page.clickOn("#method-head button");
    assert.equal(await page.eval("globalThis.copied"), "App.Phases.Main [8.0.4]");
  },

  async "hostile names are text in every view"(page) {
    await page.go(pathToFileURL(hostile).href);
    for (const lane of ["kinds", "heatmap", "tracks"]) {
      await page.choose("lane", lane);
      await page.move(...Object.values(await at(page, 0.01)));
    }
    const keys = await page.eval("app.keys.count");
    for (let key = 0; key < keys; key++) {
      await page.eval(`app.openMethod(${key})`);
      await page.key("y");
      await page.key("F10", SHIFT);
      assert.equal(await page.eval(`document.querySelectorAll("#menu button, #menu b, #menu span, #menu kbd").length`),
        await page.eval(`document.querySelectorAll("#menu *").length`));
      await page.key("Escape");
    }
    await page.picture("hostile-method");
    // Also where recursion is merged: the same names.
    await page.key("g");
    await page.key("u");
    assert.ok((await names(page)).length > 0);
    await page.key("t");
    assert.deepEqual(await page.eval(`[document.images.length, document.scripts.length, document.querySelectorAll("[onerror], iframe").length]`), [0, 2, 0]);
    // And in what is behind the address.
    await page.eval(`location.hash = "#search=" + encodeURIComponent("<img src=x onerror=alert(1)>") + "&thread=<script>"`);
    await page.drawn();
    assert.equal(await page.eval("document.images.length"), 0);
  },

  async "what has grown is of the range"() {
    const page = await Page.open(pathToFileURL(live).href);
    await page.clickOn("#live summary");
    const grown = (of = page) => of.eval(`[document.querySelector("#live-grown").textContent, ...[...document.querySelectorAll("#live tbody tr")]
      .map((row) => row.cells[0].textContent + " " + row.cells[3].textContent)]`);
    const select = (from, to) => page.eval(`app.setRange(${from} === null ? null
      : { from: app.time.ticks(${from}), to: app.time.ticks(${to}) })`);
    // Instants at 3 s: an item and two strings; at 5 s: two items, the first for two; at 6 s: the second.
    const whole = ["grown: from 3.0 s to 6.0 s", "Shop.Cart.Item 0", "System.String −1.95 KiB"];
    assert.deepEqual(await grown(), whole);
    await select(2.5, 5.5);
    assert.deepEqual(await grown(), ["grown: from 3.0 s to 5.0 s", "Shop.Cart.Item +1.95 KiB", "System.String −1.95 KiB"]);
    await select(4.5, 6.5);
    const later = ["grown: from 5.0 s to 6.0 s", "Shop.Cart.Item −1.95 KiB", "System.String 0"];
    assert.deepEqual(await grown(), later);
    const linked = await Page.open(`${pathToFileURL(live).href}#from=4.5&to=6.5`);
    assert.deepEqual(await grown(linked), later);
    await linked.clickOn("#clock");
    assert.match((await grown(linked))[0], /^grown: from (\d\d:){2}\d\d\.0 to (\d\d:){2}\d\d\.0$/);
    await linked.close();
    await select(3.5, 5.5);
    assert.deepEqual(await grown(), ["grown: unknown, this range has fewer than two snapshots", "Shop.Cart.Item ", "System.String "]);
    await select(null);
    assert.deepEqual(await grown(), whole);
    await page.picture("live");
    await page.close();
  },

  async "pictures, light and dark, narrow and wide"(page, url) {
    for (const width of [900, 1600]) {
      for (const dark of [false, true]) {
        const shown = await Page.open(`${url}#from=1.5&to=3.5&time=tracks`, { dark, width, height: 900 });
        const name = `${width}-${dark ? "dark" : "light"}`;
        await shown.picture(`phases-${name}`);
        assert.equal(await shown.eval("document.documentElement.scrollWidth"), width, "nothing sticks out");
        await shown.eval(`app.openMethod(app.keys.name.indexOf("App.Phases.Main [8.0.4]"))`);
        await shown.drawn();
        await shown.picture(`phases-method-${name}`);
        const { top, height } = await shown.rectOf("#callees");
        assert.ok(top + height <= 900 && height > 60, `callees are at ${top}, ${height} high`);
        await shown.close();
      }
    }
  },
};

await run(tests, pathToFileURL(file).href);
