// What can be done with one method: a menu beside the pointer, and copying its name.

/** Puts a text where others can paste it, and says so. */
async function copy(text) {
  let says = `Copied ${text}`;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without permission for the one way there is the other one.
    const field = make("textarea", { class: "copied" });
    field.value = text;
    document.body.append(field);
    field.select();
    if (!document.execCommand("copy")) says = "This browser does not allow copying";
    field.remove();
  }
  const toast = by("toast");
  toast.textContent = says.length > 160 ? `${says.slice(0, 159)}…` : says;
  toast.hidden = false;
  clearTimeout(copy.shown);
  copy.shown = setTimeout(() => { toast.hidden = true; }, 1800);
}

/** The menu of a method, by its key, where the event `e` was. */
function openMenu(app, key, e) {
  e.preventDefault();
  const menu = by("menu");
  const name = app.keys.name[key];
  const before = document.activeElement;
  const close = () => {
    menu.hidden = true;
    document.removeEventListener("pointerdown", outside, true);
    before?.focus?.({ preventScroll: true });
  };
  const outside = (e) => { if (!menu.contains(e.target)) close(); };
  const item = (text, shortcut, action) => make("button", {
    type: "button", role: "menuitem", onclick: () => { close(); action(); },
  }, make("span", {}, text), make("kbd", {}, shortcut));
  menu.replaceChildren(make("b", {}, name.length > 120 ? `${name.slice(0, 119)}…` : name),
    item("Callers, callees and lines", "c", () => app.openMethod(key)),
    item("Search for this", "s", () => searchFor(app, name, app.tab !== "graph")),
    item("Copy its name", "y", () => copy(name)));
  menu.onkeydown = (e) => {
    const items = [...menu.querySelectorAll("button")];
    const at = items.indexOf(document.activeElement);
    if (e.key === "ArrowDown") items[(at + 1) % items.length].focus();
    else if (e.key === "ArrowUp") items[(at + items.length - 1) % items.length].focus();
    else if (e.key === "Escape" || e.key === "Tab") close();
    else return;
    e.preventDefault();
    e.stopPropagation();
  };
  menu.hidden = false;
  app.tip.hide();
  const { offsetWidth: w, offsetHeight: h } = menu;
  // The keyboard's menu has no place of its own: below what is outlined, or the row with the focus.
  const outlined = ["mark", "callers-mark", "callees-mark"].map(by).find((mark) => mark.offsetParent !== null);
  const mark = (before?.tagName === "TR" ? before : outlined ?? by("method-head")).getBoundingClientRect();
  const [x, y] = e.button === 2 ? [e.clientX, e.clientY] : [mark.left + 20, mark.bottom];
  menu.style.left = `${Math.max(4, Math.min(x, innerWidth - w - 4))}px`;
  menu.style.top = `${Math.max(4, Math.min(y, innerHeight - h - 4))}px`;
  document.addEventListener("pointerdown", outside, true);
  menu.querySelector("button").focus();
}
