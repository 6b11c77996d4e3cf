"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const SMALL_SHARE = 0.15, WEAK = 0.15; // below them, a map comes with a warning
  const PARTS = Object.entries(data.parts); // [key, name]
  const tokens = [...document.querySelectorAll(".token")];
  // `chosen` was clicked and stays; `shown` may be a word under the pointer. Both are indices into data.words.
  const state = { chosen: 0, shown: 0, method: data.methods[0], head: 0, ownScale: false };

  const create = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const decimal = (value, digits = 2) => value.toFixed(digits).replace("-", "−").replace(/^−(0\.?0*)$/, "$1");
  const signed = (value) => (value >= 0.005 ? "+" : "") + decimal(value);
  const shortDecimal = (value) =>
    value === 0 || Math.abs(value) >= 0.01 ? decimal(value) : value.toPrecision(1).replace(/-/g, "−");
  const percent = (share) => `${Math.round(100 * share)} %`.replace("-", "−");

  /* All words share one scale for their bars, so that words can be compared. */
  const budgets = data.words.map((word) => PARTS.map(([part]) => word.budget[part]));
  const values = [...budgets.flat(), ...data.words.map((word) => word.score)];
  const barScale = { low: Math.max(0, ...values.map((value) => -value)), high: Math.max(0, ...values) };
  const longestStack = (side) =>
    Math.max(...budgets.map((parts) => parts.reduce((sum, value) => sum + Math.max(0, side * value), 0)));
  const stackScale = { low: longestStack(-1), high: longestStack(1) };

  const barPiece = (part, start, value, scale) => {
    const piece = create("i", part.replaceAll("_", "-")), length = scale.low + scale.high || 1;
    piece.style.left = `${(100 * (scale.low + Math.min(start, start + value))) / length}%`;
    piece.style.width = `${(100 * Math.abs(value)) / length}%`;
    return piece;
  };
  const barTrack = (className, scale) => {
    const track = create("span", className);
    track.style.setProperty("--zero", `${(100 * scale.low) / (scale.low + scale.high || 1)}%`);
    return track;
  };

  /* Layers of a frame: the image, the image in pale grey, darkness for weak maps without a sign, the map, and white
     outside the encoder's crop. */
  const addLayers = (frame) => {
    const pale = create("div", "pale"), map = create("img", "map");
    for (const image of [pale.appendChild(create("img")), map]) image.alt = "";
    pale.firstChild.src = $("image").src;
    frame.append(pale, create("div", "dim"), map);
    if (data.crop) {
      const crop = frame.appendChild(create("div", "crop"));
      ["left", "top", "width", "height"].forEach((side, i) => (crop.style[side] = `${100 * data.crop[i]}%`));
    }
    return frame;
  };
  const showMap = (frame, k) => {
    const maps = data.maps[state.method.id][k];
    frame.querySelector(".map").src = maps[Math.min(state.head, maps.length - 1)];
    frame.classList.toggle("signed", state.method.signed);
    const strength = state.ownScale || state.head ? 1 : data.strengths[state.method.id][k];
    frame.style.setProperty("--strength", state.method.signed ? strength ** data.gamma : strength);
  };

  const createThumb = (word) => {
    const thumb = create("button", "thumb"), frame = create("span", "frame"), bar = barTrack("mini", stackScale);
    frame.style.display = "block";
    frame.append($("image").cloneNode());
    frame.firstChild.removeAttribute("id");
    frame.firstChild.alt = "";
    const ends = { "-1": 0, 1: 0 };
    for (const [part] of PARTS) {
      const value = word.budget[part], side = value < 0 ? -1 : 1;
      bar.append(barPiece(part, ends[side], value, stackScale));
      ends[side] += value;
    }
    const line = create("span", "line");
    line.append(create("span", "name", word.text), create("span", "image-share", percent(word.image_share)));
    thumb.append(addLayers(frame), line, bar, create("span", "strength"));
    thumb.title = `${percent(word.image_share)} of the evidence from the image`;
    return thumb;
  };
  const thumbs = data.words.map(createThumb);
  $("thumbs").append(...thumbs);
  $("all-words").hidden = thumbs.length < 2;

  const tint = (token, value, largest, text) => {
    token.style.setProperty("--tint", `var(--${value > 0 ? "red" : "blue"})`);
    token.style.setProperty("--weight", value === null ? 0 : ((0.6 * Math.abs(value)) / (largest || 1)).toFixed(3));
    token.querySelector(".weight").textContent = value === null ? "" : text;
  };

  const colourTokens = (word) => {
    const weights = word.earlier_words[state.method.id];
    const largest = Math.max(...(weights || []).map(Math.abs), 0);
    tokens.forEach((token, position) => {
      const weight = weights && position < word.position ? weights[position] : null;
      token.classList.toggle("current", position === word.position);
      token.classList.toggle("later", position > word.position);
      tint(token, weight, largest, weight === null ? "" : signed(weight));
    });
    $("earlier-words-note").textContent =
      word.position === 0 ? "This is the first word: there are no earlier words."
      : weights ? `Earlier words: red supports “${word.word}”, blue is evidence against it (${state.method.name}).`
      : `${state.method.name} explains the image only: it gives no weights to earlier words.`;
  };

  const showBudget = (word) => {
    const addRow = (part, name, value, text, className) => {
      const track = barTrack("track", barScale);
      track.append(barPiece(part, 0, value, barScale));
      $("budget").append(create("span", className, name), track, create("span", `value ${className}`, text));
    };
    $("budget").replaceChildren();
    for (const [part, name] of PARTS) addRow(part, name, word.budget[part], signed(word.budget[part]), "");
    $("budget").append(create("span", "rule"));
    addRow("total", word.contrast === null ? "score" : "difference", word.score, decimal(word.score), "sum");
  };

  const showImageShare = (word) => {
    const text =
      word.image_share < 0 ? ": the image is evidence against this word." : " of the evidence is from the image.";
    $("image-share").replaceChildren(create("b", "", percent(word.image_share)), text);
    $("pixel-relevance").textContent =
      word.pixel_relevance === null ? "This model gets precomputed features: nothing is traced back to pixels."
      : `Of the image’s ${decimal(word.budget.image + (word.budget.class_token ?? 0))}, the encoder absorbed ${decimal(word.absorbed_by_encoder)} and ` +
        `${shortDecimal(word.pixel_relevance)} reached the pixels.`;
  };

  /* A map says little where it is weak, or where the image has little part in the word. */
  const showWarning = (word, k) => {
    const strength = data.strengths[state.method.id][k], share = word.image_share;
    const weak = `This map is weak: ${percent(strength)} of the strength of the strongest word’s.`;
    const small = `Only ${percent(share)} of the evidence for “${word.word}” is from the image: read little into its map.`;
    const text = state.method.id.startsWith("lrp") && share >= 0 && share < SMALL_SHARE ? small : strength < WEAK ? weak : "";
    $("map-warning").textContent = text;
    $("map-warning").hidden = !text;
  };

  /* What a place of the image counts for every word: the words are coloured by it. */
  const showPlace = (x, y) => {
    const [columns, rows] = data.grid, cells = data.cells[state.method.id];
    const cell = (size, share) => Math.min(size - 1, Math.max(0, Math.floor(size * share)));
    const index = cell(rows, y) * columns + cell(columns, x);
    const positions = data.words.map((word) => word.position);
    tokens.forEach((token, position) => {
      const k = positions.indexOf(position), value = k < 0 ? null : cells[k][index] / 10;
      token.classList.remove("current", "later");
      tint(token, value, 100, value === null ? "" : `${decimal(value, 0)} %`);
    });
    $("earlier-words-note").textContent = state.method.signed
      ? `This place: it supports red words and is evidence against blue ones, in percent of the strongest place (${state.method.name}).`
      : `This place: how much it counts for each word, in percent of the strongest place (${state.method.name}).`;
    for (const frame of document.querySelectorAll(".frame")) {
      const spot = frame.querySelector(".spot") || frame.appendChild(create("div", "spot"));
      spot.style.left = `${100 * x}%`;
      spot.style.top = `${100 * y}%`;
    }
  };
  const leavePlace = () => {
    for (const spot of document.querySelectorAll(".spot")) spot.remove();
    show(state.chosen);
  };

  const showNumbers = (word) => {
    const digits = word.probability < 0.001 ? 6 : 3;
    const numbers = [
      ["Probability", word.probability, (p) => decimal(p, digits)],
      ["Gate β", word.beta, (beta) => decimal(beta, 2)],
      ["Chance that it is made up", word.risk, percent],
    ];
    const known = numbers.filter(([, value]) => value !== null && value !== undefined);
    $("word-numbers").replaceChildren(...known.map(([name, value, format]) => {
      const item = create("div");
      item.append(create("dt", "", name), create("dd", "", format(value)));
      return item;
    }));
  };

  const show = (k) => {
    const word = data.words[k];
    state.shown = k;
    $("word").textContent = word.text;
    $("caption-word").textContent =
      word.caption_word === word.word ? "" : `The caption has “${word.caption_word}” here.`;
    $("score-name").textContent = word.contrast === null ? "score" : `lead over “${word.contrast}”`;
    colourTokens(word);
    showNumbers(word);
    showBudget(word);
    showImageShare(word);
    showWarning(word, k);
    showMap($("viewer"), k);
  };
  const showAllMaps = () => {
    thumbs.forEach((thumb, k) => {
      showMap(thumb.querySelector(".frame"), k);
      thumb.querySelector(".strength").textContent = `map ${percent(data.strengths[state.method.id][k])}`;
    });
    show(state.shown);
  };

  const chooseWord = (k) => {
    for (const spot of document.querySelectorAll(".spot")) spot.remove();
    state.chosen = Math.max(0, Math.min(data.words.length - 1, k));
    thumbs.forEach((thumb, i) => thumb.setAttribute("aria-pressed", i === state.chosen));
    for (const token of tokens) {
      if (token.tagName !== "BUTTON") continue;
      const chosen = Number(token.dataset.word) === state.chosen;
      token.setAttribute("aria-pressed", chosen);
      token.tabIndex = chosen ? 0 : -1;
    }
    const { text, probability, image_share } = data.words[state.chosen];
    $("announcement").textContent =
      `${text}: probability ${decimal(probability)}, ${percent(image_share)} of the evidence from the image`;
    show(state.chosen);
    writeAddress();
  };

  const chooseMethod = (id) => {
    state.method = data.methods.find((method) => method.id === id) || data.methods[0];
    document.querySelector(`input[value="${state.method.id}"]`).checked = true;
    const heads = data.maps[state.method.id][0].length - 1;
    $("head-choice").hidden = heads < 1;
    $("head").replaceChildren(...Array.from({ length: heads + 1 }, (_, head) => new Option(head || "mean", head)));
    state.head = 0;
    $("method-description").textContent = state.method.description;
    $("scale-low").textContent = state.method.signed ? "against the word" : "low";
    $("scale-high").textContent = state.method.signed ? "for the word" : "high";
    document.body.classList.toggle("signed-map", state.method.signed);
    showAllMaps();
    writeAddress();
  };

  /* The address names the word and the method, so that it can be shared. Some embedded frames forbid to change it. */
  const writeAddress = () => {
    try {
      history.replaceState(null, "", `#word=${state.chosen + 1}&method=${state.method.id}`);
    } catch { /* the page works without it */ }
  };
  const readAddress = () => {
    const parameters = new URLSearchParams(location.hash.slice(1));
    const word = Number(parameters.get("word")) || data.opens + 1, method = parameters.get("method");
    chooseMethod(method);
    chooseWord(word - 1);
  };

  const makeSelectable = (element, k) => {
    element.addEventListener("click", () => chooseWord(k));
    element.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && show(k));
    element.addEventListener("pointerleave", () => show(state.chosen));
  };
  const place = (event) => {
    const box = $("viewer").getBoundingClientRect();
    showPlace((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  };
  $("viewer").addEventListener("pointermove", (event) => event.pointerType === "mouse" && place(event));
  $("viewer").addEventListener("pointerdown", place);
  $("viewer").addEventListener("pointerleave", (event) => event.pointerType === "mouse" && leavePlace());
  $("own-scale").addEventListener("change", (event) => {
    state.ownScale = event.target.checked;
    showAllMaps();
  });
  for (const token of tokens) if (token.tagName === "BUTTON") makeSelectable(token, Number(token.dataset.word));
  thumbs.forEach(makeSelectable);
  $("caption").addEventListener("focusin", (event) => {
    const token = event.target.closest("button.token");
    if (token && Number(token.dataset.word) !== state.chosen) chooseWord(Number(token.dataset.word));
  });
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, select")) return;
    chooseWord(state.chosen + step);
    if (event.target.closest(".token")) document.querySelector('.token[aria-pressed="true"]')?.focus();
    if (event.target.closest(".thumb")) thumbs[state.chosen].focus();
    event.preventDefault();
  });
  document.querySelector(".methods").addEventListener("change", (event) => chooseMethod(event.target.value));
  $("head").addEventListener("change", () => {
    state.head = Number($("head").value);
    showAllMaps();
  });
  $("opacity").addEventListener("input", () => $("viewer").style.setProperty("--opacity", $("opacity").value / 100));
  window.addEventListener("hashchange", readAddress);

  addLayers($("viewer"));
  readAddress();
})();
