// Applies the chosen colours before the first paint: "light", "dark", or nothing for what the system says.
// A classic script, because modules run after the page is drawn.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("wager-theme");
  } catch {
    // Storage may be forbidden: the system's colours are used.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
