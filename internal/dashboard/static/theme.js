// Runs before anything is painted: the colours that were chosen last, if any were.
"use strict";
(() => {
	let chosen = null;
	try { chosen = localStorage.getItem("lockstep-theme"); } catch { /* not to be remembered */ }
	if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
