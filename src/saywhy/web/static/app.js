/* The page: one picture, one or two captions of it, and the word that is looked at. */

import { getJson, postBlob } from "./api.js";
import { CaptionRow } from "./caption.js";
import { Eraser } from "./eraser.js";
import { Panel } from "./panel.js";
import { Reading } from "./reading.js";
import { Settings } from "./settings.js";
import { $, changedWords, create, percent, probability, sentence } from "./text.js";
import { Upload } from "./upload.js";
import { Viewer } from "./viewer.js";

const HINT = "Tap a word to see why it was said. The bar: how much of its evidence is from the picture. Risk: how likely it is made up.";
const MANY = 16; // times the first number of patches: more is not removed

class App {
  constructor(page) {
    this.page = page;
    this.rows = []; // one or two captions
    this.chosen = null; // { row, k }
    this.contrast = null;
    this.picture = null;
    this.viewer = new Viewer(page);
    this.panel = new Panel(page, (other) => this.compareWith(other));
    this.eraser = new Eraser((mask) => this.captionErased(mask));
    this.settings = new Settings(page, () => this.captionAgain(), (text) => this.explainOwn(text));
    this.upload = new Upload(page, (picture) => this.open(picture), (message) => this.fail(message));
    this.addMethods();
    for (const input of document.querySelectorAll("input[name=sign]"))
      input.addEventListener("change", () => {
        this.viewer.sign = input.value;
        this.showWord();
      });
    $("contrast-back").addEventListener("click", () => this.compareWith(null));
    $("remove").addEventListener("click", () => this.removeEvidence());
    $("restore").addEventListener("click", () => this.restore());
    $("again").addEventListener("click", () => this.close());
    for (const button of document.querySelectorAll("[data-download]"))
      button.addEventListener("click", () => this.download(button));
    $("about").textContent = `saywhy ${page.version}, ${page.models.map(({ name }) => name).join(" and ")}`;
  }

  addMethods() {
    for (const method of this.page.methods) {
      const label = create("label"), input = create("input");
      Object.assign(input, { type: "radio", name: "method", value: method.id, checked: method === this.viewer.method });
      input.addEventListener("change", () => this.chooseMethod(method));
      label.append(input, create("span", "", method.name));
      $("methods").append(label);
    }
    this.viewer.setMethod(this.viewer.method);
  }

  /* Errors */

  fail(message) {
    $("error").textContent = message;
    $("error").hidden = false;
    $("error").scrollIntoView({ block: "nearest" });
  }

  /* Run something that may fail; an answer that nobody waits for any more is no failure. */
  async attempt(action) {
    try {
      return await action();
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      if (!error.status && !error.message.startsWith("The server")) console.error(error);
      this.fail(error.message);
      return undefined;
    } finally {
      this.viewer.showBusy(null);
    }
  }

  say(text) {
    $("live").textContent = text;
  }

  /* Pictures */

  open(picture) {
    if (this.picture) URL.revokeObjectURL(this.picture.url);
    this.picture = picture;
    $("error").hidden = true;
    $("start").hidden = true;
    $("work").hidden = false;
    $("again").hidden = false;
    $("picture").alt = picture.name;
    this.viewer.showPicture(picture.url, picture.width, picture.height);
    this.eraser.reset(picture.width, picture.height);
    window.scrollTo({ top: 0 });
    return this.captionAgain();
  }

  close() {
    for (const row of this.rows) row.reading.stop();
    $("start").hidden = false;
    $("work").hidden = true;
    $("again").hidden = true;
    $("error").hidden = true;
    $("file").focus();
  }

  /* Captions */

  captionAgain() {
    if (!this.picture) return undefined;
    this.resetErasing();
    const other = this.settings.other, label = other ? this.settings.model.name : "Caption";
    const readings = [this.reading(this.settings.fields(), label)];
    if (other) readings.push(this.reading(this.settings.fields(other), other.name));
    return this.show(readings);
  }

  explainOwn(text) {
    this.resetErasing();
    return this.show([this.reading(this.settings.fields(), "Your caption")], text);
  }

  reading(fields, label) {
    return new Reading(this.picture, fields, label, (reading, kind, k) => this.onChange(reading, kind, k));
  }

  show(readings, text) {
    for (const row of this.rows) row.reading.stop();
    this.chosen = this.contrast = null;
    this.viewer.showNothing();
    $("panel").hidden = true;
    $("unfamiliar").hidden = true;
    $("note").textContent = "";
    this.rows = readings.map((reading) => new CaptionRow(reading, this.page, (from, k) => this.choose(from, k)));
    $("captions").replaceChildren(...this.rows.map((row) => row.element));
    $("captions").classList.toggle("several", readings.length > 1);
    return Promise.all(readings.map((reading) => this.start(reading, text)));
  }

  start(reading, text) {
    if (reading === this.rows[0].reading) this.viewer.showBusy("Looking …");
    return this.attempt(() => reading.begin(text));
  }

  /* Something new is known of a reading. */
  onChange(reading, kind, k) {
    const row = this.rows.find((one) => one.reading === reading);
    if (!row) return;
    if (["prefix", "caption", "begin", "doubts"].includes(kind)) row.showWords(this.changesOf(row));
    if (kind === "caption" || (kind === "begin" && !this.chosen)) this.onCaption(row);
    if (kind === "doubts") this.onDoubts(row);
    if (kind === "word") row.describe(k);
    if (this.chosen?.row === row && (kind === "maps" || kind === "word")) this.showWord();
  }

  onCaption(row) {
    const words = sentence(row.reading.words);
    this.viewer.showBusy(null);
    this.viewer.showCrop(row.reading.crop);
    this.say(`${row.reading.label}: ${words}`);
    if (row === this.rows[0]) $("picture").alt = words;
    if (this.rows.length > 1) this.onSecondCaption();
    $("unfamiliar").hidden = !this.rows.some(({ reading }) => reading.familiar === false);
    if (!this.chosen) $("note").textContent = HINT;
    document.body.dataset.state = "captioned";
  }

  /* Without a choice of the visitor, the word that is most likely made up is looked at. */
  onDoubts(row) {
    $("unfamiliar").hidden = !this.rows.some(({ reading }) => reading.familiar === false);
    if (this.chosen || row !== this.rows[0]) return;
    const risks = (row.reading.risks || []).map((risk) => risk ?? -1);
    this.choose(row.reading, risks.length ? risks.indexOf(Math.max(...risks)) : 0);
  }

  /* Words */

  choose(reading, k) {
    const row = this.rows.find((one) => one.reading === reading);
    if (!row.reading.finished) return;
    this.contrast = null;
    this.chosen = { row, k };
    this.showWord();
    this.attempt(() => Promise.all([reading.want(k), this.wantMaps(reading)]));
  }

  wantMaps(reading) {
    return reading.maps[this.viewer.method.id] || ["lrp", "attention"].includes(this.viewer.method.id)
      ? undefined : reading.wantMethod(this.viewer.method.id);
  }

  chooseMethod(method) {
    this.viewer.setMethod(method);
    this.showWord();
    if (!this.chosen) return;
    const { reading } = this.chosen.row;
    this.attempt(async () => {
      const wanted = this.wantMaps(reading);
      if (wanted) this.viewer.showBusy(`Computing ${method.name} …`);
      await wanted;
    });
  }

  /* Show what is known of the chosen word. */
  showWord() {
    if (!this.chosen) return;
    const { row, k } = this.chosen, { reading } = row, word = reading.explained[k], method = this.viewer.method.id;
    for (const other of this.rows) if (other !== row) other.showChosen(null);
    row.showChosen(k, word?.earlier_words[method]);
    for (const other of this.rows) other.element.classList.toggle("active", other === row);
    $("remove").disabled = !word;
    $("remove").textContent = word ? `Remove what supports “${word.word}”` : "Remove what supports this word";
    const label = this.rows.length > 1 ? reading.label : `Word ${k + 1} of ${reading.words.length}`;
    if (!word) {
      this.viewer.showNothing();
      this.viewer.showBusy("Explaining …");
      return this.panel.showWaiting(reading.words[k], label);
    }
    if (!this.contrast) this.showPlainWord(word, reading, k, label);
    else this.showContrast(word, reading, k, label);
    this.panel.showAlternatives(word, this.contrast?.contrast);
    return undefined;
  }

  showPlainWord(word, reading, k, label) {
    const method = this.viewer.method.id, map = reading.maps[method]?.[k];
    const risk = reading.risks ? reading.risks[k] : null;
    this.panel.show(word, reading.explained.filter(Boolean), risk, label);
    this.showEarlierNote(word);
    if (map) {
      this.viewer.showBusy(null);
      this.viewer.showMap(map, reading.largest(method), word.word);
    } else this.viewer.showNothing();
    this.say(`${word.word}: ${percent(word.image_share)} of its evidence is from the picture`);
  }

  showContrast(word, reading, k, label) {
    const { map } = this.contrast;
    this.panel.show(this.contrast, [], null, label);
    this.chosen.row.showChosen(k, this.contrast.earlier_words.lrp);
    $("note").textContent = k ? `Earlier words: red speaks for “${word.word}”, blue for “${this.contrast.contrast}”.` : "";
    this.viewer.showBusy(null);
    this.viewer.showMap(map, map.maximum, `${word.word}, not ${this.contrast.contrast}`);
    $("strength").textContent = `Red: why “${word.word}”. Blue: why “${this.contrast.contrast}”.`;
    this.say(`Why ${word.word} and not ${this.contrast.contrast}`);
  }

  showEarlierNote(word) {
    const weights = word.earlier_words[this.viewer.method.id];
    $("note").textContent =
      word.position === 0 ? "This is the first word: there are no earlier words."
      : weights ? `Earlier words: red supports “${word.word}”, blue is evidence against it.`
      : `${this.viewer.method.name} explains the picture only: it gives no weights to earlier words.`;
  }

  async compareWith(other) {
    if (!other) {
      this.contrast = null;
      return this.showWord();
    }
    const { row, k } = this.chosen, { reading } = row;
    this.viewer.showBusy(`Why not “${other}” …`);
    const found = await this.attempt(() => reading.contrast(k, other));
    if (!found || this.chosen.k !== k || this.chosen.row !== row) return undefined;
    this.contrast = found;
    return this.showWord();
  }

  /* Erasing */

  resetErasing() {
    this.removed = 0;
    this.eraser.reset(this.picture.width, this.picture.height);
    $("restore").hidden = true;
    $("erase-result").textContent = "";
  }

  restore() {
    this.resetErasing();
    this.rows.slice(1).forEach(({ reading }) => reading.stop());
    const [first] = this.rows;
    this.rows = [first];
    $("captions").replaceChildren(first.element);
    $("captions").classList.remove("several");
    first.label.textContent = first.reading.label;
    first.showWords();
    this.choose(first.reading, this.chosen?.row === first ? this.chosen.k : 0);
  }

  /* Erase the patches that support the chosen word most; twice as many each time. */
  async removeEvidence() {
    const { row, k } = this.chosen, { reading } = row, first = this.page.patches;
    this.removed = Math.min(this.removed ? 2 * this.removed : first, MANY * first);
    this.viewer.showBusy("Removing …");
    const found = await this.attempt(() => reading.patches(k, this.removed));
    if (!found) return;
    this.removedText = `${found.patches} of ${found.of.toLocaleString("en")} patches were erased.`;
    await this.eraser.add(found.mask);
  }

  captionErased(mask) {
    const [before] = this.rows;
    if (this.rows.length > 1) this.rows.pop().reading.stop();
    before.label.textContent = "With the whole picture";
    const after = this.reading({ ...before.reading.fields, erase: mask }, "With the grey part erased");
    const row = new CaptionRow(after, this.page, (from, k) => this.choose(from, k));
    this.rows = [before, row];
    $("captions").replaceChildren(before.element, row.element);
    $("captions").classList.add("several");
    $("restore").hidden = false;
    $("captions").scrollIntoView({ block: "nearest" });
    if (this.chosen && this.chosen.row !== before) this.choose(before.reading, 0);
    this.viewer.showBusy("Captioning again …");
    return this.attempt(() => after.begin());
  }

  changesOf(row) {
    const [before, after] = this.rows;
    if (!after?.reading.fields.erase || !after.reading.finished) return new Set();
    const changes = changedWords(before.reading.words, after.reading.words);
    return row === before ? changes.gone : changes.added;
  }

  onSecondCaption() {
    const [before, after] = this.rows;
    if (!after.reading.fields.erase || !after.reading.finished) return;
    for (const row of this.rows) row.showWords(this.changesOf(row));
    if (this.chosen) this.chosen.row.showChosen(this.chosen.k, this.chosen.row.reading.explained[this.chosen.k]?.earlier_words.lrp);
    const isSame = !this.changesOf(after).size && !this.changesOf(before).size;
    const changes = isSame ? "The caption is the same." : "The caption changed: see the marked words.";
    $("erase-result").textContent = [this.removedText, changes].filter(Boolean).join(" ");
    this.removedText = "";
    this.attempt(() => this.compareProbability(before.reading, after.reading));
  }

  /* How probable the chosen word is in the erased picture, after the same words. */
  async compareProbability(before, after) {
    if (!this.chosen || this.chosen.row.reading !== before) return;
    const { k } = this.chosen, word = before.explained[k];
    if (!word) return;
    const p = await after.probabilityOf(before.words, k);
    if (this.rows[1]?.reading !== after || p === undefined) return;
    $("erase-result").append(` After the same words, the probability of “${word.word}” was ${probability(word.probability)} and is ${probability(p)}.`);
  }

  /* Downloads */

  async download(button) {
    const kind = button.dataset.download, { reading } = this.chosen?.row || this.rows[0], label = button.textContent;
    button.disabled = true;
    button.textContent = "Preparing …";
    await this.attempt(async () => {
      const fields = { ...reading.target, ...(kind === "explain" ? { risk: true, maps: false } : {}) };
      const { blob, name } = await postBlob(`/api/${kind}`, this.picture, fields);
      const link = create("a");
      link.href = URL.createObjectURL(blob);
      link.download = name || `${this.picture.name.replace(/\.\w+$/, "")}-why.json`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    });
    button.disabled = false;
    button.textContent = label;
  }
}

const start = async () => {
  try {
    new App(await getJson("/api/page"));
    document.body.dataset.state = "ready";
  } catch (error) {
    console.error(error);
    $("error").textContent = "The server cannot be reached. Is saywhy serve still running?";
    $("error").hidden = false;
  }
};
start();
