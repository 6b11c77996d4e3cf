/* A reading is one caption of one picture by one model, with what is known of each of its words so far. */

import { postJson, postStream } from "./api.js";
import { decodeMap } from "./maps.js";

export class Reading {
  /* `fields` are the settings of the request: model, style, beam, … and erase, the mask of a partly erased picture. */
  constructor(picture, fields, label, changed) {
    Object.assign(this, { picture, fields, label, changed });
    this.words = []; // texts
    this.explained = []; // per word, its numbers; maps are in `maps`
    this.maps = {}; // by method, per word
    this.risks = null;
    this.familiar = null;
    this.finished = false;
    this.contrasts = new Map();
    this.waiting = new Set();
    this.controller = new AbortController();
  }

  stop() {
    this.controller.abort();
  }

  get shared() {
    return { model: this.fields.model, style: this.fields.style, erase: this.fields.erase };
  }

  get target() {
    return { ...this.shared, caption: this.words.join(" ") };
  }

  /* Caption the picture, or take the caption that is given. */
  async begin(caption) {
    if (caption) return this.explain(caption);
    await postStream("/api/caption", this.picture, this.fields, (event) => this.onCaption(event), this.controller.signal);
    return this.explain();
  }

  onCaption(event) {
    if (event.event === "prefix") this.words = event.words;
    if (event.event === "caption") {
      this.words = event.words.map(({ word }) => word);
      this.picture.id = event.image_id;
      this.model = event.model;
      Object.assign(this, { crop: event.crop, size: event.size });
      this.finished = true;
    }
    if (event.familiar !== undefined) this.familiar = event.familiar;
    this.changed(this, event.event);
  }

  async explain(caption) {
    const fields = { ...this.target, ...(caption ? { caption } : {}), risk: true };
    await postStream("/api/explain", this.picture, fields, (event) => this.onExplained(event), this.controller.signal);
    this.changed(this, "complete");
  }

  async onExplained(event) {
    if (event.event === "begin") {
      this.words = event.words;
      this.picture.id = event.image_id;
      Object.assign(this, { crop: event.crop, size: event.size });
      this.model = event.model;
      this.finished = true;
    }
    if (event.event === "word") await this.keepWord(event);
    if (event.event === "doubts") {
      this.risks = event.risks;
      if (event.familiar !== undefined) this.familiar = event.familiar;
    }
    if (event.event === "maps") await this.keepMaps(event);
    this.changed(this, event.event, event.index);
  }

  async keepWord(event) {
    for (const [method, map] of Object.entries(event.maps)) {
      const decoded = await decodeMap(map);
      (this.maps[method] ??= [])[event.index] = decoded;
    }
    delete event.maps;
    this.explained[event.index] = event;
  }

  async keepMaps(event) {
    this.maps[event.method] = await Promise.all(event.maps.map(decodeMap));
    this.explained.forEach((word, k) => {
      if (event.earlier_words[k]) word.earlier_words[event.method] = event.earlier_words[k];
    });
  }

  /* Somebody looks at this word: it is explained before the others. */
  async want(k) {
    if (this.explained[k] || this.waiting.has(k)) return;
    this.waiting.add(k);
    const fields = { ...this.target, position: k + 1, urgent: true };
    try {
      await postStream("/api/explain", this.picture, fields, (event) => this.onWanted(event), this.controller.signal);
    } finally {
      this.waiting.delete(k);
    }
  }

  async onWanted(event) {
    if (event.event !== "word" || this.explained[event.index]) return;
    await this.keepWord(event);
    this.changed(this, "word", event.index);
  }

  async wantMethod(method) {
    if (this.maps[method]?.length === this.words.length || this.waiting.has(method)) return;
    this.waiting.add(method);
    const fields = { ...this.target, methods: method, urgent: true };
    try {
      await postStream("/api/explain", this.picture, fields, (event) => this.onExtra(event), this.controller.signal);
    } finally {
      this.waiting.delete(method);
    }
  }

  async onExtra(event) {
    if (event.event === "word") return this.onWanted(event);
    if (event.event !== "maps") return;
    await this.keepMaps(event);
    this.changed(this, "maps");
  }

  /* Why word k, and not another one. */
  async contrast(k, other) {
    const key = `${k} ${other}`;
    if (!this.contrasts.has(key)) {
      const fields = { ...this.target, position: k + 1, contrast: other, urgent: true };
      let found;
      await postStream("/api/explain", this.picture, fields, async (event) => {
        if (event.event === "word") found = { ...event, map: await decodeMap(event.maps.lrp) };
      }, this.controller.signal);
      this.contrasts.set(key, found);
    }
    return this.contrasts.get(key);
  }

  /* The probability of word k of a caption, given this reading's picture. */
  async probabilityOf(words, k) {
    const fields = { ...this.shared, caption: words.join(" "), position: k + 1, urgent: true };
    let found;
    await postStream("/api/explain", this.picture, fields, (event) => {
      if (event.event === "word") found = event.probability;
    }, this.controller.signal);
    return found;
  }

  patches(k, count) {
    return postJson("/api/patches", this.picture, { ...this.target, position: k + 1, patches: count }, this.controller.signal);
  }

  /* The largest maximum of a method's maps: the scale that all words share. */
  largest(method) {
    return Math.max(0, ...(this.maps[method] || []).filter(Boolean).map((map) => map.maximum));
  }
}
