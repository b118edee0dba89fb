// Before anything is drawn: the theme chosen last time, if the browser lets a page remember it.
try {
  const chosen = localStorage.getItem("ampsweep-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (error) { /* storage is blocked: the system's theme it is */ }
