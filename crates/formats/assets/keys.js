// What keys do.

/** What the keys of the page do; those of the graph alone are not there in other views. */
function actionsOf(app) {
  const everywhere = {
    r: () => app.toggleReverse(),
    i: () => app.toggleIcicle(),
    m: () => app.chooseCode(by("code").value === "managed" ? "all" : "managed"),
    f: () => app.chooseCode(by("code").value === "folded" ? "all" : "folded"),
    u: () => {
      by("recursion").value = by("recursion").value === "merged" ? "kept" : "merged";
      app.setCode();
    },
    a: () => { if (!by("about").hidden) app.toggleAbout(); },
    l: () => {
      if (by("stacks").hidden) return;
      by("stacks").value = 1 - by("stacks").value;
      app.setStacks();
    },
    d: () => app.toggleTheme(),
    t: () => { app.setTab(app.tab === "table" ? "graph" : "table"); app.show(true); },
    g: () => { app.setTab("graph"); app.show(true); },
    c: () => app.openSelected(),
    y: () => app.copySelected(),
    w: () => {
      const lanes = ["kinds", "heatmap", "tracks", "none"];
      app.setLane(lanes[(lanes.indexOf(by("lane").value) + 1) % lanes.length]);
    },
    e: () => by("strip").focus(),
    k: () => { app.setClock(!app.time.wall); app.show(false); },
    x: () => app.setRange(null),
    z: () => app.strip.zoom(app.range),
    Z: () => app.strip.zoom(null),
    "?": () => by("help").showModal(),
  };
  if (app.tab === "method") return { ...everywhere, Backspace: () => app.closeMethod() };
  if (app.tab === "table") return everywhere;
  return {
    ...everywhere,
    s: () => {
      if (app.selected > ROOT) searchFor(app, app.tree.name(app.selected), false);
    },
    n: () => goToHit(app, 1),
    N: () => goToHit(app, -1),
    Backspace: () => app.back(),
    Home: () => app.zoom(ROOT),
    ArrowUp: () => app.step(app.graph.icicle ? "caller" : "callee"),
    ArrowDown: () => app.step(app.graph.icicle ? "callee" : "caller"),
    ArrowLeft: () => app.step("before"),
    ArrowRight: () => app.step("behind"),
  };
}

/** Keys are its own there. */
const isField = (element) => element instanceof HTMLInputElement || element instanceof HTMLSelectElement;

/** A key was pressed that nothing nearer to it has taken. */
function pressed(app, e) {
  if (by("help").open || !by("menu").hidden) return;
  const find = e.key === "/" || (e.key === "f" && (e.ctrlKey || e.metaKey));
  const field = isField(e.target);
  if (e.key === "Escape") {
    if (e.target === by("search") || app.matches) {
      by("search").value = "";
      by("search").blur();
      search(app);
      app.show(false);
    } else if (app.tab === "method") {
      app.closeMethod();
    } else {
      app.back();
    }
    return;
  }
  if (e.key === "Enter" && e.target === by("search")) {
    goToHit(app, e.shiftKey ? -1 : 1);
    return;
  }
  if (find && !(field && e.key === "/")) {
    by("search").focus();
    by("search").select();
    e.preventDefault();
    return;
  }
  if (field || e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.key === "ContextMenu" || (e.key === "F10" && e.shiftKey)) {
    const key = app.selectedKey;
    if (key >= 0) openMenu(app, key, e);
    return;
  }
  if (e.key === "Enter") {
    // A button or a row has its own Enter.
    const isGraphs = e.target === document.body || e.target === by("graph");
    if (app.tab === "graph" && isGraphs) app.zoom(app.selected);
    return;
  }
  const action = actionsOf(app)[e.key];
  if (!action) return;
  e.preventDefault();
  action();
}
