// Search results: pages, functions and classes that have the term in their name, then passages of pages, then the rest.
// A page is shown with its title and the passage that has the term. `pages` is {name: title}.
window.pdocSearch = ((search) => (term) => {
    const words = term.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (text) => words.every((word) => text.toLowerCase().includes(word));
    const text = (html) => new DOMParser().parseFromString(html, "text/html").body.textContent.replace(/\s+/g, " ");
    const passage = (html) => {
        const all = text(html);
        const at = Math.max(0, ...words.map((word) => all.toLowerCase().indexOf(word, 80)));
        const start = at > 120 ? all.indexOf(" ", at - 120) + 1 : 0;
        const end = all.lastIndexOf(" ", start + 360);
        const part = document.createElement("p");
        part.textContent = `${start ? "… " : ""}${all.slice(start, end)} …`;
        return part.outerHTML;
    };
    const rank = ({ doc }) => {
        const isCommand = doc.fullname.startsWith("saywhy.cli");
        if (doc.fullname in pages) return has(`${doc.fullname} ${pages[doc.fullname]}`) ? 0 : has(text(doc.doc)) ? 2 : 4;
        const name = doc.fullname.split(".").pop();
        return isCommand ? 4 : has(name) && doc.kind !== "variable" ? 1 : 3;
    };
    const shown = (result) => {
        const title = pages[result.doc.fullname];
        return title ? { ...result, doc: { ...result.doc, fullname: title, doc: passage(result.doc.doc) } } : result;
    };
    return search(term)
        .map((result) => ({ result, rank: rank(result) }))
        .sort((a, b) => a.rank - b.rank)
        .map(({ result }) => shown(result));
})(window.pdocSearch);
