// The page works without this; with it, links to ladders also move the focus, the title and the mark in the list.
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
    }
  };
  addEventListener("hashchange", () => follow(true));
  follow(false);

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
