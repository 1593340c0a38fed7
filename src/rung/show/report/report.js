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

  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address keeps naming the ladder that is open
    document.getElementById("content").focus();
  });
})();
