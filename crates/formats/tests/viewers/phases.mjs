// The page of a real program that burns, waits and burns again: `node phases.mjs CHROMIUM FOLDER FILE COLLECTIONS
// UNKNOWN NAME FROM TO…`, its phases by the clock (UTC), and for how many milliseconds at most it burned without being on a processor
// or in the queue for one.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { run } from "./chromium.mjs";

const [file, collections, unknown, ...rest] = process.argv.slice(4);
const phases = new Map();
for (let at = 0; at < rest.length; at += 3) phases.set(`Workloads.Phases.${rest[at]}`, rest.slice(at + 1, at + 3));

await run({
  async "a range of time has the methods of its phase"(page) {
    // The phases' methods that are in the table now.
    const seen = () => page.eval(`[...document.querySelectorAll("#table td.name")].map((td) => td.textContent)`)
      .then((names) => names.filter((name) => phases.has(name)).sort());
    await page.clickOn("#clock");
    await page.clickOn("#tab-table");
    // By total: the table has so many rows, and those that only call are beyond them.
    await page.clickOn("#table th:nth-child(4) button");
    assert.deepEqual(await seen(), [...phases.keys()].sort());
    for (const [name, [from, to]] of phases) {
      await page.clickOn("#from");
      await page.call("Input.insertText", { text: from });
      await page.clickOn("#to");
      await page.call("Input.insertText", { text: to });
      await page.key("Enter");
      const [begin, end] = await page.eval("[app.time.seconds(app.range.from), app.time.seconds(app.range.to)]");
      // A millisecond at each end is what the clock's three digits leave open; the program says when it began to
      // look at its clock, not when the first instruction ran. Time that no clock of the thread has as a wait ends is the
      // wait's (docs/engines.md).
      const edge = 0.015 + Number(unknown) / 1000;
      await page.eval(`app.setRange({ from: app.time.ticks(${begin} + ${edge}), to: app.time.ticks(${end} - ${edge}) })`);
      assert.deepEqual(await seen(), [name]);
      // And the thread was there for all of it.
      await page.eval(`app.openMethod(app.keys.name.indexOf(${JSON.stringify(name)}))`);
      const took = await page.eval("app.method.callees.tree.nodes.value[0] / 1e9");
      assert.ok(Math.abs(took - (end - begin - 2 * edge)) < 0.05 * took, `${name} took ${took} s of ${end - begin}`);
      await page.picture(`real-${name}`);
      await page.clickOn("#tab-table");
    }
    await page.key("x");
    const marks = await page.eval("app.strip.marks.find(({ event }) => event === 'gc').list.map(({ to }) => app.time.seconds(to))");
    assert.equal(marks.length, Number(collections));
    for (let at = 1; at < marks.length - 1; at++) {
      assert.ok(Math.abs(marks[at] - marks[at - 1] - 0.5) < 0.1, `collections at ${marks.join(", ")}`);
    }
    await page.key("g");
    await page.picture("real");
  },
}, pathToFileURL(file).href);
