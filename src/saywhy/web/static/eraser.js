/* What is erased from the picture: by a brush, or the patches that support a word. */

import { $ } from "./text.js";

const SIDE = 288; // pixels of the mask's longer side
const MEAN = [124, 116, 104]; // the colour of what is erased, as the server fills it
const STEP = 0.03; // of the brush, per press of an arrow key
const WAIT = 700; // milliseconds after the last stroke

export class Eraser {
  /* `erased` is called with the mask, a PNG, after each change; `brushing` with whether the brush is on. */
  constructor(erased) {
    this.erased = erased;
    this.canvas = $("erased");
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    this.isOn = false;
    this.at = [0.5, 0.5];
    this.timer = null;
    $("brush").addEventListener("click", () => this.setBrush(!this.isOn));
    $("brush-end").addEventListener("click", () => this.endBrush());
    const viewer = $("viewer");
    viewer.addEventListener("pointerdown", (event) => this.onPointer(event, true));
    viewer.addEventListener("pointermove", (event) => this.onPointer(event, false));
    for (const kind of ["pointerup", "pointercancel"]) viewer.addEventListener(kind, () => this.endStroke());
    viewer.addEventListener("keydown", (event) => this.onKey(event));
  }

  reset(width, height) {
    clearTimeout(this.timer);
    this.isDirty = false;
    const scale = SIDE / Math.max(width, height);
    this.canvas.width = Math.max(1, Math.round(width * scale));
    this.canvas.height = Math.max(1, Math.round(height * scale));
    this.isEmpty = true;
    this.setBrush(false);
  }

  setBrush(isOn) {
    this.isOn = isOn;
    const viewer = $("viewer");
    viewer.classList.toggle("brushing", isOn);
    $("brush").setAttribute("aria-pressed", String(isOn));
    $("brush-help").hidden = !isOn;
    $("brush-cursor").hidden = !isOn;
    if (isOn) {
      Object.entries({ tabindex: "0", role: "application", "aria-label": "Brush: arrow keys move it, the space bar erases" })
        .forEach(([name, value]) => viewer.setAttribute(name, value));
      viewer.scrollIntoView({ block: "nearest" });
      viewer.focus({ preventScroll: true });
      this.moveCursor();
    } else for (const name of ["tabindex", "role", "aria-label"]) viewer.removeAttribute(name);
  }

  endBrush() {
    this.setBrush(false);
    $("brush").focus({ preventScroll: true });
  }

  get radius() {
    return ($("brush-size").value / 100) * Math.max(this.canvas.width, this.canvas.height);
  }

  onPointer(event, isDown) {
    if (!this.isOn) return;
    const box = $("viewer").getBoundingClientRect();
    this.at = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    this.moveCursor();
    if (isDown) $("viewer").setPointerCapture(event.pointerId);
    if (isDown || event.buttons) {
      event.preventDefault();
      clearTimeout(this.timer);
      this.dab();
    }
  }

  onKey(event) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (this.isOn && event.key === "Escape") this.endBrush();
    if (!this.isOn || (!move && event.key !== " ")) return;
    event.preventDefault();
    if (move) {
      this.at = this.at.map((value, i) => Math.max(0, Math.min(1, value + STEP * move[i])));
      this.moveCursor();
    } else {
      this.dab();
      this.endStroke();
    }
  }

  moveCursor() {
    const cursor = $("brush-cursor"), share = (2 * this.radius) / this.canvas.width;
    cursor.style.left = `${100 * this.at[0]}%`;
    cursor.style.top = `${100 * this.at[1]}%`;
    cursor.style.width = `${100 * share}%`;
  }

  dab() {
    this.context.fillStyle = `rgb(${MEAN.join(" ")})`;
    this.context.beginPath();
    this.context.arc(this.at[0] * this.canvas.width, this.at[1] * this.canvas.height, this.radius, 0, 2 * Math.PI);
    this.context.fill();
    this.isEmpty = false;
    this.isDirty = true;
  }

  /* The picture is captioned again shortly after the last stroke. */
  endStroke() {
    clearTimeout(this.timer);
    if (this.isDirty) this.timer = setTimeout(() => this.finish(), WAIT);
  }

  async finish() {
    this.isDirty = false;
    this.erased(await this.mask());
  }

  /* Erase what is white in a mask of the server. */
  async add(png) {
    const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
    const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const scratch = document.createElement("canvas");
    scratch.width = this.canvas.width;
    scratch.height = this.canvas.height;
    const context = scratch.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(bitmap, 0, 0, scratch.width, scratch.height);
    const image = context.getImageData(0, 0, scratch.width, scratch.height);
    for (let i = 0; i < image.data.length; i += 4) {
      image.data[i + 3] = image.data[i] > 127 ? 255 : 0;
      for (let c = 0; c < 3; c++) image.data[i + c] = MEAN[c];
    }
    context.putImageData(image, 0, 0);
    this.context.drawImage(scratch, 0, 0);
    this.isEmpty = false;
    await this.finish();
  }

  /* The mask as a PNG: white where the picture is erased. */
  mask() {
    const copy = document.createElement("canvas");
    copy.width = this.canvas.width;
    copy.height = this.canvas.height;
    const context = copy.getContext("2d"), { data } = this.context.getImageData(0, 0, copy.width, copy.height);
    const image = context.createImageData(copy.width, copy.height);
    for (let i = 0; i < data.length; i += 4) {
      const value = data[i + 3] > 127 ? 255 : 0;
      image.data.set([value, value, value, 255], i);
    }
    context.putImageData(image, 0, 0);
    return new Promise((done) => copy.toBlob(done, "image/png"));
  }
}
