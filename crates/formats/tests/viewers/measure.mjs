// How long a page takes to open, and to show a range of time: `node measure.mjs CHROMIUM FOLDER FILE`.
// docs/outputs.md has the figures.

import { statSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { Page, run } from "./chromium.mjs";

const [file] = process.argv.slice(4);
const url = pathToFileURL(file).href;

await run({
  async "opens and answers"(page) {
    const opened = [];
    for (let nth = 0; nth < 5; nth++) {
      await page.go(url);
      // From the begin of the navigation until the picture is drawn.
      await page.drawn();
      opened.push(await page.eval(`performance.getEntriesByName("ready")[0].startTime`));
    }
    // The page makes itself ready for ranges while it is idle; how long after it was ready is said
    // too.
    const warm = await page.eval(`new Promise((resolve) => {
      const mark = (name) => performance.getEntriesByName(name)[0]?.startTime;
      const look = () => mark("warm") ? resolve(mark("warm") - mark("ready")) : requestAnimationFrame(look);
      look();
    })`);
    // By the clock, and what the page's thread has used of a CPU: on a machine that has other things to do, only that tells.
    await page.call("Performance.enable", { timeDomain: "threadTicks" });
    const used = async () => {
      const { metrics } = await page.call("Performance.getMetrics");
      return 1000 * metrics.find(({ name }) => name === "TaskDuration").value;
    };
    const [ranges, cpu] = [[], []];
    for (let nth = 0; nth < 40; nth++) {
      const before = await used();
      ranges.push(await page.eval(`(() => {
        const { end } = app.time;
        const from = Math.floor(end * ${nth * 7 % 40} / 40);
        const to = Math.floor(from + (end - from) * ${(1 + nth % 4) / 4});
        const begin = performance.now();
        app.setRange({ from, to });
        // The picture is painted in the next frame's turn: paint it now, so that it is counted.
        app.graph.paint();
        return performance.now() - begin;
      })()`));
      cpu.push(await used() - before);
      await page.drawn();
    }
    const sorted = (list) => [...list].sort((a, b) => a - b);
    const say = (list) => `median ${sorted(list)[list.length >> 1].toFixed(0)} ms, most ${Math.max(...list).toFixed(0)} ms`;
    if (process.env.EACH) for (const list of [ranges, cpu]) console.log(list.map((ms) => ms.toFixed(0)).join(" "));
    console.log(`file: ${(statSync(file).size / 1e6).toFixed(2)} MB`);
    console.log(`open (${opened.length} times): ${say(opened)}`);
    console.log(`at rest after: ${warm.toFixed(0)} ms`);
    console.log(`range (${ranges.length} of them): ${say(ranges)}; of CPU ${say(cpu)}`);
  },
}, url);
