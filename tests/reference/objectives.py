"""The training loss, computed word by word."""

from __future__ import annotations

import math

from reference.soft_attention import doubly_stochastic

PAD = 0


def log_softmax(logits):
    largest = max(logits)
    total = largest + math.log(sum(math.exp(x - largest) for x in logits))
    return [x - total for x in logits]


def caption_loss(logits, alpha, targets, smoothing=0.0, penalty=0.0, taught=None, distil=0.0, has_image=None):
    """The four sums over captions: loss, −log p, words, captions.

    `taught` are the teachers' mean probabilities; they and the penalty apply to captions with an image only.
    """
    loss = log_loss = 0.0
    words = captions = 0
    for n, caption in enumerate(targets):
        with_image = has_image is None or has_image[n]
        mask = [word != PAD for word in caption]
        for t, word in enumerate(caption):
            if word == PAD:
                continue
            log_p = log_softmax(logits[n][t])
            caption_term = (1 - smoothing) * -log_p[word] + smoothing * -sum(log_p) / len(log_p)
            if taught and with_image:
                teacher_term = -sum(p * q for p, q in zip(taught[n][t], log_p, strict=True))
                loss += (1 - distil) * caption_term + distil * teacher_term
            else:
                loss += caption_term
            log_loss -= log_p[word]
            words += 1
        if any(mask):
            captions += 1
            if with_image:
                loss += penalty * doubly_stochastic([alpha[n]], [mask])[0]
    return loss, log_loss, words, captions
