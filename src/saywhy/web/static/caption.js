/* A caption as a row of words: buttons with the share of the picture, and the risk of words for objects. */

import { create, isClitic, percent } from "./text.js";

const explainedText = (word, risk) => {
  const parts = [];
  if (word) parts.push(`${percent(word.image_share)} of its evidence from the picture`);
  if (risk !== null && risk !== undefined) parts.push(`${percent(risk)} likely made up`);
  return parts.join(", ");
};

export class CaptionRow {
  /* `choose` is called with the index of a word that was tapped, or reached with the arrow keys. */
  constructor(reading, limits, choose) {
    Object.assign(this, { reading, limits, choose });
    this.element = create("article", "reading");
    this.label = this.element.appendChild(create("h2", "label", reading.label));
    this.row = this.element.appendChild(create("div", "caption"));
    this.row.setAttribute("role", "group");
    this.row.setAttribute("aria-label", `${reading.label}: choose a word`);
    this.row.addEventListener("keydown", (event) => this.onKey(event));
    this.buttons = [];
  }

  onKey(event) {
    const last = this.buttons.length - 1, at = this.buttons.indexOf(document.activeElement);
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (next === undefined || at < 0) return;
    event.preventDefault();
    const k = Math.max(0, Math.min(last, next));
    this.buttons[k].focus();
    this.choose(this.reading, k);
  }

  /* Show the words; those that did not change keep their buttons, so that nothing flickers while they are decoded. */
  showWords(marked = new Set()) {
    const { words, finished } = this.reading;
    const kept = this.buttons.findIndex((button, k) => button.dataset.word !== words[k]);
    const from = kept < 0 ? this.buttons.length : kept;
    for (const button of this.buttons.splice(from)) button.remove();
    for (let k = from; k < words.length; k++) this.buttons.push(this.row.appendChild(this.button(words[k], k)));
    this.row.classList.toggle("unfinished", !finished);
    this.row.setAttribute("aria-busy", String(!finished));
    this.buttons.forEach((button, k) => {
      button.disabled = !finished;
      button.classList.toggle("changed", marked.has(k));
      this.describe(k);
    });
    if (finished && !this.buttons.some((button) => button.tabIndex === 0)) this.setTab(0);
  }

  button(word, k) {
    const button = create("button", isClitic(word) ? "word clitic" : "word");
    button.type = "button";
    button.dataset.word = word;
    button.tabIndex = -1;
    button.append(create("span", "text", word), create("span", "share"), create("span", "facts"));
    button.addEventListener("click", () => this.choose(this.reading, k));
    return button;
  }

  /* The numbers of a word: its bar is the share of its evidence from the picture. */
  describe(k) {
    const button = this.buttons[k], word = this.reading.explained[k];
    if (!button) return;
    const risk = this.reading.risks ? this.reading.risks[k] : null, facts = button.querySelector(".facts");
    const isRisky = risk !== null && risk >= this.limits.likely_made_up;
    button.classList.toggle("explained", Boolean(word));
    button.classList.toggle("risky", isRisky);
    button.style.setProperty("--share", word ? Math.max(0, Math.min(1, word.image_share)).toFixed(3) : 0);
    facts.replaceChildren(create("span", "percent", word ? percent(word.image_share) : " "));
    if (risk !== null) facts.append(create("span", "risk", isRisky ? `made up? ${percent(risk)}` : `risk ${percent(risk)}`));
    const changed = button.classList.contains("changed") ? ", changed" : "";
    button.setAttribute("aria-label", [this.reading.words[k] + changed, explainedText(word, risk)].filter(Boolean).join(": "));
  }

  setTab(k) {
    this.buttons.forEach((button, i) => (button.tabIndex = i === k ? 0 : -1));
  }

  /* Mark the chosen word, and colour the words before it by their weights. */
  showChosen(k, weights) {
    const largest = Math.max(...(weights || []).map(Math.abs), 0);
    this.buttons.forEach((button, i) => {
      const weight = k !== null && i < k && weights ? weights[i] : 0;
      button.setAttribute("aria-pressed", String(i === k));
      button.classList.toggle("against", weight < 0);
      button.style.setProperty("--weight", largest ? (0.55 * Math.abs(weight / largest)).toFixed(3) : 0);
    });
    if (k !== null) this.setTab(k);
  }
}
