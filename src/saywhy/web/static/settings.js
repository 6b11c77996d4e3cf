/* The settings of the caption, and the user's own caption. */

import { $ } from "./text.js";

const options = (select, names, first) => {
  select.replaceChildren(...(first ? [new Option(first, "")] : []), ...names.map((name) => new Option(name, name)));
};

export class Settings {
  /* `changed` is called when the picture should be captioned again, `explain` with the user's own caption. */
  constructor(page, changed, explain) {
    this.page = page;
    this.form = $("settings");
    const { model } = this.form.elements, names = page.models.map(({ name }) => name);
    options(model, names);
    $("model-choice").hidden = $("compare-choice").hidden = names.length < 2;
    this.form.closest("details").open = names.length > 1; // so that the comparison is found
    this.form.addEventListener("input", (event) => this.onInput(event));
    this.form.addEventListener("change", (event) => event.target.name !== "caption" && changed());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.form.elements.caption.value.trim();
      if (text) explain(text);
    });
    $("sample-again").addEventListener("click", () => {
      this.seed += 1;
      changed();
    });
    this.seed = 0;
    this.showModel();
  }

  get model() {
    return this.page.models.find(({ name }) => name === this.form.elements.model.value) || this.page.models[0];
  }

  /* The ranges and styles of the chosen model. */
  showModel() {
    const { style, beam, guidance, compare } = this.form.elements, model = this.model, compared = compare.value;
    const others = this.page.models.map(({ name }) => name).filter((name) => name !== model.name);
    options(compare, others, "no other model");
    compare.value = others.includes(compared) ? compared : "";
    options(style, model.styles);
    style.value = model.style;
    $("style-choice").hidden = model.styles.length < 2;
    $("guidance-choice").hidden = !model.guidable;
    beam.max = Math.min(10, model.widest_beam);
    beam.value = model.beam;
    guidance.value = model.guidance;
    this.showOutputs();
  }

  onInput(event) {
    if (event.target.name === "model") this.showModel();
    this.showOutputs();
  }

  showOutputs() {
    const { sample, beam } = this.form.elements;
    for (const range of this.form.querySelectorAll("input[type=range]"))
      range.closest("label").querySelector("output").textContent = range.value;
    $("temperature-choice").hidden = $("sample-again").hidden = !sample.checked;
    beam.disabled = sample.checked;
  }

  /* The fields of a request, for the chosen model or another one. */
  fields(model = this.model) {
    const { style, beam, guidance, sample, temperature } = this.form.elements, fields = { model: model.name };
    if (model.styles.includes(style.value)) fields.style = style.value;
    if (model.guidable && Number(guidance.value) !== model.guidance) fields.guidance = guidance.value;
    if (sample.checked) Object.assign(fields, { sample: true, temperature: temperature.value, seed: this.seed });
    else if (Number(beam.value) !== model.beam) fields.beam = beam.value;
    return fields;
  }

  /* The model to compare with, if there is one. */
  get other() {
    const { compare } = this.form.elements;
    return this.page.models.find(({ name }) => name === compare.value);
  }
}
