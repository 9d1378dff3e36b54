// What can be done with the page can be done by mouse and by keyboard, and leads to the same: `node hands.mjs CHROMIUM FOLDER
// FILE`. FILE is as in time.mjs.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { run } from "./chromium.mjs";

const [file] = process.argv.slice(4);
const SHIFT = 8;
const MAIN = "App.Phases.Main [8.0.4]";

/** All that can be seen of what was chosen. Ranges by mouse are as exact as a pixel is wide. */
const STATE = `(() => {
  const link = new URLSearchParams(location.hash.slice(1));
  for (const name of ["from", "to"]) if (link.has(name)) link.set(name, Number(link.get(name)).toFixed(1));
  if (link.has("view")) link.set("view", link.get("view").split("-").map((at) => Number(at).toFixed(1)).join("-"));
  const { table } = app;
  return JSON.stringify({
    link: link.toString(), theme: document.documentElement.dataset.theme, help: document.getElementById("help").open,
    menu: document.getElementById("menu").hidden ? null : document.getElementById("menu").textContent,
    hit: document.getElementById("hit").textContent, part: app.part, copied: globalThis.copied ?? null,
    sorted: [table.column, table.down], methods: app.subjects.length,
    pointed: app.selected > 0 && app.tip.node === app.selected ? app.tree.name(app.selected) : null,
  });
})()`;

/** Where a box is that has this name, in the graph or in a half of the method's view. */
const boxOf = (page, name, graph = "app.graph") => page.eval(`(() => {
  const { layout, container } = ${graph};
  const { boxes, tree } = layout;
  for (let box = 0; box < boxes.length; box++) {
    const node = boxes.node[box];
    if (node < 0 || tree.name(node) !== ${JSON.stringify(name)}) continue;
    const { left, top } = container.getBoundingClientRect();
    return { x: left + boxes.x[box] + Math.min(5, boxes.w[box] / 2),
      y: top + ${graph}.top(tree.nodes.depth[node]) - container.scrollTop + 8 };
  }
})()`);
async function clickBox(page, name, { graph, button } = {}) {
  const { x, y } = await boxOf(page, name, graph);
  await page.click(x, y, button);
}
async function keys(page, ...list) {
  for (const key of list) await page.key(...[key].flat());
}
const focus = (page, selector) => page.eval(`document.querySelector(${JSON.stringify(selector)}).focus()`);
async function at(page, seconds, down = 40) {
  const { left, top } = await page.rectOf("#strip");
  return { x: left + await page.eval(`app.strip.x(app.time.ticks(${seconds}))`), y: top + down };
}
const toMain = ["ArrowUp", "ArrowUp"];
const cursor = (page) => page.eval("app.time.seconds(app.strip.cursor)");
/** Moves the cursor of the time to a time, selecting or not. */
async function moveTo(page, seconds, modifiers = 0) {
  for (let n = 0; Math.abs(await cursor(page) - seconds) > 1e-6; n++) {
    assert.ok(n < 100, `the cursor is at ${await cursor(page)}`);
    await page.key(await cursor(page) < seconds ? "ArrowRight" : "ArrowLeft", modifiers);
  }
}
const shown = (page) => page.eval("app.strip.tracks.findIndex(({ name }) => name.startsWith('idle'))");

/** By name: what is there before, what the mouse does, what the keyboard does. */
const pairs = {
  "zoom into a box": [null, (page) => clickBox(page, MAIN), (page) => keys(page, ...toMain, "Enter")],
  "out again": [(page) => clickBox(page, MAIN), (page) => page.clickOn("#path .reset"), (page) => page.key("Escape")],
  "point at a box": [null,
    async (page) => { const { x, y } = await boxOf(page, MAIN); await page.move(x, y); }, (page) => keys(page, ...toMain)],
  "the menu of a box": [null,
    (page) => clickBox(page, MAIN, { button: "right" }), (page) => keys(page, ...toMain, ["F10", SHIFT])],
  "callers by the menu": [null,
    async (page) => { await clickBox(page, MAIN, { button: "right" }); await page.clickOn("#menu button:nth-of-type(1)"); },
    (page) => keys(page, ...toMain, ["F10", SHIFT], "Enter")],
  "search by the menu": [null,
    async (page) => { await clickBox(page, MAIN, { button: "right" }); await page.clickOn("#menu button:nth-of-type(2)"); },
    (page) => keys(page, ...toMain, ["F10", SHIFT], "ArrowDown", "Enter")],
  "copy by the menu": [null,
    async (page) => { await clickBox(page, MAIN, { button: "right" }); await page.clickOn("#menu button:nth-of-type(3)"); },
    (page) => keys(page, ...toMain, ["F10", SHIFT], "ArrowUp", "Enter")],
  "leave the menu": [(page) => clickBox(page, MAIN, { button: "right" }),
    (page) => page.clickOn("#facts"), (page) => page.key("Escape")],
  "the table": [null, (page) => page.clickOn("#tab-table"), (page) => page.key("t")],
  "the graph": [(page) => page.clickOn("#tab-table"), (page) => page.clickOn("#tab-graph"), (page) => page.key("g")],
  "callers and callees of what is selected": [(page) => keys(page, ...toMain),
    (page) => page.eval(`document.getElementById("tab-method").click()`), (page) => page.key("c")],
  "pick a row": [(page) => page.clickOn("#tab-table"),
    (page) => page.clickOn("#table tbody tr:nth-child(2) .kind"),
    async (page) => { await focus(page, "#table tbody tr"); await keys(page, "ArrowDown", "Enter"); }],
  "the menu of a row": [(page) => page.clickOn("#tab-table"),
    (page) => page.clickOn("#table tbody tr:nth-child(2) .kind", "right"),
    async (page) => { await focus(page, "#table tbody tr"); await keys(page, "ArrowDown", ["F10", SHIFT]); }],
  "callers of a row": [(page) => page.clickOn("#tab-table"),
    (page) => page.clickOn("#table tbody tr:nth-child(2) .open"),
    async (page) => { await focus(page, "#table tbody tr"); await keys(page, "ArrowDown", "c"); }],
  "sort the table": [(page) => page.clickOn("#tab-table"), (page) => page.clickOn("#table th:nth-child(4) button"),
    async (page) => { await focus(page, "#table th:nth-child(4) button"); await page.key("Enter"); }],
  "on to a caller": [(page) => page.eval(`app.openMethod(app.keys.name.indexOf("App.Phases.Inner [8.0.4]"))`),
    (page) => clickBox(page, "App.Phases.BurnFirst [8.0.4]", { graph: "app.method.callers.graph" }),
    async (page) => { await focus(page, "#callers"); await keys(page, "ArrowUp", "ArrowUp", "Enter"); }],
  "on to a callee": [(page) => page.eval(`app.openMethod(app.keys.name.indexOf("App.Phases.BurnFirst [8.0.4]"))`),
    (page) => clickBox(page, "App.Phases.Inner [8.0.4]", { graph: "app.method.callees.graph" }),
    async (page) => { await focus(page, "#callees"); await keys(page, "ArrowDown", "ArrowDown", "Enter"); }],
  "the menu of a callee": [(page) => page.eval(`app.openMethod(app.keys.name.indexOf("App.Phases.BurnFirst [8.0.4]"))`),
    (page) => clickBox(page, "App.Phases.Inner [8.0.4]", { graph: "app.method.callees.graph", button: "right" }),
    async (page) => { await focus(page, "#callees"); await keys(page, "ArrowDown", "ArrowDown", ["F10", SHIFT]); }],
  "the method before": [(page) => page.eval(`app.openMethod(1); app.openMethod(2)`),
    (page) => page.clickOn("#method-head button"), (page) => page.key("Backspace")],
  "copy the method's name": [(page) => page.eval(`app.openMethod(1)`),
    (page) => page.clickOn("#method-head button:last-child"), (page) => page.key("y")],
  "search": [null,
    async (page) => { await page.clickOn("#search"); await page.call("Input.insertText", { text: "burn" });
      await page.eval(`new Promise((done) => { const look = () => app.searched === "burn" ? done() : requestAnimationFrame(look); look(); })`); },
    (page) => page.type("burn")],
  "the next match": [(page) => page.type("burn"), (page) => page.clickOn("#next"), (page) => page.key("Enter")],
  "the match before": [(page) => page.type("burn"), (page) => page.clickOn("#previous"), (page) => page.key("Enter", SHIFT)],
  "reverse": [null, (page) => page.clickOn("#reverse"), (page) => page.key("r")],
  "icicle": [null, (page) => page.clickOn("#icicle"), (page) => page.key("i")],
  "dark": [null, (page) => page.clickOn("#theme"), (page) => page.key("d")],
  "what an event is about": [(page) => page.choose("event", "2"), (page) => page.clickOn("#about"), (page) => page.key("a")],
  "keys": [null, (page) => page.clickOn("#help-button"), (page) => page.key("?")],
  "the clock": [null, (page) => page.clickOn("#clock"), (page) => page.key("k")],
  "a range": [null, async (page) => page.drag(await at(page, 2), await at(page, 3)),
    async (page) => { await page.key("e"); await moveTo(page, 2); await moveTo(page, 3, SHIFT); }],
  "a range of tracks": [(page) => page.choose("lane", "tracks"), async (page) => page.drag(await at(page, 2, 60), await at(page, 3, 60)),
    async (page) => { await page.key("e"); await moveTo(page, 2); await moveTo(page, 3, SHIFT); }],
  "the end of a range": [async (page) => page.eval(`app.setRange({ from: app.time.ticks(2), to: app.time.ticks(3) })`),
    async (page) => page.drag(await at(page, 3), await at(page, 3.5)),
    async (page) => { await page.key("e"); await page.key("ArrowRight", SHIFT); await moveTo(page, 3.5, SHIFT); }],
  "the begin of a range": [async (page) => page.eval(`app.setRange({ from: app.time.ticks(2), to: app.time.ticks(3) })`),
    async (page) => page.drag(await at(page, 2), await at(page, 1)),
    async (page) => { await keys(page, "e", "o"); await moveTo(page, 1, SHIFT); }],
  "zoom the time": [async (page) => page.eval(`app.setRange({ from: app.time.ticks(2), to: app.time.ticks(3) })`),
    (page) => page.clickOn("#range-zoom"), (page) => page.key("z")],
  "the whole time again": [async (page) => page.eval(`app.strip.zoom({ from: app.time.ticks(2), to: app.time.ticks(3) }); app.show(false)`),
    (page) => page.clickOn("#range-zoom"), (page) => page.key("Z")],
  "all of the time": [async (page) => page.eval(`app.setRange({ from: app.time.ticks(2), to: app.time.ticks(3) })`),
    (page) => page.clickOn("#range-clear"), (page) => page.key("x")],
  "no range, by the time itself": [async (page) => page.eval(`app.setRange({ from: app.time.ticks(2), to: app.time.ticks(3) })`),
    async (page) => page.click(...Object.values(await at(page, 4))), (page) => keys(page, "e", "Escape")],
  "one thread": [(page) => page.choose("lane", "tracks"),
    async (page) => { const { left, top } = await page.rectOf("#strip");
      await page.click(left + 300, top + await page.eval(`27 + app.strip.tracks.slice(0, ${await shown(page)}).reduce((sum, { group }) => sum + (group ? 24 : 19), 0) + 12`)); },
    async (page) => { await page.key("e");
      for (let n = 0; await page.eval("app.strip.track") !== await shown(page); n++) { assert.ok(n < 9); await page.key("ArrowDown"); }
      await page.key("Enter"); }],
  "a cell of the heatmap": [(page) => page.choose("lane", "heatmap"),
    async (page) => page.click(...Object.values(await at(page, 1.25, 27 + 3 * 2 + 1))),
    async (page) => keys(page, "e", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "Enter")],
  "cells of the heatmap": [(page) => page.choose("lane", "heatmap"),
    async (page) => page.drag(await at(page, 1.25, 27 + 3 * 2 + 1), await at(page, 2.25, 27 + 3 * 2 + 1)),
    async (page) => keys(page, "e", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", ["ArrowRight", SHIFT], ["ArrowRight", SHIFT])],
};
/** Lists: the mouse takes the second entry, the keyboard the next one. */
for (const id of ["event", "process", "thread", "runtime", "roots", "detail", "code", "recursion", "order", "lane"]) {
  pairs[`the list ${id}`] = [null,
    async (page) => page.choose(id, await page.eval(`document.getElementById("${id}").options[1].value`)),
    async (page) => { await focus(page, `#${id}`); await page.key("ArrowDown"); }];
}

const tests = Object.fromEntries(Object.entries(pairs).map(([name, [before, byMouse, byKeyboard]]) => [name, async (page, url) => {
  const states = [];
  for (const act of [byMouse, byKeyboard]) {
    // Another address: the same one with another link would load nothing.
    await page.go(`${url}?${states.length}`);
    await page.eval(`navigator.clipboard.writeText = (text) => { globalThis.copied = text; return Promise.resolve(); }`);
    await before?.(page);
    await page.drawn();
    const was = await page.eval(STATE);
    await act(page);
    const is = await page.eval(STATE);
    assert.notEqual(is, was, "nothing has changed");
    states.push(is);
    await page.eval("localStorage.clear()");
  }
  assert.equal(states[1], states[0], "by keyboard as by mouse");
}]));

await run(tests, pathToFileURL(file).href);
