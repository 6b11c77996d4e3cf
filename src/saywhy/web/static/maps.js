/* Maps as grey pictures from the server, drawn in the colours of saywhy's figures. */

const ZERO = 127; // the grey value of 0 in a signed map
const DARKNESS = 0.16; // the brightness that remains where an unsigned map is 0

const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

/* A map of the server as { width, height, grey, maximum, signed }. */
export const decodeMap = async ({ png, maximum, signed }) => {
  const bitmap = await createImageBitmap(new Blob([bytesOf(png)], { type: "image/png" }));
  const canvas = document.createElement("canvas");
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
  const grey = new Uint8Array(bitmap.width * bitmap.height);
  for (let i = 0; i < grey.length; i++) grey[i] = data[4 * i];
  return { width: bitmap.width, height: bitmap.height, grey, maximum, signed };
};

/* The colour of each grey value, as red, green, blue and opacity. `strength` is the map's share of the common scale. */
const palette = (signed, strength, sign, colours) => {
  const table = new Uint8ClampedArray(4 * 256);
  for (let grey = 0; grey < 256; grey++) {
    const value = signed ? ((grey - ZERO) / ZERO) * strength ** colours.gamma : (grey / (2 * ZERO)) * strength;
    if (!signed) {
      table[4 * grey + 3] = 255 * (1 - DARKNESS) * (1 - Math.min(1, value));
      continue;
    }
    const hidden = (sign === "for" && value < 0) || (sign === "against" && value > 0);
    const size = hidden ? 0 : Math.min(1, Math.abs(value));
    const [weak, strong] = value > 0 ? colours.red : colours.blue;
    for (let c = 0; c < 3; c++) table[4 * grey + c] = weak[c] + size * (strong[c] - weak[c]);
    table[4 * grey + 3] = 255 * size;
  }
  return table;
};

/* Draw a map on a canvas, which gets its size; `largest` is the maximum of all maps that share its scale. */
export const drawMap = (canvas, map, largest, sign, colours) => {
  canvas.width = map.width;
  canvas.height = map.height;
  const context = canvas.getContext("2d"), image = context.createImageData(map.width, map.height);
  const table = palette(map.signed, largest > 0 ? map.maximum / largest : 0, sign, colours);
  for (let i = 0; i < map.grey.length; i++) image.data.set(table.subarray(4 * map.grey[i], 4 * map.grey[i] + 4), 4 * i);
  context.putImageData(image, 0, 0);
};

export const clearMap = (canvas) => {
  canvas.width = canvas.width || 1;
};
