/* The reference of the interface, from openapi.json. */

import { $, create } from "./text.js";

const fieldsOf = (operation, schemas) => {
  const content = operation.requestBody?.content["multipart/form-data"]?.schema;
  const name = content?.$ref?.split("/").at(-1);
  const fields = Object.entries((name ? schemas[name] : content)?.properties || {});
  return fields.sort(([one], [other]) => other.startsWith("image") - one.startsWith("image"));
};

const schemaOf = (reference, schemas) => {
  const name = (reference?.$ref || reference?.items?.$ref)?.split("/").at(-1);
  return schemas[name];
};

/* The range of a number, where there is one. */
const rangeOf = (field) => {
  const { minimum, maximum } = [field, ...(field.anyOf || [])].find((one) => one.minimum !== undefined) || {};
  if (minimum === undefined) return "";
  return maximum === undefined ? `From ${minimum}.` : `${minimum} to ${maximum}.`;
};

/* What a successful answer has: the fields of JSON, or the kind of file. */
const answerOf = (operation, schemas) => {
  const content = operation.responses[200].content || {};
  const fields = Object.keys(schemaOf(content["application/json"]?.schema, schemas)?.properties || {});
  const line = create("p", "", "Answer: ");
  line.append(create("code", "", fields.length ? fields.join(", ") : Object.keys(content).join(", ")));
  return line;
};

const endpoint = (path, method, operation, schemas) => {
  const section = create("section"), title = create("h2");
  title.append(create("b", "", method.toUpperCase()), ` ${path}`);
  section.append(title, create("p", "", `${operation.summary}. ${operation.description || ""}`));
  const list = create("dl");
  for (const [name, field] of fieldsOf(operation, schemas)) {
    const initial = field.default === undefined || field.default === null ? "" : ` (${JSON.stringify(field.default)})`;
    list.append(create("dt", "", name), create("dd", "muted", [field.description, rangeOf(field)].filter(Boolean).join(" ") + initial));
  }
  if (list.children.length) section.append(list);
  section.append(answerOf(operation, schemas));
  return section;
};

const { paths, components, info } = await (await fetch("/openapi.json")).json();
$("description").textContent = info.description;
$("example").textContent = [
  `curl -F image=@photo.jpg ${location.origin}/api/caption`,
  `curl -F image=@photo.jpg -F risk=true -F maps=false ${location.origin}/api/explain`,
  `curl -F image=@photo.jpg ${location.origin}/api/report > why.html`,
].join("\n");
const errors = Object.entries(paths["/api/explain"].post.responses).filter(([status]) => status >= 400);
$("errors").append(...errors.flatMap(([status, { description }]) => [create("dt", "", status), create("dd", "muted", description)]));
$("endpoints").append(...Object.entries(paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => endpoint(path, method, operation, components.schemas))));
