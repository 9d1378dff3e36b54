// Dark or light, and what was chosen before.

const THEME = "sidewalk-theme";

/** Dark or not, as chosen before on this machine; null where nothing was, or a browser keeps nothing. */
function rememberedTheme() {
  try {
    const chosen = localStorage.getItem(THEME);
    return chosen === null ? null : chosen === "dark";
  } catch {
    return null;
  }
}

function rememberTheme(dark) {
  try {
    localStorage.setItem(THEME, dark ? "dark" : "light");
  } catch {
    // The choice holds as long as the page.
  }
}
