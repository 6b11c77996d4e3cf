"""A contrastive captioner in the plainest way: numbers in lists, one word, head and place at a time, no cache."""

from __future__ import annotations

import math

from reference.soft_attention import dot, linear

END = 2


def add(*vectors):
    return [sum(numbers) for numbers in zip(*vectors, strict=True)]


def softmax(energies):
    exponentials = [math.exp(e - max(energies)) for e in energies]
    return [e / sum(exponentials) for e in exponentials]


def mean_of(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def position(place, width):
    angles = [place / 10000 ** (i / (width // 2)) for i in range(width // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


class CoCa:
    """One image at a time. `weights` are the fast captioner's own, by name, as nested lists."""

    def __init__(self, weights, conditioning, heads, unimodal, multimodal):
        self.weights = weights
        self.conditioning = conditioning
        self.heads = heads
        self.unimodal = unimodal
        self.multimodal = multimodal

    def linear(self, name, x):
        return linear(self.weights[f"{name}.weight"], x, self.weights.get(f"{name}.bias"))

    def norm(self, name, x):
        mean = sum(x) / len(x)
        deviation = math.sqrt(sum((each - mean) ** 2 for each in x) / len(x) + 1e-5)
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return [w * (each - mean) / deviation + b for each, w, b in zip(x, weight, bias, strict=True)]

    def attention(self, name, x, memory):
        """What one vector finds, and where each head looks."""
        q = self.linear(f"{name}.q", x)
        keys, values = ([self.linear(f"{name}.{part}", each) for each in memory] for part in "kv")
        d = len(q) // self.heads
        context, weights = [], []
        for head in range(self.heads):
            mine = slice(head * d, (head + 1) * d)
            weights.append(softmax([dot(q[mine], k[mine]) / math.sqrt(d) for k in keys]))
            context += [
                sum(w * v[i] for w, v in zip(weights[-1], values, strict=True)) for i in range(d * head, d * head + d)
            ]
        return self.linear(f"{name}.out", context), weights

    def pool(self, places):
        """Pooled vectors, and each one's attention over the places."""
        normed = [self.norm("pooler.before", a) for a in places]
        found = [self.attention("pooler.attention", query, normed) for query in self.weights["pooler.queries"]]
        return [self.norm("pooler.after", vector) for vector, _ in found], [mean_of(weights) for _, weights in found]

    def layer(self, name, xs, pooled=None):
        """All words through one layer, and their attention over pooled vectors."""
        normed = [self.norm(f"{name}.attention_norm", x) for x in xs]
        seen, looks = [], []
        for t, x in enumerate(xs):
            x = add(x, self.attention(f"{name}.attention", normed[t], normed[: t + 1])[0])
            if pooled is not None:
                look, weights = self.look(f"{name}.conditioning", x, pooled)
                x = add(x, look)
                looks.append(weights)
            hidden = self.linear(f"{name}.mlp.0", self.norm(f"{name}.mlp_norm", x))
            active = [h * (1 + math.erf(h / math.sqrt(2))) / 2 for h in hidden]
            seen.append(add(x, self.linear(f"{name}.mlp.2", active)))
        return seen, looks

    def look(self, name, x, pooled):
        if self.conditioning == "bottleneck":
            (only,) = pooled
            return self.linear(f"{name}.value", only), [1.0]
        found, weights = self.attention(f"{name}.attention", self.norm(f"{name}.norm", x), pooled)
        return found, mean_of(weights)

    def listen(self, words):
        """The unimodal layers."""
        embedded = [self.weights["E.weight"][word] for word in words]
        xs = [add(x, position(t, len(x))) for t, x in enumerate(embedded)]
        for n in range(self.unimodal):
            xs, _ = self.layer(f"unimodal.{n}", xs)
        return xs

    def __call__(self, places, words):
        """Logits and α after each of these words, for an image with these features."""
        pooled, pooling = self.pool(places)
        if self.conditioning == "attention":
            pooled, pooling = pooled[1:], pooling[1:]
        xs = self.listen(words)
        for n in range(self.multimodal):
            xs, looks = self.layer(f"multimodal.{n}", xs, pooled)
        columns = list(zip(*pooling, strict=True))
        alphas = [[dot(look, column) for column in columns] for look in looks]
        return [(self.linear("out", self.norm("norm", x)), alpha) for x, alpha in zip(xs, alphas, strict=True)]

    def match(self, places, words):
        """The cosine of an image and a caption."""
        pooled, _ = self.pool(places)
        x = self.linear("contrastive.of_image", pooled[0])
        y = self.linear("contrastive.of_caption", self.listen(words)[words.index(END)])
        return dot(x, y) / math.sqrt(dot(x, x) * dot(y, y))


def contrastive_loss(similarity, scale, taught, owner):
    """Of each pair: how surprising its caption is among those of other images, and its image among others."""
    losses = []
    for i, own in enumerate(owner):
        if not taught[i]:
            losses.append(0.0)
            continue
        rivals = [j for j in range(len(owner)) if j == i or (taught[j] and owner[j] != own)]
        captions = softmax([scale * similarity[i][j] for j in rivals])
        images = softmax([scale * similarity[j][i] for j in rivals])
        place = rivals.index(i)
        losses.append(-(math.log(captions[place]) + math.log(images[place])) / 2)
    return losses
