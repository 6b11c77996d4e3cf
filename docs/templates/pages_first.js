// Search results: pages before the API, with their title and the passage that has the term. `pages` is {name: title}.
window.pdocSearch = ((search) => (term) => {
    const words = term.toLowerCase().split(/\s+/).filter(Boolean);
    const passage = (html) => {
        const text = new DOMParser().parseFromString(html, "text/html").body.textContent.replace(/\s+/g, " ");
        const at = Math.max(0, ...words.map((word) => text.toLowerCase().indexOf(word, 80)));
        const start = Math.max(0, at - 120);
        const part = document.createElement("p");
        part.textContent = `${start ? "… " : ""}${text.slice(start, start + 360)} …`;
        return part.outerHTML;
    };
    const rank = ({ doc }) => {
        if (!(doc.fullname in pages)) return doc.fullname.startsWith("saywhy.cli.") ? 3 : 2;
        const named = words.some((word) => `${doc.fullname} ${pages[doc.fullname]}`.toLowerCase().includes(word));
        return named ? 0 : 1;
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
