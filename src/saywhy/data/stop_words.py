"""Stop words: English function words, which name nothing in an image."""

from __future__ import annotations

_ARTICLES_AND_DETERMINERS = """
    a an the this that these those some any no each every either neither both all another other others such
    several many much more most few fewer less lot lots own same
"""
_PRONOUNS = """
    i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself
    we us our ours ourselves they them their theirs themselves one ones oneself who whom whose which what
    someone somebody something anyone anybody anything everyone everybody everything nobody nothing none whatever
"""
_PREPOSITIONS = """
    about above across after against along alongside amid among amongst around as at atop away before behind below
    beneath beside besides between beyond by despite down during except for from in inside into like near nearby next
    of off on onto opposite out outside over past per since through throughout till to toward towards under
    underneath until up upon via with within without
"""
_CONJUNCTIONS_AND_ADVERBS = """
    and but or nor so yet if because although though unless whereas whether while whilst when where why how than then
    there here not only also too very just again even still else almost already together
"""
_AUXILIARIES = """
    am is are was were be been being has have had having do does did doing done can could may might must shall should
    will would ought
"""
# As the tokeniser splits them: isn't is `is n't`, a dog's is `a dog 's`, cannot is `can not`.
_PARTICLES = """n't 's 'm 'd 're 've 'll ca wo sha ai gon na got ta wan gim lem 't 'em 'n 'n' -lrb- -rrb- & s t"""

STOP_WORDS = frozenset(
    " ".join(
        [_ARTICLES_AND_DETERMINERS, _PRONOUNS, _PREPOSITIONS, _CONJUNCTIONS_AND_ADVERBS, _AUXILIARIES, _PARTICLES]
    ).split()
)
"""Function words as tokens of `saywhy.data.tokenizer`.

Numbers and words such as "left" are not stop words, because an image can support them.
"""
