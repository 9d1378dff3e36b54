// What of the heap is alive, by type, how old and what has grown: a table below the graph. Text only ever becomes text nodes.

/** Seconds, short. */
function age(seconds) {
  return seconds < 100 ? `${seconds.toFixed(1)} s` : `${(seconds / 60).toFixed(1)} min`;
}

/** A growth in bytes, with its sign. */
function signed(by) {
  if (by === 0) return "0";
  return `${by < 0 ? "−" : "+"}${amount(Math.abs(by), "bytes")}`;
}

/**
 * By how many bytes each type has grown from the first instant of each process in a range of time to the last, and when these were;
 * null where no process has two.
 */
function growth({ types, processes }, range, time) {
  const by = types.map(() => 0);
  let from = Infinity;
  let to = -Infinity;
  for (const heap of processes) {
    const at = (moment) => time.ticks(heap.start_s + moment.at_s);
    // The last instant may be the end of the recording itself.
    const inside = heap.moments.filter((moment) =>
      !range || (at(moment) >= range.from && (at(moment) < range.to || range.to === time.end)));
    if (inside.length < 2) continue;
    const [first, last] = [inside[0], inside[inside.length - 1]];
    for (const [type, bytes] of first.types) by[type] -= bytes;
    for (const [type, bytes] of last.types) by[type] += bytes;
    from = Math.min(from, at(first));
    to = Math.max(to, at(last));
  }
  return from < to ? { by, from, to } : null;
}

/** What has grown in the range of time that is shown. */
function showGrowth(app) {
  const { live } = app.profile.head;
  if (!live) return;
  const found = growth(live, app.range, app.time);
  document.querySelectorAll("#live td.grown").forEach((cell, type) => {
    cell.textContent = found ? signed(found.by[type]) : "";
  });
  by("live-grown").textContent = found
    ? `grown: from ${app.time.text(found.from, 1)} to ${app.time.text(found.to, 1)}`
    : "grown: unknown, this range has fewer than two snapshots";
}

/** The table, closed until it is opened; nothing where nobody asked for the live heap. */
function showLive(head) {
  if (!head.live) return;
  const { types } = head.live;
  const alive = types.filter((type) => type.bytes > 0).length;
  const all = types.reduce((sum, type) => sum + type.bytes, 0);
  const titles = ["type", "bytes", "objects", "grown", "median age", "oldest", "collections", "most"];
  const rows = types.map((type) => make("tr", {},
    make("td", {}, type.name),
    ...[amount(type.bytes, "bytes"), type.objects.toLocaleString("en")].map((text) => make("td", {}, text)),
    make("td", { class: "grown" }),
    ...[
      age(type.median_age_s), age(type.oldest_s),
      String(type.median_collections), String(type.most_collections),
    ].map((text) => make("td", {}, text))));
  by("notes").before(make("details", { id: "live" },
    make("summary", {}, `Live heap at the end: ${amount(all, "bytes")} of ${alive.toLocaleString("en")} ` +
      `${alive === 1 ? "type" : "types"}`),
    make("p", { id: "live-grown" }),
    make("div", {}, make("table", {},
      make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)))),
      make("tbody", {}, ...rows)))));
}
