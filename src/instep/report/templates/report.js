(() => {
  "use strict";
  const palettes = {
    light: { 1: "#2459c9", 2: "#c8660a", 3: "#0b8457", 4: "#b8253a", 5: "#7346c4", 6: "#08798f", 7: "#a8318c", 8: "#6b7414",
             ink: "#1b1c1e", soft: "#5d6168", line: "#e3e4e6", card: "#ffffff", floor: "#8a8f98", good: "#0b7a4b", bad: "#b3261e" },
    dark:  { 1: "#7eaaff", 2: "#f2a65a", 3: "#54cf9f", 4: "#ff8595", 5: "#bb9bff", 6: "#52cbe0", 7: "#f08fd6", 8: "#c5cf5c",
             ink: "#e9eaec", soft: "#a2a7b0", line: "#33363d", card: "#1b1d21", floor: "#8a8f98", good: "#5fd39b", bad: "#ff8f86" },
  };
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const coarse = window.matchMedia("(pointer: coarse)").matches;
  const narrow = () => window.innerWidth < 640;
  let chosen = null;

  // The plotting library is compressed in the page; nothing is fetched.
  const unpacked = async (packed) => {
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const load = async (id) => {
    const packed = document.getElementById(id)?.textContent.trim();
    if (!packed) return;
    const script = document.createElement("script");
    script.textContent = await unpacked(packed);
    document.head.append(script);
  };

  // Colours in figures are tokens: "@1" is the first series, "@1:0.2" the same at a fifth of its strength.
  const colour = (token, palette) => {
    const [name, strength] = token.slice(1).split(":");
    const value = palette[name];
    if (value === undefined) return token;
    if (strength === undefined) return value;
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(value.slice(i, i + 2), 16));
    return `rgba(${r},${g},${b},${strength})`;
  };
  const painted = (node, palette) => {
    if (typeof node === "string") return node[0] === "@" ? colour(node, palette) : node;
    if (Array.isArray(node)) return typeof node[0] === "number" ? node : node.map((n) => painted(n, palette));
    if (node && typeof node === "object") return Object.fromEntries(Object.entries(node).map(([k, v]) => [k, painted(v, palette)]));
    return node;
  };
  const layoutOf = (layout, palette) => {
    const base = { paper_bgcolor: palette.card, plot_bgcolor: palette.card, font: { family: "system-ui, sans-serif", size: 13, color: palette.ink },
      margin: { l: narrow() ? 48 : 64, r: narrow() ? 12 : 20, t: 16, b: 60 }, hovermode: "closest", dragmode: coarse ? false : "zoom", hoverlabel: { bgcolor: palette.card, bordercolor: palette.line, font: { color: palette.ink } },
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, font: { color: palette.soft, size: narrow() ? 11 : 13 } } };
    const merged = { ...base, ...painted(layout, palette) };
    for (const key of Object.keys({ xaxis: 1, yaxis: 1, ...merged })) {
      if (/^[xy]axis\d*$/.test(key)) {
        merged[key] = { gridcolor: palette.line, zerolinecolor: palette.line, linecolor: palette.line, tickcolor: palette.line, automargin: true, ...(merged[key] || {}) };
        const title = typeof merged[key].title === "string" ? { text: merged[key].title } : merged[key].title;
        if (title) merged[key].title = { standoff: 12, font: { size: 12, color: palette.soft }, ...title };
      }
    }
    return merged;
  };
  // On a phone a logarithmic axis of several decades shows powers of ten only; their neighbours would lie over them.
  const decades = (data) => {
    const sizes = data.flatMap((t) => [...(t.x || []), ...(t.error_x?.arrayminus || []).map((e, i) => t.x[i] - e)]).filter((x) => x > 0);
    return sizes.length ? Math.log10(Math.max(...sizes) / Math.min(...sizes)) : 0;
  };
  const thinned = (axis, data) => {
    if (!narrow() || axis?.type !== "log" || !axis.tickvals || decades(data) < 1.5) return axis;
    const kept = axis.tickvals.map((v, i) => i).filter((i) => Math.abs(Math.log10(axis.tickvals[i]) % 1) < 1e-6);
    return { ...axis, tickvals: kept.map((i) => axis.tickvals[i]), ticktext: kept.map((i) => axis.ticktext[i]) };
  };
  // A double click undoes a zoom, so no toolbar is needed; it would lie over the text.
  const config = { displayModeBar: false, responsive: true };
  const draw = (holder) => {
    const figure = figures[Number(holder.dataset.figure)];
    const palette = palettes[root.dataset.theme];
    holder.dataset.drawn = root.dataset.theme;
    const layout = layoutOf(figure.layout, palette);
    layout.xaxis = thinned(layout.xaxis, figure.data);
    return Plotly.react(holder, painted(figure.data, palette), layout, config);
  };
  const visible = (holder) => !holder.closest("[hidden]") && !(holder.closest("details") && !holder.closest("details").open);
  const drawAll = () => Promise.all([...document.querySelectorAll(".figure")].filter(visible).map(draw));
  const apply = (theme) => { root.dataset.theme = theme; return drawAll(); };
  const current = () => chosen || (media.matches ? "dark" : "light");

  document.getElementById("theme").addEventListener("click", () => { chosen = root.dataset.theme === "dark" ? "light" : "dark"; apply(chosen); });
  media.addEventListener("change", () => apply(current()));
  document.querySelectorAll("details").forEach((d) => d.addEventListener("toggle", () => { if (d.open) d.querySelectorAll(".figure").forEach(draw); }));
  document.querySelectorAll(".choice").forEach((choice) => {
    const tabs = [...choice.querySelectorAll(".tabs button")];
    const panels = [...choice.querySelectorAll(".panel")];
    tabs.forEach((tab, i) => tab.addEventListener("click", () => {
      tabs.forEach((t, k) => t.setAttribute("aria-selected", String(k === i)));
      panels.forEach((p, k) => { p.hidden = k !== i; });
      panels[i].querySelectorAll(".figure").forEach(draw);
    }));
  });
  document.querySelectorAll("video").forEach((v) => {
    // As wide as the page or 26 lines high, whichever is less, without bars beside it.
    const fit = () => { v.style.maxWidth = `${(26 * v.videoWidth) / v.videoHeight}rem`; };
    if (v.videoHeight) fit(); else v.addEventListener("loadedmetadata", fit);
    if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) { v.autoplay = false; v.pause(); }
  });
  window.addEventListener("beforeprint", () => { document.querySelectorAll("details").forEach((d) => { d.open = true; }); apply("light"); });
  window.addEventListener("afterprint", () => apply(current()));
  const asked = new URLSearchParams(location.search).get("theme") || location.hash.match(/theme=(light|dark)/)?.[1];
  if (asked === "dark" || asked === "light") chosen = asked;
  root.dataset.theme = current();
  load("viewer-script").catch(() => { root.dataset.viewer = "no"; });
  load("plotly").then(() => apply(current())).then(() => { root.dataset.ready = "yes"; }).catch((error) => {
    document.querySelectorAll(".figure").forEach((f) => { f.textContent = `This browser cannot show the figure (${error.message}).`; });
  });
})();
