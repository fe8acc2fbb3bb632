// What the page does beyond showing itself: it follows the service, writes how long ago things were, asks before
// something is taken away, and remembers light or dark.
"use strict";

// A part that comes anew takes the place of what has changed in it, and leaves the rest as it is: focus, selection and
// what a screen reader is at stay where they are. Elements are told apart by their ids.
htmx.defineExtension("keyed", {
	isInlineSwap: (style) => style === "keyed",
	handleSwap: (style, target, fragment) => {
		if (style !== "keyed") return false;
		patchChildren(target, fragment);
		tellTime(target);
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
	if (old.nodeName === "TIME") return; // its text is ours
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

// Moments are by the service's clock: this browser's may be wrong.
const skew = Number(document.documentElement.dataset.now) - Date.now();

function tellTime(root) {
	const now = Date.now() + skew;
	for (const time of root.querySelectorAll("time[data-how]")) {
		const gone = (now - Date.parse(time.dateTime)) / 1000;
		const how = time.dataset.how;
		const text = how === "in" ? "in " + lasting(-gone) : how === "for" ? lasting(gone) : lasting(gone) + " ago";
		if (time.textContent !== text) time.textContent = text;
	}
}

function lasting(seconds) {
	const s = Math.max(0, seconds);
	if (s < 120) return Math.floor(s) + "\u00a0s";
	if (s < 7200) return Math.round(s / 60) + "\u00a0min";
	if (s < 172800) return Math.round(s / 3600) + "\u00a0h";
	return Math.round(s / 86400) + "\u00a0d";
}

tellTime(document);
setInterval(() => tellTime(document), 1000);

// The light in the corner, and the button that holds everything still.
const light = document.getElementById("live");
const pause = document.getElementById("pause");
let source = null; // of events, while there is one
let paused = false;

function say(state) {
	if (!light) return;
	const words = { on: "Live", off: "Connecting", lost: "Reconnecting", paused: "Paused" };
	if (light.dataset.state === state && !light.hidden) return;
	light.dataset.state = state;
	light.textContent = words[state];
	light.hidden = false;
}

// reload fetches the live part of the page anew, and with it another stream of events.
const reload = () => htmx.ajax("GET", location.href, { target: "#view", select: "#view", swap: "outerHTML" });

const following = () => source !== null && source.readyState !== EventSource.CLOSED;

function rest() {
	source?.close();
	source = null;
	say(paused ? "paused" : "off");
}

document.body.addEventListener("htmx:sseOpen", (e) => {
	source = e.detail.source;
	// Nobody has asked for one that comes to a tab behind others, or while all is held still: a browser has few to give.
	if (paused || document.hidden) rest();
	else say("on");
});
document.body.addEventListener("htmx:sseError", () => { if (!paused) say("lost"); });
if (light) say("off");
if (pause) {
	pause.hidden = false;
	pause.addEventListener("click", () => {
		paused = !paused;
		pause.textContent = paused ? "Resume" : "Pause";
		if (paused) {
			rest();
		} else {
			say("off");
			reload();
		}
	});
}

// Nobody looks at a page that is hidden for long: the service need not read for it.
let away = null;
document.addEventListener("visibilitychange", () => {
	if (!light || paused) return;
	clearTimeout(away);
	if (document.hidden) {
		away = setTimeout(rest, 30000);
	} else if (!following()) {
		reload();
	}
});

// What cannot be fetched says why, and is fetched again as long as somebody looks and nothing follows.
document.body.addEventListener("htmx:beforeSwap", (e) => {
	if (e.detail.target?.id !== "view" || e.detail.xhr.status < 400) return;
	const page = new DOMParser().parseFromString(e.detail.xhr.responseText, "text/html");
	if (page.getElementById("view")) { // it says itself what is the matter, and follows
		e.detail.shouldSwap = true;
		e.detail.isError = false;
		return;
	}
	document.getElementById("alert").textContent = page.querySelector("[role=alert]")?.textContent || "The service does not answer.";
	again();
});
for (const broken of ["htmx:sendError", "htmx:timeout"]) {
	document.body.addEventListener(broken, (e) => { if (e.detail.target?.id === "view") again(); });
}

function again() {
	if (following()) return;
	say("lost");
	setTimeout(() => { if (!following() && !paused && !document.hidden) reload(); }, 3000);
}

// What Redis' absence has to say comes as text of its own.
document.body.addEventListener("htmx:sseBeforeMessage", (e) => {
	if (e.detail.type === "status") {
		const alert = document.getElementById("alert");
		if (alert.innerHTML !== e.detail.data) alert.innerHTML = e.detail.data;
		e.preventDefault();
	}
});

// Questions come as a dialog; without JavaScript they are pages.
const dialog = document.getElementById("dialog");
if (dialog) {
	let asker = null; // who gets the focus back
	document.body.addEventListener("htmx:beforeRequest", (e) => {
		if (e.detail.target === dialog) asker = e.detail.elt;
	});
	const plainly = () => location.assign(asker.href); // that page says why not
	document.body.addEventListener("htmx:beforeSwap", (e) => {
		if (e.detail.target !== dialog || e.detail.xhr.responseText.includes('id="question"')) return;
		e.detail.shouldSwap = false;
		plainly();
	});
	for (const broken of ["htmx:sendError", "htmx:timeout"]) {
		document.body.addEventListener(broken, (e) => { if (e.detail.target === dialog) plainly(); });
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
		document.getElementById(asker?.id)?.focus();
	});
}

// Light or dark.
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
	try { localStorage.setItem("lockstep-theme", document.documentElement.dataset.theme); } catch { /* for this page alone */ }
	showTheme();
});
prefers.addEventListener("change", showTheme);
showTheme();
