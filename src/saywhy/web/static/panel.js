/* What is known of the chosen word: numbers, its evidence budget, and the words it could have been. */

import { $, create, decimal, keepFocus, percent, probability, signed } from "./text.js";

const LITTLE = 0.15; // below this share, a map says little

const track = (className, scale) => {
  const element = create("span", className);
  element.style.setProperty("--zero", `${(100 * scale.low) / (scale.low + scale.high || 1)}%`);
  return element;
};

const bar = (part, value, scale) => {
  const piece = create("i", part.replaceAll("_", "-")), length = scale.low + scale.high || 1;
  piece.style.left = `${(100 * (scale.low + Math.min(0, value))) / length}%`;
  piece.style.width = `${(100 * Math.abs(value)) / length}%`;
  return piece;
};

export class Panel {
  constructor(page, chooseAlternative) {
    Object.assign(this, { page, chooseAlternative });
  }

  showWaiting(text, label) {
    $("panel").hidden = false;
    $("panel").classList.add("waiting");
    $("word").textContent = text;
    $("word-of").textContent = label;
  }

  /* `words` are all words of the caption that are explained: their bars share one scale. */
  show(word, words, risk, label) {
    $("panel").hidden = false;
    $("panel").classList.remove("waiting");
    $("word").textContent = word.contrast ? `${word.word}, not ${word.contrast}` : word.word;
    $("word-of").textContent = label;
    this.showNumbers(word, risk);
    this.showBudget(word, words);
    this.showShare(word);
    $("contrast-back").hidden = !word.contrast;
    $("score-name").textContent = word.contrast ? `lead over “${word.contrast}”` : "score";
  }

  showNumbers(word, risk) {
    const other = word.alternatives.find((one) => one.word === word.contrast);
    const numbers = [[other ? `Probability of “${word.word}”` : "Probability", probability(word.probability)]];
    if (other) numbers.push([`of “${other.word}”`, probability(other.probability)]);
    if (risk !== null && risk !== undefined) numbers.push(["Chance that it is made up", percent(risk)]);
    $("numbers").replaceChildren(...numbers.map(([name, value]) => {
      const item = create("div");
      item.append(create("dt", "", name), create("dd", "", value));
      return item;
    }));
  }

  showBudget(word, words) {
    const parts = Object.entries(this.page.parts).filter(([part, { rare }]) => !rare || word.budget[part]);
    const values = [word, ...words].flatMap(({ budget, score }) => [...parts.map(([part]) => budget[part] ?? 0), score]);
    const scale = { low: Math.max(0, ...values.map((value) => -value)), high: Math.max(0, ...values) };
    const row = (part, name, value, text, className) => {
      const line = track("track", scale);
      line.append(bar(part, value, scale));
      return [create("span", className, name), line, create("span", `value ${className}`, text)];
    };
    $("budget").replaceChildren(
      ...parts.flatMap(([part, { name }]) =>
        row(part, name === "image" ? "picture" : name, word.budget[part], signed(word.budget[part]), "")),
      create("span", "rule"),
      ...row("total", word.contrast ? "difference" : "score", word.score, decimal(word.score), "sum"),
    );
  }

  showShare(word) {
    const share = word.image_share;
    const text = word.contrast ? (share < 0 ? `: the picture speaks for “${word.contrast}”.` : " of the difference is from the picture.")
      : share < 0 ? ": the picture is evidence against this word."
      : share < LITTLE ? " of its evidence is from the picture: read little into its map."
      : " of its evidence is from the picture.";
    $("share").replaceChildren(create("b", "", percent(share)), text);
  }

  showAlternatives(word, chosen) {
    const largest = Math.max(...word.alternatives.map((other) => other.probability), word.probability);
    keepFocus($("alternatives"), () => $("alternatives").replaceChildren(...word.alternatives.map(({ word: other, probability: p }) => {
      const item = create("li"), button = create("button", "alternative");
      button.type = "button";
      button.setAttribute("aria-pressed", String(other === chosen));
      button.setAttribute("aria-label", `${other}: ${probability(p)}`);
      button.style.setProperty("--p", `${(100 * p) / largest}%`);
      button.append(create("span", "name", other), create("span", "p", probability(p)));
      button.addEventListener("click", () => this.chooseAlternative(other === chosen ? null : other));
      item.append(button);
      return item;
    })));
  }
}
