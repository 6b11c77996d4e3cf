/* Requests to the server. An image is sent once; after that its id is enough, as long as the server keeps it. */

const GONE = 410;
const BUSY = 503;
const RETRIES = 3;
export const UNREACHABLE = "The server cannot be reached. Is saywhy serve still running?";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const formOf = (picture, fields, withFile) => {
  const form = new FormData();
  if (picture.id && !withFile) form.append("image_id", picture.id);
  else form.append("image", picture.file, picture.name);
  for (const [name, value] of Object.entries(fields))
    if (value !== undefined && value !== null && value !== "") form.append(name, value);
  return form;
};

const errorOf = async (response) => {
  const text = await response.text();
  try {
    return new ApiError(JSON.parse(text).error, response.status);
  } catch {
    return new ApiError(`The server answered ${response.status}.`, response.status);
  }
};

const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

const send = async (path, picture, fields, options, tries = RETRIES, withFile = false) => {
  let response;
  try {
    response = await fetch(path, { method: "POST", body: formOf(picture, fields, withFile), ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(UNREACHABLE, 0);
  }
  if (response.status === GONE && !withFile) return send(path, picture, fields, options, tries, true);
  if (response.status === BUSY && tries > 0) {
    document.dispatchEvent(new Event("server-busy"));
    await pause(Number(response.headers.get("retry-after")) || 2);
    return send(path, picture, fields, options, tries - 1, withFile);
  }
  if (!response.ok) throw await errorOf(response);
  return response;
};

export const getJson = async (path) => (await fetch(path)).json();

export const postJson = async (path, picture, fields, signal) => (await send(path, picture, fields, { signal })).json();

export const postBlob = async (path, picture, fields, signal) => {
  const response = await send(path, picture, fields, { signal });
  const name = /filename="([^"]+)"/.exec(response.headers.get("content-disposition") || "");
  return { blob: await response.blob(), name: name ? name[1] : null };
};

/* Calls `onEvent` with each event of an answer that comes in parts. */
export const postStream = async (path, picture, fields, onEvent, signal) => {
  const response = await send(path, picture, fields, { signal, headers: { accept: "application/x-ndjson" } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError("The server ended its answer too early.", 0);
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const event = JSON.parse(line);
      if (event.event === "error") throw new ApiError(event.error, event.status);
      if (event.event === "end") return;
      await onEvent(event);
    }
  }
};
