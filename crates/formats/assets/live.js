// What of the heap is alive, by type, how old and what has grown: a table below the graph. Text only ever becomes text nodes.

/** Seconds, short. */
function age(seconds) {
  return seconds < 100 ? `${seconds.toFixed(1)} s` : `${(seconds / 60).toFixed(1)} min`;
}

/** By how many bytes a type has grown from the first instant to the last. */
function grown(type) {
  if (type.first_bytes === undefined) return "";
  const by = type.last_bytes - type.first_bytes;
  if (by === 0) return "0";
  return `${by < 0 ? "−" : "+"}${amount(Math.abs(by), "bytes")}`;
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
    ...[
      amount(type.bytes, "bytes"), type.objects.toLocaleString("en"), grown(type),
      age(type.median_age_s), age(type.oldest_s),
      String(type.median_collections), String(type.most_collections),
    ].map((text) => make("td", {}, text))));
  by("notes").before(make("details", { id: "live" },
    make("summary", {}, `Live heap at the end: ${amount(all, "bytes")} of ${alive.toLocaleString("en")} ` +
      `${alive === 1 ? "type" : "types"}`),
    make("div", {}, make("table", {},
      make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)))),
      make("tbody", {}, ...rows)))));
}
