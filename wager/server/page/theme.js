// Applies the chosen colours before the first paint: "light", "dark", or nothing for the system's colours.
// It is a classic script because modules run after the page is drawn.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("wager-theme");
  } catch {
    // Storage can be blocked: the system's colours are used then.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
