// What is shown as text behind the page's address, so that a link opens the same view.

/** Selects whose choice is part of a link, by their name in it, in the order in which they are set. */
const LINKED = {
  process: "process", thread: "thread", runtime: "runtime", roots: "roots", stacks: "stacks", width: "measure",
  frames: "detail", code: "code", recursion: "recursion", order: "order", time: "lane",
};

/** The parts of a link that are not as they are when the page is opened. */
function linkOf(app) {
  const link = new URLSearchParams();
  const set = (name, value, usual) => { if (String(value) !== String(usual)) link.set(name, value); };
  set("tab", app.tab, "graph");
  set("event", app.event.name, app.usual.event);
  for (const [name, id] of Object.entries(LINKED)) set(name, by(id).value, app.usual[id]);
  for (const name of ["about", "signatures", "reverse"]) set(name, app[name], name === "about");
  set("icicle", app.graph.icicle, false);
  set("clock", app.time.wall, false);
  if (app.range) {
    link.set("from", app.time.seconds(app.range.from));
    link.set("to", app.time.seconds(app.range.to));
  }
  const { view } = app.strip;
  if (view.from !== 0 || view.to !== app.time.end) {
    link.set("view", `${app.time.seconds(view.from)}-${app.time.seconds(view.to)}`);
  }
  set("search", by("search").value, "");
  set("zoom", app.tree.path(app.focus).slice(1).map((node) => app.tree.nodes.key[node]).join("."), "");
  set("method", app.subject, -1);
  return link.toString();
}

/** Writes the link into the page's address; nothing is loaded by that. */
function keepLink(app) {
  const link = linkOf(app);
  if (link === (app.link ?? "")) return;
  app.link = link;
  // Some browsers keep no state of a file; the view is the same without it.
  try {
    history.replaceState(null, "", link === "" ? location.pathname + location.search : `#${link}`);
  } catch {
    app.link = link;
  }
}

/** A choice of a select, if it has it. */
function chooseIn(id, value) {
  const select = by(id);
  const before = select.value;
  select.value = value;
  if (select.value !== String(value)) select.value = before;
}

/** Shows what a link says. What it says of things that are not here is left out. */
function openLink(app, text) {
  const link = new URLSearchParams(text);
  const { head } = app.profile;
  const number = (name) => {
    const value = Number(link.get(name));
    return link.has(name) && Number.isFinite(value) && value >= 0 ? value : null;
  };
  const event = head.events.findIndex(({ name }) => name === (link.get("event") ?? app.usual.event));
  if (event >= 0) {
    by("event").value = event;
    app.takeEvent(event);
  }
  for (const [name, id] of Object.entries(LINKED)) {
    chooseIn(id, link.get(name) ?? app.usual[id]);
    if (id === "process") fillThreads(app);
  }
  app.byValue = by("measure").value === "value";
  for (const name of ["about", "signatures", "reverse"]) app.press(name, link.has(name) ? link.get(name) === "true" : name === "about");
  app.graph.icicle = link.get("icicle") === "true";
  by("icicle").setAttribute("aria-pressed", app.graph.icicle);
  app.setClock(link.get("clock") === "true");
  const { time } = app;
  const range = (from, to) => from !== null && to !== null && from < to && time.ticks(from) < time.end
    ? { from: time.ticks(from), to: Math.min(time.end, time.ticks(to)) } : null;
  app.takeRange(range(number("from"), number("to")));
  const view = (link.get("view") ?? "").split("-").map(Number);
  app.strip.view = range(view[0] ?? null, view[1] ?? null) ?? { from: 0, to: time.end };
  app.strip.lane = by("lane").value;
  app.original = app.views[Number(by("stacks").value)] ?? app.views[0];
  by("search").value = link.get("search") ?? "";
  app.setFilter(false);
  app.setRoots();
  const keys = (link.get("zoom") ?? "").split(".").filter((key) => key !== "").map(Number);
  app.focus = app.tree.find(keys);
  app.subjects = [];
  const subject = number("method");
  app.subject = subject !== null && subject < app.keys.count ? Math.floor(subject) : -1;
  const tab = link.get("tab") ?? "graph";
  app.setTab(["graph", "table", "method"].includes(tab) ? tab : "graph");
  findHits(app);
  app.show(true);
}
