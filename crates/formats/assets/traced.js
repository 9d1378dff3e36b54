// Methods that were traced: each with its numbers, and a strip of how its calls are spread over durations.

/** The table below the notes; nothing where nothing was traced. */
function fillTraced(box, traced) {
  box.hidden = !traced;
  if (!traced) return;
  const calls = traced.methods.length;
  const head = make("tr", {}, ...traced.columns.map((name) => make("th", { class: "number" }, name)),
    make("th", {}, "how long"), make("th", {}, "method"));
  const row = (method) => make("tr", {}, ...method.says.map((says) => make("td", { class: "number" }, says)),
    make("td", {}, heatOf(traced.cells, method.cells)), make("td", {}, method.name));
  box.replaceChildren(
    make("summary", {}, `${calls.toLocaleString("en")} traced ${calls === 1 ? "method" : "methods"}, each call counted`),
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head),
      make("tbody", {}, ...traced.methods.map(row)))));
}

/** Cells as dark as the logarithm of how many calls: one in a million can be seen. */
function heatOf(names, counts) {
  const most = Math.log(counts.reduce((most, count) => Math.max(most, count), 1));
  return make("span", { class: "heat" }, ...counts.map((count, at) => {
    const calls = `${count.toLocaleString("en")} ${count === 1 ? "call" : "calls"}`;
    const cell = make("span", { title: `${calls} of ${names[at]}` });
    if (count > 0) {
      cell.className = "filled";
      cell.style.opacity = String(0.2 + 0.8 * (most > 0 ? Math.log(count) / most : 1));
    }
    return cell;
  }));
}
