"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const told = JSON.parse($("told").textContent);
  const PARTS = Object.entries(told.parts); // [key, name]
  const tokens = [...document.querySelectorAll(".token")];
  const state = { chosen: 0, shown: 0, method: told.methods[0], head: 0 };

  const make = (tag, name, text) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const number = (value, digits = 2) => value.toFixed(digits).replace("-", "−").replace(/^−(0\.?0*)$/, "$1");
  const signed = (value) => (value >= 0.005 ? "+" : "") + number(value);
  const exact = (value) =>
    value === 0 || Math.abs(value) >= 0.01 ? number(value) : value.toPrecision(1).replace(/-/g, "−");
  const percent = (share) => `${Math.round(100 * share)} %`.replace("-", "−");

  /* One scale for the bars of all words, so that words can be compared. */
  const budgets = told.words.map((word) => PARTS.map(([part]) => word.budget[part]));
  const single = [...budgets.flat(), ...told.words.map((word) => word.logit)];
  const rows = { low: Math.max(0, ...single.map((value) => -value)), high: Math.max(0, ...single) };
  const stacked = (side) => Math.max(...budgets.map((of) => of.reduce((sum, v) => sum + Math.max(0, side * v), 0)));
  const stacks = { low: stacked(-1), high: stacked(1) };

  const piece = (part, start, value, scale) => {
    const bar = make("i", part), whole = scale.low + scale.high || 1;
    bar.style.left = `${(100 * (scale.low + Math.min(start, start + value))) / whole}%`;
    bar.style.width = `${(100 * Math.abs(value)) / whole}%`;
    return bar;
  };
  const track = (name, scale) => {
    const made = make("span", name);
    made.style.setProperty("--zero", `${(100 * scale.low) / (scale.low + scale.high || 1)}%`);
    return made;
  };

  /* Layers of a frame: the picture, the picture in pale grey, the map. */
  const layer = (frame) => {
    const pale = make("div", "pale"), map = make("img", "map");
    for (const image of [pale.appendChild(make("img")), map]) image.alt = "";
    pale.firstChild.src = $("image").src;
    frame.append(pale, map);
    if (told.seen) {
      const seen = frame.appendChild(make("div", "seen"));
      ["left", "top", "width", "height"].forEach((side, i) => (seen.style[side] = `${100 * told.seen[i]}%`));
    }
    return frame;
  };
  const lay = (frame, k) => {
    const maps = told.maps[state.method.id][k];
    frame.querySelector(".map").src = maps[Math.min(state.head, maps.length - 1)];
    frame.classList.toggle("signed", state.method.signed);
  };

  const thumbs = told.words.map((word, k) => {
    const thumb = make("button", "thumb"), frame = make("span", "frame"), mini = track("mini", stacks);
    frame.style.display = "block";
    frame.append($("image").cloneNode());
    frame.firstChild.removeAttribute("id");
    frame.firstChild.alt = "";
    const ends = { "-1": 0, 1: 0 };
    for (const [part] of PARTS) {
      const value = word.budget[part], side = value < 0 ? -1 : 1;
      mini.append(piece(part, ends[side], value, stacks));
      ends[side] += value;
    }
    const line = make("span", "line");
    line.append(make("span", "name", word.text), make("span", "from", percent(word.share)));
    thumb.append(layer(frame), line, mini);
    thumb.title = `${percent(word.share)} from the picture`;
    $("all").append(thumb);
    return thumb;
  });
  $("all").hidden = told.words.length < 2;

  const colourTokens = (word) => {
    const weights = word.earlier[state.method.id];
    const most = Math.max(...(weights || []).map(Math.abs), 0) || 1;
    tokens.forEach((token, place) => {
      const weight = weights && place < word.position ? weights[place] : null;
      token.classList.toggle("current", place === word.position);
      token.classList.toggle("later", place > word.position);
      token.style.setProperty("--tint", `var(--${weight > 0 ? "red" : "blue"})`);
      token.style.setProperty("--weight", weight === null ? 0 : ((0.6 * Math.abs(weight)) / most).toFixed(3));
      token.querySelector(".weight").textContent = weight === null ? "" : signed(weight);
    });
    $("hint").textContent =
      word.position === 0 ? "The first word: nothing was said before it."
      : weights ? `Earlier words: red supported “${word.word}”, blue spoke against it, by ${state.method.name}.`
      : `${state.method.name} looks at the picture alone: it gives earlier words no weight.`;
  };

  const showBudget = (word) => {
    const line = (part, name, value, text, heavy) => {
      const bar = track("track", rows);
      bar.append(piece(part, 0, value, rows));
      $("budget").append(make("span", heavy, name), bar, make("span", `value ${heavy}`, text));
    };
    $("budget").replaceChildren();
    for (const [part, name] of PARTS) line(part, name, word.budget[part], signed(word.budget[part]), "");
    $("budget").append(make("span", "rule"));
    line("total", word.instead === null ? "logit" : "difference", word.logit, number(word.logit), "sum");
  };

  const showShare = (word) => {
    const rest = word.share < 0 ? ": the picture spoke against it." : " of the evidence came from the picture.";
    $("share").replaceChildren(make("b", "", percent(word.share)), rest);
    $("encoder").textContent =
      word.pixels === null ? "The model looks at given features: nothing is traced on to pixels."
      : `Of the picture’s ${number(word.budget.image)}, ${exact(word.pixels)} reached the pixels; the encoder ` +
        `absorbed ${number(word.absorbed_by_encoder)}. Read the map by its place and sign, not by its sum.`;
  };

  const showFacts = (word) => {
    const digits = word.probability < 0.001 ? 6 : 3;
    const facts = [
      ["Probability", word.probability, (p) => number(p, digits)],
      ["Gate β", word.beta, (beta) => number(beta, 2)],
      ["Chance that it is made up", word.risk, percent],
    ];
    const there = facts.filter(([, value]) => value !== null && value !== undefined);
    $("facts").replaceChildren(...there.map(([name, value, write]) => {
      const fact = make("div");
      fact.append(make("dt", "", name), make("dd", "", write(value)));
      return fact;
    }));
  };

  const show = (k) => {
    const word = told.words[k];
    state.shown = k;
    $("word").textContent = word.text;
    $("said").textContent = word.said === word.word ? "" : `The caption has “${word.said}” here.`;
    $("score").textContent = word.instead === null ? "logit" : `lead over “${word.instead}”`;
    colourTokens(word);
    showFacts(word);
    showBudget(word);
    showShare(word);
    lay($("stage"), k);
  };

  const choose = (k) => {
    state.chosen = Math.max(0, Math.min(told.words.length - 1, k));
    thumbs.forEach((thumb, each) => thumb.setAttribute("aria-pressed", each === state.chosen));
    for (const token of tokens) {
      if (token.tagName !== "BUTTON") continue;
      const chosen = Number(token.dataset.word) === state.chosen;
      token.setAttribute("aria-pressed", chosen);
      token.tabIndex = chosen ? 0 : -1;
    }
    const { text, probability, share } = told.words[state.chosen];
    $("spoken").textContent = `${text}: probability ${number(probability)}, ${percent(share)} from the picture`;
    show(state.chosen);
    remember();
  };

  const use = (id) => {
    state.method = told.methods.find((method) => method.id === id) || told.methods[0];
    document.querySelector(`input[value="${state.method.id}"]`).checked = true;
    const heads = told.maps[state.method.id][0].length - 1;
    $("heads").hidden = heads < 1;
    $("head").replaceChildren(...Array.from({ length: heads + 1 }, (_, head) => new Option(head || "mean", head)));
    state.head = 0;
    $("about").textContent = state.method.about;
    $("low").textContent = state.method.signed ? "against" : "none";
    $("high").textContent = state.method.signed ? "for the word" : "most";
    document.body.classList.toggle("signed-map", state.method.signed);
    thumbs.forEach((thumb, k) => lay(thumb.querySelector(".frame"), k));
    show(state.shown);
    remember();
  };

  /* The address names what is shown, so that a link can point at one word. Some frames forbid it; nothing is lost. */
  const remember = () => {
    try {
      history.replaceState(null, "", `#word=${state.chosen + 1}&method=${state.method.id}`);
    } catch { /* shown all the same */ }
  };
  const follow = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    const word = Number(asked.get("word")) || 1, method = asked.get("method");
    use(method);
    choose(word - 1);
  };

  const steer = (element, k) => {
    element.addEventListener("click", () => choose(k));
    element.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && show(k));
    element.addEventListener("pointerleave", () => show(state.chosen));
  };
  for (const token of tokens) if (token.tagName === "BUTTON") steer(token, Number(token.dataset.word));
  thumbs.forEach(steer);
  $("caption").addEventListener("focusin", (event) => {
    const token = event.target.closest("button.token");
    if (token && Number(token.dataset.word) !== state.chosen) choose(Number(token.dataset.word));
  });
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, select")) return;
    choose(state.chosen + step);
    if (event.target.closest(".token")) document.querySelector('.token[aria-pressed="true"]')?.focus();
    if (event.target.closest(".thumb")) thumbs[state.chosen].focus();
    event.preventDefault();
  });
  document.querySelector(".methods").addEventListener("change", (event) => use(event.target.value));
  $("head").addEventListener("change", () => {
    state.head = Number($("head").value);
    thumbs.forEach((thumb, k) => lay(thumb.querySelector(".frame"), k));
    show(state.shown);
  });
  $("strength").addEventListener("input", () => $("stage").style.setProperty("--strength", $("strength").value / 100));
  window.addEventListener("hashchange", follow);

  layer($("stage"));
  follow();
})();
