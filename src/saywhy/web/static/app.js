/* The page: one picture, one or two captions of it, and the word that is looked at. */

import { getJson, postBlob, UNREACHABLE } from "./api.js";
import { CaptionRow } from "./caption.js";
import { Experiment } from "./experiment.js";
import { Panel } from "./panel.js";
import { Reading } from "./reading.js";
import { Settings } from "./settings.js";
import { $, create, percent, sentence } from "./text.js";
import { Upload } from "./upload.js";
import { Viewer } from "./viewer.js";

const PRIMARY = 2; // methods that answer a visitor's questions; the others are for comparison

class App {
  constructor(page) {
    this.page = page;
    this.rows = []; // one or two captions
    this.chosen = null; // { row, k }
    this.contrast = null;
    this.picture = null;
    this.viewer = new Viewer(page);
    this.panel = new Panel(page, (other) => this.compareWith(other));
    this.experiment = new Experiment(this);
    this.settings = new Settings(page, () => this.captionAgain(), (text) => this.explainOwn(text));
    this.upload = new Upload(page, (picture) => this.open(picture), (message) => this.fail(message));
    this.addMethods();
    for (const input of document.querySelectorAll("input[name=sign]"))
      input.addEventListener("change", () => {
        this.viewer.sign = input.value;
        this.showWord();
      });
    $("contrast-back").addEventListener("click", () => {
      $("alternatives").querySelector("[aria-pressed=true]")?.focus({ preventScroll: true });
      this.compareWith(null);
    });
    document.addEventListener("server-busy", () => this.viewer.showBusy("The server is busy, waiting …"));
    $("again").addEventListener("click", () => this.close());
    for (const button of document.querySelectorAll("[data-download]"))
      button.addEventListener("click", () => this.download(button));
    $("about").textContent = `saywhy ${page.version}, ${page.models.map(({ name }) => name).join(" and ")}`;
  }

  addMethods() {
    for (const [i, method] of this.page.methods.entries()) {
      const label = create("label"), input = create("input");
      Object.assign(input, { type: "radio", name: "method", value: method.id, checked: method === this.viewer.method });
      input.addEventListener("change", () => this.chooseMethod(method));
      label.append(input, create("span", "", method.name));
      $(i < PRIMARY ? "methods" : "other-methods").append(label);
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
    if ($("live").textContent !== text) $("live").textContent = text;
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
    this.viewer.showPicture(picture);
    $("work").focus({ preventScroll: true });
    window.scrollTo({ top: 0 });
    return this.captionAgain();
  }

  close() {
    for (const row of this.rows) row.reading.stop();
    this.experiment.reset();
    this.rows = [];
    this.chosen = this.picture = null;
    document.body.dataset.state = "ready";
    $("start").hidden = false;
    $("work").hidden = true;
    $("again").hidden = true;
    $("error").hidden = true;
    $("file").focus({ preventScroll: true });
    window.scrollTo({ top: 0 });
  }

  /* Captions */

  captionAgain() {
    if (!this.picture) return undefined;
    this.experiment.reset();
    const other = this.settings.other, label = other ? this.settings.model.name : "Caption";
    const readings = [this.reading(this.settings.fields(), label)];
    if (other) readings.push(this.reading(this.settings.fields(other), other.name));
    return this.show(readings);
  }

  /* The captions that are shown stay until the server has accepted the new one. */
  explainOwn(text) {
    const begun = (reading, kind, k) => {
      if (kind === "begin" && this.rows[0]?.reading !== reading) {
        this.experiment.reset();
        this.replaceRows([reading]);
        $("captions").scrollIntoView({ block: "nearest" });
      }
      this.onChange(reading, kind, k);
    };
    const own = new Reading(this.picture, this.settings.fields(), "Your caption", begun);
    this.viewer.showBusy("Explaining …");
    return this.attempt(() => own.begin(text));
  }

  reading(fields, label) {
    return new Reading(this.picture, fields, label, (reading, kind, k) => this.onChange(reading, kind, k));
  }

  show(readings) {
    this.replaceRows(readings);
    this.viewer.showBusy("Looking …");
    return Promise.all(readings.map((reading) => this.begin(reading)));
  }

  /* A picture that the server refuses is not kept on the page. */
  async begin(reading) {
    await this.attempt(() => reading.begin());
    if (reading.picture.id || this.rows[0]?.reading !== reading) return;
    const message = $("error").textContent;
    this.close();
    this.fail(message);
  }

  replaceRows(readings) {
    for (const row of this.rows) row.reading.stop();
    this.chosen = this.contrast = null;
    document.body.dataset.state = "working";
    this.viewer.showNothing();
    $("panel").hidden = true;
    $("unfamiliar").hidden = true;
    $("error").hidden = true;
    $("note").textContent = "";
    $("legend").hidden = true;
    this.rows = readings.map((reading) => new CaptionRow(reading, this.page, (from, k) => this.choose(from, k)));
    $("captions").replaceChildren(...this.rows.map((row) => row.element));
    $("captions").classList.toggle("several", readings.length > 1);
  }

  /* Something new is known of a reading. */
  onChange(reading, kind, k) {
    const row = this.rows.find((one) => one.reading === reading);
    if (!row) return;
    if (["prefix", "caption", "begin", "doubts"].includes(kind)) row.showWords(this.experiment.changesOf(row));
    if (kind === "caption" || (kind === "begin" && !this.chosen)) this.onCaption(row);
    if (kind === "doubts") this.onDoubts(row);
    if (kind === "word") row.describe(k);
    if (this.chosen?.row === row && (kind === "maps" || kind === "word")) this.showWord();
  }

  onCaption(row) {
    const words = sentence(row.reading.words);
    this.viewer.showBusy(null);
    this.viewer.showCrop(row.reading.crop);
    if (!this.picture.width) this.takeSize(row.reading.size);
    this.say(`${row.reading.label}: ${words}`);
    if (row === this.rows[0]) $("picture").alt = words;
    if (this.rows.length > 1) this.experiment.onCaption();
    $("unfamiliar").hidden = !this.rows.some(({ reading }) => reading.familiar === false);
    $("legend").hidden = false;
    const results = this.rows.filter(({ reading }) => reading.finished).map(({ reading }) => sentence(reading.words));
    $("settings-result").textContent = results.map((text) => `“${text}”`).join(" · ");
    document.body.dataset.state = "captioned";
  }

  /* Of a picture that the browser cannot show, the server says the size. */
  takeSize([width, height]) {
    Object.assign(this.picture, { width, height });
    this.viewer.setSize(width, height);
    this.experiment.reset();
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
    this.contrast = null;
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
    const more = this.experiment.isRepeated(this.chosen) ? "more of " : "";
    $("remove").textContent = `Remove ${more}what supports ${word ? `“${word.word}”` : "this word"}`;
    const label = this.rows.length > 1 ? row.label.textContent : `Word ${k + 1} of ${reading.words.length}`;
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
    this.viewer.setMethod(this.viewer.method);
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
    $("strength").textContent = "";
    const other = this.contrast.contrast;
    this.viewer.describe(`What in the picture speaks for “${word.word}”, and what for “${other}”.`, `“${other}”`, `“${word.word}”`);
    this.say(`Why ${word.word} and not ${this.contrast.contrast}`);
  }

  showEarlierNote(word) {
    const weights = word.earlier_words[this.viewer.method.id];
    $("note").textContent =
      word.position === 0 ? "This is the first word: there are no earlier words."
      : weights ? `Colours of earlier words: red supports “${word.word}”, blue is evidence against it.`
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
    if (!found || this.chosen?.k !== k || this.chosen.row !== row) return undefined;
    const [why] = this.page.methods; // a contrast is explained by it
    document.querySelector(`input[name=method][value="${why.id}"]`).checked = true;
    this.viewer.setMethod(why);
    this.contrast = found;
    return this.showWord();
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
    $("error").textContent = UNREACHABLE;
    $("error").hidden = false;
  }
};
start();
