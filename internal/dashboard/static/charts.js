// The two charts of the overview. The service sends the completed buckets when they change, and the newest ones more
// often. It omits empty buckets.
"use strict";

(() => {
	const outcomes = ["Synced", "Unchanged", "Failed", "Other"];
	const percentiles = ["p50", "p95", "p99"];
	let completed = null;
	let edge = null;
	let plots = [];

	const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
	const read = (id) => {
		try { return JSON.parse(document.getElementById(id).textContent); } catch { return null; }
	};

	// table returns a row for each bucket of the displayed time span, up to now.
	function table() {
		const known = completed || edge;
		if (!known) return null;
		const at = new Map();
		for (const part of [completed, edge]) part?.at.forEach((t, i) => at.set(t, [part, i]));
		const newest = Math.max(...at.keys(), Math.floor((Date.now() + skew) / 1000 / known.step) * known.step);
		const x = [], counts = outcomes.map(() => []), delays = percentiles.map(() => []);
		for (let t = newest - known.span; t <= newest; t += known.step) {
			const [part, i] = at.get(t) || [null, 0];
			x.push(t);
			counts.forEach((c, n) => c.push(part ? part.counts[n][i] : t < known.from ? null : 0));
			delays.forEach((d, n) => d.push(part ? part.delays[n][i] : null));
		}
		return { x, counts, delays };
	}

	// stacked returns cumulative counts for a stacked chart, the total first.
	const stacked = (counts) => counts.map((_, n) => counts[n].map((_, i) => {
		if (counts[n][i] === null) return null;
		let sum = 0;
		for (let k = n; k < counts.length; k++) sum += counts[k][i];
		return sum;
	}));

	// Times are UTC, as in the tables and logs.
	const utc = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
	const clock = (u, values) => values.map((v) => utc(v).slice(0, 5));
	const moment = { value: (u, v) => (v ? utc(v) : "–") };

	// latest shows the newest completed, non-empty bucket in the legend while the cursor is outside the chart.
	function latest(u) {
		if (u.cursor.idx !== null && u.cursor.idx !== undefined) return;
		let at = u.data[0].length - 2;
		while (at > 0 && u.data[1][at] === null) at--;
		u.setLegend({ idx: at }, false);
	}

	// tens keeps only the grid lines at powers of ten.
	const tens = (u, splits) => splits.map((v) => (Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9 ? v : null));

	const high = () => (innerWidth > 720 ? 170 : 110);

	function draw() {
		const data = table();
		if (!data) return;
		plots.forEach((p) => p.destroy());
		plots = [];
		const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
		const common = (box) => ({
			width: box.clientWidth, height: high(), padding: [8, 6, 0, 0],
			cursor: { sync: { key: "lockstep" }, drag: { x: false, y: false }, points: { size: 5 } },
			legend: { live: true },
			hooks: { setCursor: [latest] },
		});
		const shades = ["ok", "calm", "bad", "other"].map(colour);
		const first = document.querySelector("#throughput .plot");
		plots.push(new uPlot({
			...common(first),
			scales: { y: { range: (u, min, max) => [0, Math.max(5, max * 1.1)] } },
			axes: [{ ...axis, values: clock, space: 80, size: 28 }, { ...axis, size: 44, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 100000] }],
			series: [moment].concat(outcomes.map((label, n) => ({
				label, stroke: shades[n], fill: shades[n] + "55", width: 1.25, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }),
				value: (u, v, s, i) => (i === null ? "–" : u.counts?.[n][i] ?? "–"),
			}))),
		}, [data.x, ...stacked(data.counts)], first));
		plots[0].counts = data.counts;
		const second = document.querySelector("#latency .plot");
		const lines = ["ok", "warn", "bad"].map(colour);
		plots.push(new uPlot({
			...common(second),
			scales: { y: { distr: 3, range: (u, min, max) => [Math.min(10, min ?? 10), Math.max(1000, (max ?? 1000) * 1.2)] } },
			axes: [{ ...axis, values: clock, space: 80, size: 28 }, { ...axis, size: 52, filter: tens, grid: { ...axis.grid, filter: tens }, values: (u, v) => v.map((ms) => (ms === null ? "" : span(ms))) }],
			series: [moment].concat(percentiles.map((label, n) => ({
				label, stroke: lines[n], width: 1.5, spanGaps: false, points: { show: true, size: 3.5, fill: lines[n], stroke: lines[n] },
				value: (u, v) => (v === null || v === undefined ? "–" : span(v)),
			}))),
		}, [data.x, ...data.delays], second));
		plots.forEach(latest);
	}

	const span = (ms) => (ms < 1000 ? ms + "\u00a0ms" : ms < 60000 ? +(ms / 1000).toFixed(1) + "\u00a0s" : Math.round(ms / 60000) + "\u00a0min");

	function update() {
		const data = table();
		if (!data) return;
		if (plots.length === 0) return draw();
		plots[0].counts = data.counts;
		plots[0].setData([data.x, ...stacked(data.counts)]);
		plots[1].setData([data.x, ...data.delays]);
		plots.forEach(latest);
	}

	document.body.addEventListener("htmx:sseBeforeMessage", (e) => {
		if (e.detail.type !== "charts" && e.detail.type !== "edge") return;
		e.preventDefault();
		const part = JSON.parse(e.detail.data);
		if (e.detail.type === "charts") completed = part;
		else edge = part;
		update();
	});
	document.body.addEventListener("htmx:afterSwap", (e) => {
		if (e.detail.target?.id !== "view") return;
		plots = []; // the swap removed them
		begin();
	});
	document.addEventListener("lockstep:theme", draw);

	const watcher = new ResizeObserver(() => plots.forEach((p) => {
		const width = p.root.parentElement.clientWidth;
		if (width !== p.width) p.setSize({ width, height: high() });
	}));

	function begin() {
		completed = read("charts");
		edge = read("edge");
		draw();
		watcher.disconnect();
		document.querySelectorAll(".plot").forEach((box) => watcher.observe(box));
	}
	addEventListener("DOMContentLoaded", begin);
	setInterval(() => { if (!document.hidden) update(); }, 5000);
})();
