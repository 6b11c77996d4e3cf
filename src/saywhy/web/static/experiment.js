/* Delete the evidence and watch: the picture is captioned again without a part of it, beside the old caption. */

import { CaptionRow } from "./caption.js";
import { Eraser } from "./eraser.js";
import { $, changedWords, probability } from "./text.js";

const MANY = 16; // times the first number of patches: more is not removed

export class Experiment {
  /* `app` holds the captions: the first is that of the whole picture, the second that of what is left. */
  constructor(app) {
    this.app = app;
    this.eraser = new Eraser((mask) => this.captionErased(mask));
    $("remove").addEventListener("click", () => this.removeEvidence());
    $("restore").addEventListener("click", () => this.restore());
  }

  reset() {
    const { width, height } = this.app.picture;
    this.removed = 0;
    this.removedFor = null; // the word whose evidence was removed last
    this.eraser.reset(width || 3, height || 2);
    $("restore").hidden = true;
    $("erase-result").textContent = "";
  }

  restore() {
    $("remove").focus({ preventScroll: true });
    if (this.app.settings.other) return this.app.captionAgain();
    this.reset();
    this.app.rows.slice(1).forEach(({ reading }) => reading.stop());
    const [first] = this.app.rows;
    this.app.rows = [first];
    $("captions").replaceChildren(first.element);
    $("captions").classList.remove("several");
    first.label.textContent = first.reading.label;
    first.showWords();
    return this.app.choose(first.reading, this.app.chosen?.row === first ? this.app.chosen.k : 0);
  }

  /* Whether evidence for this word was removed last: pressing again removes more of it. */
  isRepeated({ row, k }) {
    return this.removed > 0 && this.removedFor === `${k} ${row.reading.words[k]}`;
  }

  /* Erase the patches that support the chosen word most; twice as many each time. */
  async removeEvidence() {
    const { row, k } = this.app.chosen, { reading } = row, first = this.app.page.patches;
    this.removed = this.isRepeated(this.app.chosen) ? Math.min(2 * this.removed, MANY * first) : first;
    this.removedFor = `${k} ${reading.words[k]}`;
    this.app.viewer.showBusy("Removing …");
    const found = await this.app.attempt(() => reading.patches(k, this.removed));
    if (!found) return;
    this.removedText = `${found.patches} of ${found.of.toLocaleString("en")} patches were erased.`;
    await this.eraser.add(found.mask);
  }

  captionErased(mask) {
    const { chosen, rows } = this.app;
    const before = chosen && !chosen.row.reading.fields.erase ? chosen.row : rows[0]; // one of two models
    for (const row of rows) if (row !== before) row.reading.stop();
    before.label.textContent = "With the whole picture";
    const after = this.app.reading({ ...before.reading.fields, erase: mask }, "With the grey part erased");
    const row = new CaptionRow(after, this.app.page, (from, k) => this.app.choose(from, k));
    this.app.rows = [before, row];
    $("captions").replaceChildren(before.element, row.element);
    $("captions").classList.add("several");
    $("restore").hidden = false;
    $("captions").scrollIntoView({ block: "nearest" });
    if (this.app.chosen && this.app.chosen.row !== before) this.app.choose(before.reading, 0);
    this.app.viewer.showBusy("Captioning again …");
    return this.app.attempt(() => after.begin());
  }

  changesOf(row) {
    const [before, after] = this.app.rows;
    if (!after?.reading.fields.erase || !after.reading.finished) return new Set();
    const changes = changedWords(before.reading.words, after.reading.words);
    return row === before ? changes.gone : changes.added;
  }

  onCaption() {
    const [before, after] = this.app.rows;
    if (!after.reading.fields.erase || !after.reading.finished) return;
    for (const row of this.app.rows) row.showWords(this.changesOf(row));
    this.app.showWord();
    const isSame = !this.changesOf(after).size && !this.changesOf(before).size;
    const changes = isSame ? "The caption is the same." : "The caption changed: see the marked words.";
    $("erase-result").textContent = [this.removedText, changes].filter(Boolean).join(" ");
    this.removedText = "";
    this.app.attempt(() => this.compareProbability(before.reading, after.reading));
  }

  /* How probable the chosen word is in the erased picture, after the same words. */
  async compareProbability(before, after) {
    if (!this.app.chosen || this.app.chosen.row.reading !== before) return;
    const { k } = this.app.chosen, word = before.explained[k];
    if (!word) return;
    const p = await after.probabilityOf(before.words, k);
    if (this.app.rows[1]?.reading !== after || p === undefined) return;
    const fall = `was ${probability(word.probability)} and is ${probability(p)}`;
    $("erase-result").append(` After the same words, the probability of “${word.word}” ${fall}.`);
  }
}
