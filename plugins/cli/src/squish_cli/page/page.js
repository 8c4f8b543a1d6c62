"use strict";
(() => {
  const place = document.getElementById("tensors");
  const data = JSON.parse(document.getElementById("data").textContent);
  if (!place || !data.tensors || !data.tensors.names) return;
  const { names, shapes, stored_as, sizes } = data.tensors;
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "Search tensors, such as ffn_down or q4_k";
  input.setAttribute("aria-label", "Search tensors");
  input.className = "search";
  const body = place.querySelector("tbody");
  const note = document.createElement("p");
  note.className = "note";
  place.before(input);
  place.after(note);
  const first = [...body.children];
  const caption = place.querySelector("caption") || document.createElement("caption");
  const cell = (text, number) => {
    const element = document.createElement("td");
    element.textContent = text;
    if (number) element.className = "n";
    return element;
  };
  const row = (at) => {
    const count = shapes[at].reduce((product, size) => product * size, 1);
    const element = document.createElement("tr");
    const name = cell("");
    for (const part of names[at].split(/(?<=\.)/)) name.append(part, document.createElement("wbr"));
    element.append(name, cell(shapes[at].join("\u00d7") || "scalar"), cell(data.types[stored_as[at]].name),
      cell(count ? (8 * sizes[at] / count).toFixed(2) : "0.00", true), cell(sizes[at].toLocaleString("en"), true));
    return element;
  };
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    caption.hidden = words.length > 0;
    if (!words.length) {
      body.replaceChildren(...first);
      note.textContent = "";
      return;
    }
    const found = [];
    for (let at = 0; at < names.length; at++) {
      const text = `${names[at]} ${data.types[stored_as[at]].name}`.toLowerCase();
      if (words.every((word) => text.includes(word))) found.push(at);
    }
    body.replaceChildren(...found.slice(0, 200).map(row));
    note.textContent = `${found.length.toLocaleString("en")} tensors` + (found.length > 200 ? ", the first 200 shown" : "");
  });
})();
