// Before anything is drawn: apply the theme chosen last time.
try {
  const chosen = localStorage.getItem("ampsweep-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (error) { /* storage is blocked: the system's theme */ }
