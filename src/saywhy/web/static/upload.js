/* How a picture gets here: dropped, pasted, chosen, photographed, or one of the examples. */

import { UNREACHABLE } from "./api.js";
import { $, create } from "./text.js";

const MEGABYTE = 1_000_000;

const nameOf = (example) => example.replace(/\.jpg$/, "").replaceAll("_", " ");

export class Upload {
  /* `take` is called with { file, name, url, width, height }, `fail` with a message. */
  constructor(page, take, fail) {
    Object.assign(this, { page, take, fail });
    for (const id of ["file", "camera"])
      $(id).addEventListener("change", () => {
        if ($(id).files.length) this.accept($(id).files[0]);
        $(id).value = "";
      });
    document.addEventListener("dragover", (event) => this.onDrag(event, true));
    document.addEventListener("dragleave", (event) => event.relatedTarget === null && this.onDrag(event, false));
    document.addEventListener("drop", (event) => this.onDrop(event));
    document.addEventListener("paste", (event) => this.onPaste(event));
    $("examples").append(...page.examples.map((name) => this.example(name)));
  }

  onDrag(event, isOver) {
    event.preventDefault();
    document.body.classList.toggle("dragging", isOver);
  }

  onDrop(event) {
    this.onDrag(event, false);
    const [file] = event.dataTransfer.files;
    if (file) this.accept(file);
    else this.fail("That is not a file. Save the picture first, then drop the file here.");
  }

  onPaste(event) {
    const file = [...(event.clipboardData?.files || [])][0];
    if (!file) return;
    event.preventDefault();
    this.accept(file);
  }

  async accept(file, name = file.name) {
    if (!file.size) return this.fail(`${name} is empty (0 bytes). Choose another file.`);
    const limit = this.page.upload_bytes;
    if (file.size > limit)
      return this.fail(`${name} has ${Math.ceil(file.size / MEGABYTE)} MB, and the limit is ${limit / MEGABYTE} MB. Make the picture smaller first.`);
    const url = URL.createObjectURL(file);
    return this.take({ file, name: name || "picture", url, ...(await sizeOf(url)), id: null });
  }

  example(name) {
    const item = create("li"), button = create("button", "example"), image = create("img");
    image.src = `/examples/${name}`;
    image.alt = nameOf(name);
    image.loading = "lazy";
    button.type = "button";
    button.append(image);
    button.addEventListener("click", async () => {
      try {
        const response = await fetch(image.src);
        this.accept(await response.blob(), name);
      } catch {
        this.fail(UNREACHABLE);
      }
    });
    item.append(button);
    return item;
  }
}

/* The size of a picture as the browser shows it; a format that it cannot show is left to the server. */
const sizeOf = (url) =>
  new Promise((done) => {
    const image = new Image();
    image.onload = () => done({ width: image.naturalWidth, height: image.naturalHeight });
    image.onerror = () => done({ width: 0, height: 0 });
    image.src = url;
  });
