// Client-side behaviour of the dashboard: live updates, relative times, confirmation dialogs and the colour theme.
"use strict";

// The "keyed" swap replaces only the nodes of a part that changed, so that focus, selection and the position of screen
// readers are kept. It matches elements by id.
htmx.defineExtension("keyed", {
	isInlineSwap: (style) => style === "keyed",
	handleSwap: (style, target, fragment) => {
		if (style !== "keyed") return false;
		patchChildren(target, fragment);
		updateTimes(target);
		return [];
	},
});

function patch(old, fresh) {
	if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || (old.id || "") !== (fresh.id || "")) {
		old.replaceWith(fresh);
		if (fresh.nodeType === 1) htmx.process(fresh);
		return;
	}
	if (old.nodeType !== 1) {
		if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
		return;
	}
	for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
	for (const { name } of [...old.attributes]) {
		if (!fresh.hasAttribute(name) && name !== "class") old.removeAttribute(name);
	}
	if (old.nodeName === "TIME") return; // updateTimes sets its text
	patchChildren(old, fresh);
}

function patchChildren(old, fresh) {
	let at = old.firstChild;
	for (const child of [...fresh.childNodes]) {
		let match = at;
		if (child.id) {
			match = [...old.children].find((e) => e.id === child.id) || null;
			if (match && match !== at) old.insertBefore(match, at);
			if (match === at && at) at = at.nextSibling;
		} else if (at && !at.id) {
			at = at.nextSibling;
		} else {
			match = null;
		}
		if (match) {
			patch(match, child);
			continue;
		}
		old.insertBefore(child, at);
		if (child.nodeType !== 1) continue;
		child.classList.add("fresh");
		htmx.process(child);
	}
	while (at) {
		const next = at.nextSibling;
		at.remove();
		at = next;
	}
}

// Times use the service's clock, because the browser's may be wrong.
const skew = Number(document.documentElement.dataset.now) - Date.now();

function updateTimes(root) {
	const now = Date.now() + skew;
	for (const time of root.querySelectorAll("time[data-how]")) {
		const age = (now - Date.parse(time.dateTime)) / 1000;
		const how = time.dataset.how;
		const text = how === "in" ? (age < 0 ? "in " + formatSeconds(-age) : "due") : how === "for" ? formatSeconds(age) : formatSeconds(age) + " ago";
		if (time.textContent !== text) time.textContent = text;
	}
}

function formatSeconds(seconds) {
	const s = Math.max(0, seconds);
	if (s < 120) return Math.floor(s) + "\u00a0s";
	if (s < 7200) return Math.round(s / 60) + "\u00a0min";
	if (s < 172800) return Math.round(s / 3600) + "\u00a0h";
	return Math.round(s / 86400) + "\u00a0d";
}

updateTimes(document);
setInterval(() => updateTimes(document), 1000);

// The connection indicator and the pause button.
const indicator = document.getElementById("live");
const pause = document.getElementById("pause");
let source = null; // current EventSource
let paused = false;

function showState(state) {
	if (!indicator) return;
	const labels = { on: "Live", off: "Connecting", lost: "Reconnecting", paused: "Paused" };
	if (indicator.dataset.state === state && !indicator.hidden) return;
	indicator.dataset.state = state;
	indicator.textContent = labels[state];
	indicator.hidden = false;
}

// reload fetches the live part of the page again, which opens a new event stream.
const reload = () => htmx.ajax("GET", location.href, { target: "#view", select: "#view", swap: "outerHTML" });

const following = () => source !== null && source.readyState !== EventSource.CLOSED;

function disconnect() {
	source?.close();
	source = null;
	showState(paused ? "paused" : "off");
}

document.body.addEventListener("htmx:sseOpen", (e) => {
	source = e.detail.source;
	// Close streams in hidden tabs and while paused: browsers limit the connections per host.
	if (paused || document.hidden) disconnect();
	else showState("on");
});
document.body.addEventListener("htmx:sseError", () => { if (!paused) showState("lost"); });
if (indicator) showState("off");
if (pause) {
	pause.hidden = false;
	pause.addEventListener("click", () => {
		paused = !paused;
		pause.textContent = paused ? "Resume" : "Pause";
		if (paused) {
			disconnect();
		} else {
			showState("off");
			reload();
		}
	});
}

// Disconnect when the page has been hidden for a while, so that the service need not load data for it.
let hiddenTimer = null;
document.addEventListener("visibilitychange", () => {
	if (!indicator || paused) return;
	clearTimeout(hiddenTimer);
	if (document.hidden) {
		hiddenTimer = setTimeout(disconnect, 30000);
	} else if (!following()) {
		reload();
	}
});

// When the live part cannot be fetched, show why and retry while the page is visible and disconnected.
document.body.addEventListener("htmx:beforeSwap", (e) => {
	if (e.detail.target?.id !== "view" || e.detail.xhr.status < 400) return;
	const page = new DOMParser().parseFromString(e.detail.xhr.responseText, "text/html");
	if (page.getElementById("view")) { // the error page is itself live and shows the reason
		e.detail.shouldSwap = true;
		e.detail.isError = false;
		return;
	}
	document.getElementById("alert").textContent = page.querySelector("[role=alert]")?.textContent || "The service does not answer.";
	retryLater();
});
for (const failure of ["htmx:sendError", "htmx:timeout"]) {
	document.body.addEventListener(failure, (e) => { if (e.detail.target?.id === "view") retryLater(); });
}

function retryLater() {
	if (following()) return;
	showState("lost");
	setTimeout(() => { if (!following() && !paused && !document.hidden) reload(); }, 3000);
}

// The status event carries the alert's text, which is empty while Redis is available.
document.body.addEventListener("htmx:sseBeforeMessage", (e) => {
	if (e.detail.type === "status") {
		const alert = document.getElementById("alert");
		if (alert.innerHTML !== e.detail.data) alert.innerHTML = e.detail.data;
		e.preventDefault();
	}
});

// Confirmations open in a dialog; without JavaScript they are pages.
const dialog = document.getElementById("dialog");
if (dialog) {
	let opener = null; // gets the focus back
	document.body.addEventListener("htmx:beforeRequest", (e) => {
		if (e.detail.target === dialog) opener = e.detail.elt;
	});
	const openPage = () => location.assign(opener.href); // that page shows the error
	document.body.addEventListener("htmx:beforeSwap", (e) => {
		if (e.detail.target !== dialog || e.detail.xhr.responseText.includes('id="question"')) return;
		e.detail.shouldSwap = false;
		openPage();
	});
	for (const failure of ["htmx:sendError", "htmx:timeout"]) {
		document.body.addEventListener(failure, (e) => { if (e.detail.target === dialog) openPage(); });
	}
	document.body.addEventListener("htmx:afterSwap", (e) => {
		if (e.detail.target !== dialog) return;
		dialog.showModal();
		dialog.querySelector("#cancel").focus();
	});
	dialog.addEventListener("click", (e) => {
		if (e.target.id !== "cancel" && e.target !== dialog) return;
		e.preventDefault();
		dialog.close();
	});
	dialog.addEventListener("close", () => {
		dialog.replaceChildren();
		document.getElementById(opener?.id)?.focus();
	});
}

// The colour theme: light or dark.
const theme = document.getElementById("theme");
const prefers = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (document.documentElement.dataset.theme || (prefers.matches ? "dark" : "light")) === "dark";

function showTheme() {
	theme.setAttribute("aria-pressed", String(dark()));
	document.dispatchEvent(new Event("lockstep:theme"));
}

theme.hidden = false;
theme.addEventListener("click", () => {
	document.documentElement.dataset.theme = dark() ? "light" : "dark";
	try { localStorage.setItem("lockstep-theme", document.documentElement.dataset.theme); } catch { /* the choice is not remembered */ }
	showTheme();
});
prefers.addEventListener("change", showTheme);
showTheme();
