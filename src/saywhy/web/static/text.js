/* Numbers as people read them, and small elements. */

export const $ = (id) => document.getElementById(id);

export const create = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

const MINUS = "−";
export const decimal = (value, digits = 2) => value.toFixed(digits).replace("-", MINUS).replace(/^−(0\.?0*)$/, "$1");
export const signed = (value) => (value >= 0.005 ? "+" : "") + decimal(value);
export const percent = (share) => `${Math.round(100 * share)} %`.replace("-", MINUS);

export const probability = (p) => {
  if (p >= 0.995) return p > 0.9995 ? "100 %" : `${(100 * p).toFixed(1)} %`;
  return p < 0.001 ? "below 0.1 %" : `${(100 * p).toFixed(p < 0.1 ? 1 : 0)} %`;
};

/* What `render` puts in place of a list of buttons keeps the keyboard focus where it was. */
export const keepFocus = (list, render) => {
  const at = [...list.querySelectorAll("button")].indexOf(document.activeElement);
  render();
  if (at >= 0) list.querySelectorAll("button")[at]?.focus({ preventScroll: true });
};

/* "n't" and "'s" belong to the word before them. */
const CLITIC = /^(n't|'(s|m|d|ll|re|ve)?)$/;
export const isClitic = (word) => CLITIC.test(word);
export const sentence = (words) =>
  words.reduce((text, word) => text + (text && !isClitic(word) ? " " : "") + word, "");

/* For two captions, which words of each the other does not have in the same order. */
export const changedWords = (before, after) => {
  const lengths = Array.from({ length: before.length + 1 }, () => new Array(after.length + 1).fill(0));
  for (let i = before.length - 1; i >= 0; i--)
    for (let j = after.length - 1; j >= 0; j--)
      lengths[i][j] =
        before[i] === after[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const gone = new Set(before.keys()), added = new Set(after.keys());
  for (let i = 0, j = 0; i < before.length && j < after.length; ) {
    if (before[i] === after[j]) {
      gone.delete(i++);
      added.delete(j++);
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return { gone, added };
};
