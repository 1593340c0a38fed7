"use strict";
// The course's page: one exercise at a time; the hash of the address is its number.
const at = (id) => document.getElementById(id);
const STATES = { solved: "Solved", slow: "Correct, but not yet at the target", wrong: "Not yet", blank: "Not yet complete" };
const WIDE = matchMedia("(min-width: 70rem)");
let course, exercise, drawn = null, before = null;

async function ask(path, body, signal) {
  const post = { method: "POST", headers: { "X-Rung": "course", "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, body ? post : { signal });
  const found = await answer.json();
  if (found.error) throw new Error(found.error);
  return found;
}

let overview = ask("/course"); // while the editor is made

function made(name, text, more = {}) {
  const one = Object.assign(document.createElement(name), more);
  if (text !== undefined) one.textContent = text;
  return one;
}

const stars = (n) => "★".repeat(n) + "☆".repeat(3 - n);

// ---- the editor: lines that a verdict is about, blanks, and the arrows of a race

const { EditorView, EditorState, StateEffect, StateField, Decoration } = CM;
const mark = StateEffect.define();
const marked = StateField.define({
  create: () => Decoration.none,
  update(found, change) {
    for (const effect of change.effects) if (effect.is(mark)) {
      const lines = [...new Set(effect.value)].filter((n) => n > 0 && n <= change.state.doc.lines).sort((a, b) => a - b);
      return Decoration.set(lines.map((n) => Decoration.line({ class: "cm-seen" }).range(change.state.doc.line(n).from)));
    }
    return change.docChanged ? Decoration.none : found;
  },
  provide: (field) => EditorView.decorations.from(field),
});
const blanks = EditorView.decorations.compute(["doc"], (state) => {
  const every = [...state.doc.toString().matchAll(/BLANK_\d/g)];
  return Decoration.set(every.map((m) => Decoration.mark({ class: "cm-blank" }).range(m.index, m.index + m[0].length)));
});
const tags = CM.tags;
const colours = CM.HighlightStyle.define([
  { tag: [tags.keyword, tags.controlKeyword, tags.modifier, tags.typeName], color: "var(--p3)" },
  { tag: tags.comment, color: "var(--soft)", fontStyle: "italic" },
  { tag: [tags.number, tags.string], color: "var(--p2)" },
  { tag: tags.processingInstruction, color: "var(--p1)" },
]);
const extensions = [
  CM.keymap.of([{ key: "Mod-Enter", run: () => (run(), true) }]), // the Tab key leaves the editor, as a reader expects
  CM.lineNumbers({ domEventHandlers: { click: (view, block) => (here(view.state.doc.lineAt(block.from)), true) } }), EditorView.lineWrapping, CM.history(), CM.highlightActiveLine(), CM.bracketMatching(), CM.cpp(), CM.indentUnit.of("    "),
  CM.keymap.of([...CM.defaultKeymap, ...CM.historyKeymap]), CM.syntaxHighlighting(colours), marked, blanks,
  EditorView.contentAttributes.of({ "aria-label": "The kernel" }),
  EditorView.updateListener.of((change) => { if (change.docChanged) arrows([]), keep(); }),
];
const view = new EditorView({ parent: at("editor"), state: EditorState.create({ extensions }) });
// In a hunt, a click on a line's number marks the line; so does the comment, in any editor.
function here(line) {
  if (exercise?.kind !== "bug") return;
  const found = line.text.match(/\s*(\/\/|#) here$/);
  view.dispatch({ changes: found ? { from: line.to - found[0].length, to: line.to } : { from: line.to, insert: `  ${exercise.comment} here` } });
}
const undo = () => CM.historyKeymap[0].run(view);
const text = () => view.state.doc.toString();

function write(content) {
  view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: content } });
}

// What was typed and not run yet stays over a reload, and so does the place. A file that has changed on disk is the truth.
function keep() {
  if (!exercise) return;
  const now = { file: exercise.text, text: text(), at: view.state.selection.main.head, top: view.scrollDOM.scrollTop, page: scrollY, guess: at("predict").querySelector("input").value };
  try { localStorage.setItem(`rung ${exercise.file}`, JSON.stringify(now)); } catch { /* a browser that keeps nothing */ }
}

function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(`rung ${exercise.file}`));
    return found?.file === exercise.text ? found : null;
  } catch {
    return null;
  }
}

function go(line) {
  const { from } = view.state.doc.line(Math.min(line, view.state.doc.lines));
  view.dispatch({ selection: { anchor: from }, effects: EditorView.scrollIntoView(from, { y: "center" }) });
  view.focus();
}

// Two arrows, from what lies between to the two lines of a race.
function arrows(lines) {
  view.dom.querySelector(".arrows")?.remove();
  at("editor").classList.toggle("raced", lines.length > 0);
  if (lines.length) requestAnimationFrame(() => view.requestMeasure({ read: () => view.contentHeight, write: () => draw(lines) }));
}

function draw(lines) {
  view.dom.querySelector(".arrows")?.remove();
  const [a, b] = lines.length > 1 ? lines : [lines[0], lines[0]];
  const y = (n) => { const block = view.lineBlockAt(view.state.doc.line(n).from); return block.top + block.height / 2 + view.documentPadding.top; };
  const right = view.dom.clientWidth - 14, from = right - 70, middle = (y(a) + y(b)) / 2;
  const loop = a === b ? 14 : 0;
  const path = (to) => `<path marker-end="url(#tip)" d="M${right} ${middle} C${right} ${to} ${right - 20} ${to} ${from} ${to}"/>`;
  const svg = `<svg class="arrows" role="img" aria-label="A race between line ${a} and line ${b}"><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8"/></marker></defs>${path(y(a) - loop)}${path(y(b) + loop)}</svg>`;
  view.dom.insertAdjacentHTML("beforeend", svg);
}

// ---- what is shown

async function list() {
  course = await (overview ?? ask("/course"));
  overview = null;
  const every = course.chapters.flatMap((c) => c.exercises);
  at("done").textContent = `${every.filter((e) => e.stars).length} of ${every.length} solved, ${every.reduce((n, e) => n + e.stars, 0)} stars`;
  let current = null;
  at("chapters").replaceChildren(...course.chapters.map((c) => {
    const part = made("section"), items = made("ol");
    for (const e of c.exercises) {
      const link = made("a", undefined, { href: `#${e.number}` });
      link.append(made("span", `${e.number}. ${e.title}`), made("span", e.stars ? stars(e.stars) : e.kind, { className: e.stars ? "stars" : "soft" }));
      if (exercise && e.number === exercise.number) link.setAttribute("aria-current", "page"), current = link;
      const item = made("li"); item.append(link); items.append(item);
    }
    part.append(made("h2", `${c.title} ${c.exercises.filter((e) => e.stars).length}/${c.exercises.length}`), items);
    return part;
  }));
  const box = document.querySelector("nav");
  if (current && WIDE.matches) box.scrollTop = current.offsetTop - box.clientHeight / 2;
}

async function show(number) {
  const reloaded = !exercise;
  keep();
  exercise = await ask(`/exercise/${number}`);
  drawn = before = null;
  const own = kept();
  document.title = `${exercise.number}. ${exercise.title} · rung: the course`;
  at("chapter").textContent = `${exercise.chapter} · ${exercise.does}`;
  at("title").textContent = `${exercise.number}. ${exercise.title}`;
  at("task").innerHTML = exercise.task;
  at("aim").textContent = exercise.targets.map((what) => `Target: ${what}.`).join(" ");
  at("stars").replaceChildren(...exercise.for.map((what, i) => made("li", `${stars(i + 1)} ${what.replaceAll("`", "")}`)));
  at("predict").hidden = !exercise.question;
  at("predict").querySelector("span").textContent = `Predict before you run: ${exercise.question}`;
  at("predict").querySelector("input").value = own?.guess ?? "";
  at("theory").hidden = !exercise.theory;
  at("theory").querySelector("summary").textContent = `The chapter: ${exercise.chapter}`;
  at("file").textContent = exercise.file;
  hints(exercise);
  view.setState(EditorState.create({ doc: own?.text ?? exercise.text, selection: { anchor: Math.min(own?.at ?? 0, (own?.text ?? "").length) }, extensions }));
  view.scrollDOM.scrollTo(0, own?.top ?? 0);
  at("verdict").replaceChildren();
  delete at("verdict").dataset.state;
  at("drawings").hidden = true;
  at("worked").open = false;
  at("solution").replaceChildren();
  arrows([]);
  if (exercise.last.state && text() === exercise.text) {
    said({ ...exercise.last, ...(exercise.last.state === "solved" ? { why: exercise.why, story: exercise.story } : {}) });
    if (exercise.last.drawn) drawing(exercise.last);
  } else if (exercise.why) said({ state: "solved", stars: exercise.stars, symptoms: [], why: exercise.why, story: exercise.story });
  await list();
  if (reloaded && own) scrollTo(0, own.page);
  theory(exercise); // last: it makes the server work
}

// The chapter's page comes later: its drawings are made from runs. Those of a chapter that was left are given up.
let asked = new AbortController();
async function theory(of) {
  const box = at("theory").querySelector("div");
  at("theory").open = of.first && WIDE.matches;
  if (!of.theory || box.dataset.chapter === of.chapter) return;
  asked.abort();
  asked = new AbortController();
  box.dataset.chapter = of.chapter;
  box.replaceChildren(made("p", course.ready ? "Drawing ..." : "Drawing ... (the simulator is being compiled, once: about half a minute)", { className: "soft" }));
  try {
    const { about } = await ask(`/theory/${of.number}`, undefined, asked.signal);
    if (box.dataset.chapter === of.chapter) box.innerHTML = about;
  } catch {
    if (box.dataset.chapter === of.chapter) box.dataset.chapter = ""; // asked for again with the next exercise
  }
}

function hints({ hints: seen, further }) {
  at("hints").querySelector("ol").replaceChildren(...seen.map((h) => made("li", undefined, { innerHTML: h })));
  at("hint").disabled = !further;
}

async function run() {
  if (at("run").disabled) return;
  at("run").disabled = true;
  delete at("verdict").dataset.state;
  at("verdict").replaceChildren(made("p", course.ready ? "Running ..." : "Running ... (the simulator is being compiled, once: about half a minute)"), made("progress"));
  try {
    const of = exercise, ran = text(), found = await ask(`/exercise/${of.number}/grade`, { text: ran });
    of.text = ran;
    if (of === exercise) { // still shown
      keep();
      said(found);
      if (found.drawn) drawing(found);
    }
    await list();
  } catch (error) {
    at("verdict").dataset.state = "wrong";
    at("verdict").replaceChildren(made("p", String(error.message)));
  }
  at("run").disabled = false;
}

function said(found) {
  const box = at("verdict"), items = made("ul");
  box.dataset.state = found.state;
  const head = made("h3", `${STATES[found.state]} `);
  if (found.state === "solved") head.append(made("span", stars(found.stars), { className: "stars", ariaLabel: `${found.stars} of 3 stars` }));
  if (found.stars < found.best) head.append(made("span", ` for this run; your best: ${stars(found.best)}`, { className: "soft" }));
  for (const symptom of found.symptoms) {
    const item = made("li");
    item.append(...symptom.says.split("`").map((part, i) => (i % 2 ? made("code", part) : part)), " ");
    for (const line of new Set(symptom.lines)) item.append(made("button", `line ${line}`, { type: "button", onclick: () => go(line) }), " ");
    if (symptom.facts?.map) item.append(wrongMap(symptom.facts));
    items.append(item);
  }
  box.replaceChildren(head, items);
  if (found.state === "solved" && exercise.skill) box.append(made("p", `You can now ${exercise.skill}.`, { className: "skill" }));
  if (found.state === "solved")
    box.append(...exercise.for.map((what, i) => made("p", `${i < found.stars ? "★" : "☆"} ${what.replaceAll("`", "")}`, { className: "soft" })));
  if (found.drawn)
    box.append(made("button", "What your kernel did", { type: "button", onclick: () => at("drawings").scrollIntoView() }));
  const guess = at("predict").querySelector("input").value;
  if (guess !== "" && found.answer !== undefined)
    box.append(made("p", Number(guess) === found.answer ? `You predicted ${guess}, and ${guess} was counted.` : `You predicted ${guess}; counted: ${+found.answer.toFixed(2)}.`));
  if (found.cases) box.append(made("p", `Right at ${found.cases} size${found.cases > 1 ? "s" : ""}, ${found.state === "wrong" ? "but not at all of them" : "without a race or fault"}.`, { className: "soft" }));
  if (found.state === "solved" && found.work && exercise.par) box.append(numbers(found));
  if (found.why) box.append(made("p", "About the reference:", { className: "soft" }));
  if (found.why) box.append(made("div", undefined, { innerHTML: found.why }));
  if (found.story?.length) box.append(made("p", `See also: ${found.story.map((s) => `rung show ${s} --diff`).join(", ")}`, { className: "soft" }));
  view.dispatch({ effects: mark.of(found.symptoms.flatMap((s) => s.lines)) });
  const race = found.symptoms.find((s) => s.kind === "race" && s.lines.length);
  arrows(race ? race.lines : []);
}

// The first wrong elements, and a picture of all: a row and a column for each index, or for several.
function wrongMap({ output, pairs, map, wrong, shape }) {
  const box = made("div", undefined, { className: "wrong" }), table = made("table");
  const number = (x) => (typeof x === "string" ? x : String(Math.abs(x) < 1.4e-45 ? 0 : +x.toPrecision(6))); // as a float holds it
  table.append(row(["element", "expected", "yours"], "th"));
  for (const one of pairs) table.append(row([`${output}[${one.index.join(", ")}]`, number(one.expected), one.got === null ? "never written" : number(one.got)], "td"));
  box.append(table);
  if (wrong < shape.reduce((a, b) => a * b, 1)) {
    const cell = 9, left = 8 + 6.2 * Math.max(...map.row_labels.map((t) => t.length)), colours = { "#": "var(--p1)", "+": "color-mix(in srgb, var(--p1) 50%, var(--box))", ".": "var(--box)" };
    const cells = map.rows.flatMap((line, y) => [...line].map((mark, x) => `<rect x="${left + cell * x}" y="${18 + cell * y}" width="${cell - 1}" height="${cell - 1}" style="fill:${colours[mark]}"/>`));
    const rows = map.row_labels.map((t, y) => (y % 2 ? "" : `<text x="${left - 4}" y="${26 + cell * y}" text-anchor="end">${t}</text>`));
    const columns = map.column_labels.map((n, x) => (x % 8 ? "" : `<text x="${left + cell * x}" y="12">${x ? "" : `${map.columns} = `}${n}</text>`));
    const wide = left + cell * Math.max(...map.rows.map((r) => r.length)) + 60;
    box.insertAdjacentHTML("beforeend", `<svg role="img" aria-label="Which elements of ${output} are wrong" viewBox="0 0 ${wide} ${22 + cell * map.rows.length}" width="${wide}">${columns.join("")}${rows.join("")}${cells.join("")}</svg><p class="soft">${output}: wrong elements are coloured</p>`);
  }
  return box;
}

// One's own numbers beside the reference's.
function numbers({ work, times: t }) {
  const table = made("table", undefined, { className: "numbers" }), us = (n) => `${+n.toPrecision(3)} us`, count = (n) => n.toLocaleString("en");
  table.append(row(["", "yours", ...(t?.mine ? ["your best"] : []), "reference"], "th"));
  table.append(row(["memory traffic (sectors and passes)", count(work), ...(t?.mine ? [""] : []), count(exercise.par)], "td"));
  if (t?.mine) table.append(row([`predicted on an ${t.gpu} at ${t.at}`, us(t.mine), us(t.best), us(t.reference)], "td"));
  return table;
}

function row(cells, name) {
  const one = made("tr");
  one.append(...cells.map((t) => made(name, t)));
  return one;
}

async function solution() {
  const { lines, why } = await ask(`/solution/${exercise.number}`), list = made("pre");
  for (const [code, note] of lines) list.append(made("span", `${code}\n`), ...(note ? [made("em", `    ^ ${note}\n`)] : []));
  at("solution").replaceChildren(list, made("div", undefined, { innerHTML: why }));
}

function drawing(found) {
  if (drawn && drawn.drawn !== found.drawn) before = drawn;
  drawn = found;
  const part = (title, one) => {
    const section = made("section", undefined, { innerHTML: one.drawn });
    section.prepend(made("h3", title));
    return section;
  };
  const pair = made("div", undefined, { className: "pair" });
  if (before) pair.append(part("Before", before));
  pair.append(part(before ? "Now" : "What your kernel did", found));
  at("drawings").replaceChildren(pair);
  at("drawings").hidden = false;
}

// A picture of what is solved, to keep or to show.
function card() {
  const every = course.chapters.flatMap((c) => c.exercises);
  const rows = course.chapters.map((c, i) => `<text x="24" y="${98 + 26 * i}">${c.title}</text><text x="360" y="${98 + 26 * i}" fill="#bf5700">${c.exercises.map((e) => (e.stars ? "★" : "☆")).join("")}</text>`);
  const height = 110 + 26 * rows.length;
  const who = prompt("Your name, for the certificate (or empty):") ?? "";
  const by = who.replace(/[<&]/g, "") && `<text x="24" y="66">${who.replace(/[<&]/g, "")}, ${new Date().toISOString().slice(0, 10)}</text>`;
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="620" height="${height + 10}" font-family="system-ui, sans-serif" font-size="15"><rect width="100%" height="100%" fill="#fff"/><text x="24" y="42" font-size="22" font-weight="600">rung: ${every.filter((e) => e.stars).length} of ${every.length} solved, ${every.reduce((n, e) => n + e.stars, 0)} stars</text>${by}${rows.join("")}</svg>`;
  made("a", "", { href: URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" })), download: "rung-certificate.svg" }).click();
}

at("run").onclick = run;
at("hint").onclick = async () => hints(await ask(`/exercise/${exercise.number}/hint`, {}));
at("again").onclick = () => { if (text() === exercise.start || confirm("Replace your text with the start of the exercise? Undo brings it back.")) write(exercise.start); };
at("undo").onclick = undo;
at("worked").ontoggle = () => at("worked").open && solution();
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.defaultPrevented) { event.preventDefault(); run(); }
});
at("next").onclick = () => { location.hash = `#${exercise.number + 1}`; };
at("card").onclick = card;
at("predict").onsubmit = (event) => { event.preventDefault(); run(); };
onpagehide = keep;
onhashchange = () => /^#\d+$/.test(location.hash) && show(location.hash.slice(1)).catch((error) => at("verdict").replaceChildren(made("p", error.message)));
at("list").open = WIDE.matches;
WIDE.onchange = () => { at("list").open = WIDE.matches; };
list().then(() => {
  if (/^#\d+$/.test(location.hash)) return onhashchange();
  history.replaceState(null, "", `#${course.next}`); // without an event, which would come later
  onhashchange();
});
