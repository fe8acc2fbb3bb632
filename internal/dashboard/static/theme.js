// Applies the remembered colour theme before the first paint.
"use strict";
(() => {
	let chosen = null;
	try { chosen = localStorage.getItem("lockstep-theme"); } catch { /* storage is disabled */ }
	if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
