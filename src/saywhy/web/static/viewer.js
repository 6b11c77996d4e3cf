/* The picture with the map of the chosen word, and what is erased from it. */

import { clearMap, drawMap } from "./maps.js";
import { $, percent } from "./text.js";

const WEAK = 0.15;

export class Viewer {
  constructor(page) {
    this.page = page;
    this.sign = "both";
    this.method = page.methods[0];
    $("opacity").addEventListener("input", () => this.setOpacity($("opacity").value / 100));
    $("viewer").style.setProperty("--pale-weight", page.colours.pale);
  }

  setOpacity(opacity) {
    $("viewer").style.setProperty("--opacity", opacity);
  }

  /* A picture without a size is of a kind that the browser cannot show. */
  showPicture({ url, width, height }) {
    for (const id of ["picture", "pale-picture"]) {
      $(id).src = url;
      $(id).hidden = !width;
    }
    $("not-shown").hidden = Boolean(width);
    this.setSize(width || 3, height || 2);
    this.showNothing();
  }

  setSize(width, height) {
    $("viewer").style.setProperty("--aspect", width / height);
  }

  showNothing() {
    clearMap($("map"));
    $("viewer").classList.remove("signed", "has-map");
    $("strength").textContent = "";
    delete $("map").dataset.of;
  }

  showCrop(crop) {
    const isWhole = !crop || (Math.min(...crop.slice(0, 2)) < 0.01 && Math.max(...crop.slice(0, 2)) < 0.01 && Math.min(...crop.slice(2)) > 0.99);
    $("outside").hidden = isWhole;
    if (isWhole) return;
    const [left, top, right, bottom] = crop.map((value) => `${100 * value}%`);
    Object.assign($("outside").style, { left, top, width: `calc(${right} - ${left})`, height: `calc(${bottom} - ${top})` });
  }

  /* Draw a map; `largest` is the maximum of the maps that share its scale. */
  showMap(map, largest, text) {
    const isSigned = map.signed, share = largest > 0 ? map.maximum / largest : 0;
    drawMap($("map"), map, largest, this.sign, this.page.colours);
    $("viewer").classList.add("has-map");
    $("viewer").classList.toggle("signed", isSigned);
    $("map").setAttribute("aria-label", `${this.method.name}: map of ${text}`);
    $("map").dataset.of = `${this.method.id} ${text}`;
    $("strength").textContent = map.maximum >= largest ? "The strongest map of this caption."
      : `${percent(share)} as strong as the caption’s strongest map${share < WEAK ? ": weak, read little into it." : "."}`;
  }

  setMethod(method) {
    this.method = method;
    $("scale").classList.toggle("unsigned", !method.signed);
    $("signs").disabled = !method.signed;
    if (method.signed) this.describe(method.description, "against", "for the word");
    else this.describe(method.description, "low", "high");
  }

  describe(description, low, high) {
    $("method-description").textContent = description;
    $("scale-low").textContent = low;
    $("scale-high").textContent = high;
  }

  showBusy(text) {
    $("busy").hidden = !text;
    $("busy").textContent = text || "";
  }
}
