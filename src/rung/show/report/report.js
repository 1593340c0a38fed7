// Links to ladders move the focus, the title and the mark in the list; plots are drawn and sources unpacked when they are seen.
(() => {
  const title = document.title;
  const narrow = matchMedia("(max-width: 900px)");
  const contents = document.querySelector("nav > details");
  const fold = () => { contents.open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  fold();

  const follow = (moved) => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1))) || document.getElementById("index");
    const page = target.closest(".page") || document.getElementById("index");
    const heading = page.querySelector("h1");
    document.title = page.id === "index" ? title : `${heading.textContent} · ${title}`;
    for (const link of document.querySelectorAll("nav a")) {
      if (link.hash === `#${page.id}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (!moved) return;
    if (narrow.matches) contents.open = false;
    if (target === page) {
      heading.focus({ preventScroll: true });
      scrollTo(0, 0);
    } else target.scrollIntoView(); // plots above it were drawn after the browser had moved to it
  };

  // ---- plots, by Chart.js: drawn when their page opens, and again when the colours change
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const number = (value) => Number(value.toPrecision(3)).toLocaleString("en");
  const axis = (text, log) => ({
    type: log ? "logarithmic" : "linear", title: { display: true, text, color: style("muted") },
    grid: { color: style("grid") }, border: { color: style("grid") },
    ticks: { color: style("muted"), maxTicksLimit: 8, maxRotation: 0, callback: (v) => (log && !/^0*\.?0*[125]0*$/.test(v) ? null : number(v)) },
  });
  const draw = (box, told, config, tall) => {
    const frame = document.createElement("div"), canvas = document.createElement("canvas");
    frame.className = "canvas";
    frame.style.height = `${tall}px`;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", told);
    frame.append(canvas);
    box.append(frame);
    const legend = { position: "top", align: "start", labels: { color: style("ink"), usePointStyle: true } };
    const options = { animation: false, maintainAspectRatio: false, ...config.options };
    options.plugins = { legend, ...config.options.plugins };
    return new Chart(canvas, { ...config, options });
  };
  const tips = (lines) => ({ tooltip: { callbacks: { label: (item) => lines(item.raw, item) } } });
  const go = (event, hit, chart) => {
    const to = hit.map((h) => chart.data.datasets[h.datasetIndex].data[h.index].id).find(Boolean);
    if (to) location.hash = to;
  };

  const bars = (box, told, names, datasets, unit, lines) => {
    const y = { type: "category", labels: names, grid: { display: false }, ticks: { color: style("ink"), autoSkip: false } };
    return draw(box, told, {
      type: "bar", data: { datasets },
      options: { indexAxis: "y", grouped: false, skipNull: true, scales: { x: axis(`${unit}, logarithmic`, true), y }, onClick: go,
        interaction: { mode: "nearest", axis: "y", intersect: false }, plugins: tips(lines) },
    }, 110 + 22 * names.length);
  };

  const kinds = {
    ladder(box, data, title, chosen) {
      const some = data.points.filter((p) => p.dtype === chosen.dtype && p.shape === chosen.shape).map((p) => ({
        ...p, library: Boolean(p.library), intensity: p.at?.[0], rate: p.at?.[1], told: `${p.told} of the measured limit`,
        id: p.library ? "" : `${data.of}-${p.name.replaceAll(" ", "_")}` }));
      let best = 0;
      const line = [], behind = [], ahead = [], libraries = [];
      for (const p of some) {
        const point = { ...p, x: p.speed, y: p.name };
        if (p.library) libraries.push(point);
        else {
          (p.speed > best ? ahead : behind).push(point);
          best = Math.max(best, p.speed);
          line.push({ x: best, y: p.name, told: `fastest so far: ${number(best)} ${data.unit}` });
        }
      }
      const set = (label, colour, values, more) => ({
        label, data: values, backgroundColor: style(colour), borderColor: style(colour), pointStyle: "rect", ...more });
      const best_line = { type: "line", stepped: "after", pointRadius: 0, pointStyle: "line", borderWidth: 2, order: -1 };
      const limit = data.compute ? data.flops[chosen.dtype] / 1e12 : data.bytes / 1e9;
      const names = some.map((p) => p.name);
      const edges = limit ? [names[0], names.at(-1)].map((y) => ({ x: limit, y, told: `measured limit: ${number(limit)} ${data.unit}` })) : [];
      const made = [bars(box, `${title}: ${chosen.dtype} at ${chosen.shape}; ${some.map((p) => `${p.name} ${p.told}`).join("; ")}`, names, [
        set("faster than all before", chosen.dtype, ahead), set("an earlier rung is faster", "behind", behind),
        set("library", "library", libraries), set("fastest so far", "ink", line, best_line),
        set("measured limit", "limit", edges, { ...best_line, stepped: false, borderDash: [5, 4] }),
      ].filter((s) => s.data.length), data.unit, (raw) => raw.told)];
      const placed = some.filter((p) => p.intensity), roof = data.flops[chosen.dtype];
      if (!placed.length || !roof) return made;
      const at = placed.map((p) => p.intensity), ridge = roof / data.bytes;
      const ends = [Math.min(...at, ridge) / 2, ridge, Math.max(...at, ridge) * 2];
      const dot = (p) => ({ ...p, x: p.intensity, y: p.rate / 1e12 });
      const scatter = (label, colour, library) => ({ ...set(label, colour, placed.filter((p) => p.library === library).map(dot)), pointRadius: 5, pointStyle: "circle" });
      made.push(draw(box, `Roofline: ${title}`, {
        type: "scatter",
        data: { datasets: [scatter("rungs", chosen.dtype, false), scatter("libraries", "library", true), {
          ...set("measured ceilings", "limit", ends.map((x) => ({ x, y: Math.min(x * data.bytes, roof) / 1e12,
            told: `${number(data.bytes / 1e12)} TB/s, ${number(roof / 1e12)} TFLOP/s` }))), type: "line", pointRadius: 0, pointStyle: "line" }] },
        options: { scales: { x: axis("FLOP / byte, by the cost model", true), y: axis("TFLOP/s", true) }, onClick: go,
          plugins: tips((raw) => (raw.name ? `${raw.name}: ${number(raw.y)} TFLOP/s, ${raw.told}` : raw.told)) },
      }, 340));
      return made;
    },
    model(box, data, title) {
      const names = [...new Set(data.steps.map((s) => s.name))], dtypes = [...new Set(data.steps.map((s) => s.dtype))];
      const sets = dtypes.map((dtype) => {
        const some = data.steps.filter((s) => s.dtype === dtype), colour = style(some[0].colour);
        return { label: dtype, data: some.map((s) => ({ x: s.rate, y: s.name, told: s.told })),
          backgroundColor: dtype === "int8" ? "transparent" : colour, borderColor: colour, borderWidth: 1, pointStyle: "rect" };
      });
      return [bars(box, `${title}: ${data.steps.map((s) => `${s.name} in ${s.dtype} ${number(s.rate)}`).join("; ")}`, names,
        sets.map((s) => ({ ...s, grouped: true })), "tokens/s", (raw, item) => `${item.dataset.label}: ${number(raw.x)} tokens/s. ${raw.told}`)];
    },
    curves(box, data, title) {
      const colours = ["f32", "limit", "tf32", "bf16", "f16", "library", "ink"];
      const datasets = data.series.map((s, i) => ({
        label: s.label, data: s.points.map(([x, y]) => ({ x, y })), borderColor: style(colours[i % colours.length]),
        backgroundColor: style(colours[i % colours.length]), borderWidth: 2, pointRadius: 3,
        borderDash: s.dashed || i >= colours.length ? [5, 4] : [],
      }));
      return [draw(box, `${title}: ${data.series.map((s) => s.label).join(", ")}`, {
        type: "line", data: { datasets },
        options: { scales: { x: axis(data.x, data.log_x), y: axis(data.y, data.log_y) },
          interaction: { mode: "nearest", intersect: false },
          plugins: tips((raw, item) => `${item.dataset.label}: ${number(raw.x)}, ${number(raw.y)}`) },
      }, 320)];
    },
  };

  const chooser = (figure, label, values, chosen, changed) => {
    const outer = document.createElement("label"), select = document.createElement("select");
    for (const value of values) select.add(new Option(value, value, false, value === chosen));
    select.addEventListener("change", () => changed(select.value));
    outer.append(`${label} `, select);
    figure.querySelector(".filters").append(outer);
  };
  const show = (figure) => {
    const data = JSON.parse(figure.querySelector("script").textContent);
    figure.drawn?.forEach((chart) => chart.destroy());
    figure.querySelectorAll(".canvas, .filters").forEach((old) => old.remove());
    if (data.kind === "ladder") {
      const dtypes = [...new Set(data.points.map((p) => p.dtype))];
      const dtype = figure.dataset.dtype ??= ["bf16", "f32", ...dtypes].find((d) => dtypes.includes(d));
      const shapes = [...new Set(data.points.filter((p) => p.dtype === dtype).map((p) => p.shape))];
      const most = (shape) => data.points.filter((p) => p.dtype === dtype && p.shape === shape).length;
      if (!shapes.includes(figure.dataset.shape)) figure.dataset.shape = shapes.includes("b8t1024") ? "b8t1024" : shapes.sort((a, b) => most(b) - most(a))[0];
      figure.prepend(Object.assign(document.createElement("div"), { className: "filters" }));
      chooser(figure, "Number format", dtypes, dtype, (value) => { figure.dataset.dtype = value; show(figure); });
      chooser(figure, "Shape", shapes, figure.dataset.shape, (value) => { figure.dataset.shape = value; show(figure); });
    }
    figure.drawn = kinds[data.kind](figure, data, figure.dataset.title, figure.dataset);
    figure.append(figure.querySelector("figcaption") ?? "");
  };
  const seen = () => [...document.querySelectorAll(".plot")].filter((figure) => figure.checkVisibility());
  const plot = () => seen().filter((figure) => !figure.drawn).forEach(show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const figure of document.querySelectorAll(".plot")) if (figure.drawn) show(figure);
  });

  // ---- sources and differences, unpacked at the first one that is opened
  let code;
  const unpacked = async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("code").textContent), (c) => c.charCodeAt(0));
    return JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text());
  };
  for (const part of document.querySelectorAll(".code-of")) {
    part.addEventListener("toggle", async () => {
      const all = await (code ??= unpacked());
      if (part.children.length === 1) part.insertAdjacentHTML("beforeend", all[part.dataset.part][part.dataset.id]);
    });
  }

  addEventListener("hashchange", () => { plot(); follow(true); });
  addEventListener("load", plot); // a page that the address names is visible only then
  follow(false);
  plot();

  const search = document.querySelector("search"), query = document.getElementById("query");
  const hits = document.getElementById("hits");
  const known = [...document.querySelectorAll("main .page, main .rung, main .study")].map((part) => {
    const heading = part.querySelector("h1, h2, h3").textContent;
    const idea = part.querySelector(".idea, p")?.textContent ?? "";
    const place = part.closest(".page").id;
    return { id: part.id, title: part.id === place ? heading : `${place}: ${heading}`, text: `${part.id} ${heading} ${idea}`.toLowerCase() };
  });
  search.hidden = false;
  const look = () => {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length ? known.filter((k) => words.every((w) => k.text.includes(w))).slice(0, 20) : [];
    hits.replaceChildren(...found.map((k) => {
      const item = document.createElement("li"), link = document.createElement("a");
      link.href = `#${k.id}`;
      link.textContent = k.title;
      item.append(link);
      return item;
    }));
    hits.hidden = !found.length;
  };
  query.addEventListener("input", look);
  query.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && hits.firstChild) location.hash = hits.querySelector("a").hash;
    if (event.key === "Escape" || event.key === "Enter") { query.value = ""; look(); }
  });
  hits.addEventListener("click", () => { query.value = ""; look(); });

  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address keeps naming the ladder that is open
    document.getElementById("content").focus();
  });
})();
