// One page, no build step: conversations are kept in this browser, replies come from this server.
const $ = (id) => document.getElementById(id);
const STORE = "edgespec-conversations";
const drafters = [];
const speedups = [];
let conversations = stored();
let current = null;
let reading = null;

function stored() {
  try {
    const found = JSON.parse(localStorage.getItem(STORE) || "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

function keep() {
  try {
    localStorage.setItem(STORE, JSON.stringify(conversations));
  } catch {
    problem("This browser keeps no more conversations; delete old ones.");
  }
}

function problem(text) {
  $("problem").textContent = text;
}

function ask(path, options = {}) {
  const key = $("key").value;
  const headers = { ...(options.headers || {}) };
  if (key) headers.Authorization = `Bearer ${key}`;
  return fetch(path, { ...options, headers });
}

async function json(path) {
  const answer = await ask(path);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error.message);
  return found;
}

function size(bytes) {
  const mib = bytes / 2 ** 20;
  return mib < 1024 ? `${Math.round(mib)} MiB` : `${(mib / 1024).toFixed(1)} GiB`;
}

async function showStatus() {
  try {
    const found = await json("status");
    $("model").textContent = `${found.model}, context ${found.context_tokens.toLocaleString("en")} tokens`;
    if (!$("memory-text").textContent) setSliders(found);
    $("memory").max = found.memory_budget_bytes;
    $("memory").value = found.memory_resident_bytes;
    $("memory-text").textContent =
      `${size(found.memory_resident_bytes)} of ${size(found.memory_budget_bytes)}`;
  } catch (error) {
    $("model").textContent = error.message;
  }
}

function setSliders(found) {
  $("budget").value = Math.log(found.memory_budget_bytes / 2 ** 26) / Math.log(1.25);
  $("context").max = Math.floor(Math.log2(found.context_tokens_of_model));
  $("context").value = Math.floor(Math.log2(found.context_tokens));
}

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function article(turn) {
  const made = element("article", "", turn.role);
  made.append(element("h3", turn.role === "user" ? "You" : "Model"));
  if (turn.thoughts) made.append(element("div", turn.thoughts, "thoughts"));
  const body = element("div");
  if (turn.tokens) body.append(...turn.tokens.map(([text, by]) => token(text, by)));
  else body.textContent = turn.content;
  made.append(body);
  if (turn.numbers) made.append(element("p", turn.numbers, "numbers"));
  $("log").append(made);
  return made;
}

function token(text, by) {
  if (!by) return document.createTextNode(text);
  if (!drafters.includes(by)) {
    drafters.push(by);
    const one = element("span", by, `by-${(drafters.length - 1) % 5 + 1}`);
    $("legend").append(one);
  }
  const made = element("span", text, `by-${drafters.indexOf(by) % 5 + 1}`);
  made.title = `drafted by ${by}`;
  return made;
}

function showConversation() {
  $("log").replaceChildren();
  for (const turn of current.turns) article(turn);
  $("log").scrollTop = $("log").scrollHeight;
  showList();
}

function showList() {
  $("saved").replaceChildren(...conversations.map((one) => {
    const name = one.turns[0]?.content.slice(0, 60) || "New conversation";
    const open = element("button", name, "open");
    open.type = "button";
    open.setAttribute("aria-current", String(one === current));
    open.onclick = () => { stop(); current = one; showConversation(); };
    const remove = element("button", "×");
    remove.type = "button";
    remove.setAttribute("aria-label", `Delete ${name}`);
    remove.onclick = () => {
      conversations = conversations.filter((other) => other !== one);
      keep();
      if (one === current) begin(); else showList();
    };
    const item = element("li");
    item.append(open, remove);
    return item;
  }));
}

function begin() {
  stop();
  current = { turns: [] };
  showConversation();
  $("message").focus();
}

function stop() {
  reading?.abort();
}

function busy(is) {
  $("send").disabled = is;
  $("stop").disabled = !is;
  $("log").setAttribute("aria-busy", String(is));
}

async function send(text) {
  problem("");
  const talk = current;
  if (!conversations.includes(talk)) conversations.unshift(talk);
  talk.turns.push({ role: "user", content: text });
  showConversation();
  const turn = { role: "assistant", content: "", thoughts: "", tokens: [], numbers: "" };
  const shown = article(turn);
  reading = new AbortController();
  busy(true);
  try {
    await read(talk, turn, shown, reading.signal);
  } catch (error) {
    if (error.name !== "AbortError") problem(error.message);
  } finally {
    busy(false);
    reading = null;
    if (turn.content || turn.thoughts) talk.turns.push(turn);
    keep();
    if (talk === current) showConversation();
    $("message").focus();
    showStatus();
  }
}

async function read(talk, turn, shown, signal) {
  const system = $("system").value.trim();
  const messages = talk.turns.map(({ role, content }) => ({ role, content }));
  if (system) messages.unshift({ role: "system", content: system });
  const answer = await ask("v1/chat/completions", {
    method: "POST", signal, headers: { "Content-Type": "application/json" },
    body: JSON.stringify({
      messages, stream: true, origins: true,
      temperature: Number($("temperature").value), max_tokens: Number($("most").value),
      speculation: $("speculation").checked ? "on" : "off",
    }),
  });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of pieces(answer.body)) {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: {")) take(JSON.parse(line.slice(6)), turn, shown);
    }
  }
}

async function* pieces(stream) {
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

function take(found, turn, shown) {
  if (found.error) throw new Error(found.error.message);
  const choice = found.choices[0];
  const delta = choice?.delta ?? {};
  const atEnd = $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;
  if (delta.reasoning_content) {
    turn.thoughts += delta.reasoning_content;
    thoughtsOf(shown).textContent = turn.thoughts;
  }
  if (delta.content) {
    turn.content += delta.content;
    const tokens = found.edgespec?.tokens;
    const whole = tokens?.map(([text]) => text).join("") === delta.content;
    const made = whole ? tokens : [[delta.content, ""]];
    turn.tokens.push(...made);
    shown.querySelector("div:not(.thoughts)").append(...made.map(([text, by]) => token(text, by)));
  }
  if (choice?.finish_reason && found.edgespec) numbers(found.edgespec, choice, turn);
  if (atEnd) $("log").scrollTop = $("log").scrollHeight;
}

function thoughtsOf(shown) {
  let found = shown.querySelector(".thoughts");
  if (!found) {
    found = element("div", "", "thoughts");
    shown.querySelector("h3").after(found);
  }
  return found;
}

function numbers(stats, choice, turn) {
  turn.numbers = `${stats.tokens_per_second.toFixed(0)} tokens/s, ` +
    `${stats.tokens_per_step.toFixed(2)} tokens per step, seed ${stats.seed}` +
    (choice.finish_reason === "length" ? ", cut at the limit" : "");
  if (!$("speculation").checked) return;
  speedups.push(stats.estimated_speedup);
  const mean = speedups.reduce((sum, one) => sum + one, 0) / speedups.length;
  $("pays").textContent = `${mean.toFixed(2)} times the speed of one token at a time ` +
    `(${speedups.length} ${speedups.length === 1 ? "reply" : "replies"})`;
}

function planText(plan) {
  const rows = Object.entries(plan.footprint).filter(([, bytes]) => bytes >= 2 ** 16);
  const lines = rows.map(([name, bytes]) => `${name.slice(0, 22).padEnd(23)}${sized(bytes).padStart(10)}`);
  return [
    `${sized(plan.planned_bytes)} planned of ${size(plan.budget_bytes)}`,
    `context ${plan.context_length.toLocaleString("en")} tokens, ${plan.sequences} at once`,
    "", ...lines,
  ].join("\n");
}

function sized(bytes) {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

let planned = 0;
function planAsked() {
  const budget = Math.round(64 * 1.25 ** Number($("budget").value));
  const context = 2 ** Number($("context").value);
  $("budget-text").textContent = size(budget * 2 ** 20);
  $("context-text").textContent = `${context.toLocaleString("en")} tokens`;
  clearTimeout(planned);
  planned = setTimeout(async () => {
    try {
      const found = await json(`plan?memory=${budget}MiB&context=${context}`);
      $("plan-text").textContent = planText(found.plan);
    } catch (error) {
      $("plan-text").textContent = error.message;
    }
  }, 300);
}

$("form").onsubmit = (event) => {
  event.preventDefault();
  const text = $("message").value.trim();
  if (!text || reading) return;
  $("message").value = "";
  send(text);
};
$("message").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
  if (event.key === "Escape") stop();
};
$("stop").onclick = stop;
$("new").onclick = begin;
$("colours").onchange = () => $("log").classList.toggle("plain", !$("colours").checked);
$("key").onchange = () => { sessionStorage.setItem("edgespec-key", $("key").value); showStatus(); };
$("key").value = sessionStorage.getItem("edgespec-key") || "";
$("plan").ontoggle = () => { if ($("plan").open) planAsked(); };
$("budget").oninput = planAsked;
$("context").oninput = planAsked;

begin();
showStatus();
setInterval(showStatus, 5000);
