"""The page of an explanation."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saywhy.explain import METHODS, Budget, Explanation, Word
from saywhy.viz.colormap import look
from saywhy.viz.explanation_page import explanation_page

NASTY = ('<script>alert("x")</script>', "a&b", "it's", '"quoted"', "{{js}}")


def word(text: str, position: int, **more: Any) -> Word:
    weights = [(-1.0) ** place * (place + 1) for place in range(position)]
    earlier = {method: weights for method in METHODS if method != "attention"}
    budget = Budget(2.5, -1.0, 0.25, 0.5)
    told = {"said": text, "instead": None, "logit": budget.total, "probability": 0.5, "pixels": 0.1, "beta": 0.4}
    return Word(text, position, budget=budget, absorbed_by_encoder=2.4, earlier=earlier, **(told | more))


def explanation(
    *words: Word, methods: tuple[str, ...] = METHODS, heads: int = 0, side: int = 16, **more: Any
) -> Explanation:
    """An explanation whose maps are noise, as hard to compress as any."""
    rng = np.random.default_rng(0)
    over_pixels = {method: rng.normal(size=(len(words), side, side)) for method in METHODS}
    alpha = rng.random((len(words), heads, 9) if heads else (len(words), 9))
    maps = over_pixels | {"gradcam": rng.random((len(words), 9)), "attention": alpha}
    pixels = rng.integers(0, 256, (60, 80, 3), np.uint8)
    about = {"source": "photos/dog.png", "size": (80, 60), "region": (0.0, 0.0, 80.0, 60.0), "grid": (3, 3)}
    about |= {"model": "tiny", "tokens": tuple(each.said for each in words), "image": Image.fromarray(pixels)}
    about |= {"composite": "epsilon-plus", "methods": methods, "seen": side}
    maps = {method: maps[method].astype(np.float32) for method in methods}
    return Explanation(words=words, **({"maps": maps} | about | more))


def caption(text: str = "a dog runs") -> tuple[Word, ...]:
    return tuple(word(each, place) for place, each in enumerate(text.split()))


def told(page: str) -> dict[str, Any]:
    """What the page's script knows."""
    (found,) = re.findall(r'<script type="application/json" id="told">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def image(address: str) -> Image.Image:
    assert address.startswith("data:image/")
    return Image.open(io.BytesIO(base64.b64decode(address.split(",")[1])))


def test_the_page_needs_nothing_but_itself():
    page = explanation_page(explanation(*caption()))
    assert not re.search(r"https?:|//[a-z]|@import|<link(?! rel=\"icon\" href=\"data:,\")", without_data(page))
    addresses = re.findall(r"(?:src|href)=\"([^\"]*)\"", page) + re.findall(r"url\(([^)]*)\)", page)
    assert addresses
    assert all(address.startswith("data:") for address in addresses)
    assert "default-src 'none'" in page, "a browser is told to load nothing else"


def without_data(page: str) -> str:
    return re.sub(r"data:image/\w+;base64,[A-Za-z0-9+/=]+", "", page)


def test_every_word_and_every_method_is_there():
    words = caption("two dogs play in the grass")
    page = explanation_page(explanation(*words))
    known = told(page)
    assert [each["word"] for each in known["words"]] == [each.word for each in words]
    assert [each["id"] for each in known["methods"]] == list(METHODS)
    for method in METHODS:
        assert f'value="{method}"' in page
        assert escape(look(method).name) in page
        assert len(known["maps"][method]) == len(words)
    assert page.count('class="token"') == len(words)


def test_numbers_are_there_for_those_without_a_script():
    page = explanation_page(explanation(*caption()))
    table = unescape(re.search(r"<table>.*</table>", page, re.DOTALL)[0])  # type: ignore[index]
    for number in ("2.500", "−1.000", "0.250", "0.500", "2.250", "67 %"):
        assert number in table


def test_the_model_the_rules_and_the_image_are_named():
    page = explanation_page(explanation(*caption()))
    footer = re.search(r"<footer.*</footer>", page, re.DOTALL)[0]  # type: ignore[index]
    for name in ("tiny", "epsilon-plus", "dog.png", "80 × 60"):
        assert name in footer
    assert "photos/" not in page, "folders are nobody's business"


def test_text_is_text_whatever_it_contains():
    words = tuple(word(each, place, instead=NASTY[0]) for place, each in enumerate(NASTY))
    page = explanation_page(explanation(*words, source="<i>&.png", model="<b>m</b>", composite="<u>"))
    plain = without_data(page)
    assert "<script>alert" not in plain
    assert plain.count("</script>") == 2, "the data and the program, each closed once"
    assert not re.search(r"<i>&|<b>m|<u>", plain)
    assert [each["word"] for each in told(page)["words"]] == list(NASTY)
    assert '<span class="text">{{js}}</span>' in plain, "words are not taken for places in the template"


def test_twelve_words_by_six_methods_are_below_three_megabytes():
    words = caption("a b c d e f g h i j k l")
    page = explanation_page(explanation(*words, side=288, size=(1024, 1024), region=(0.0, 0.0, 1024.0, 1024.0)))
    assert len(page.encode()) < 3_000_000


def test_maps_are_red_where_they_support_and_blue_where_they_speak_against():
    half = np.ones((1, 16, 16), np.float32)
    half[:, :, 8:] = -1
    page = explanation_page(explanation(word("dog", 0), methods=("lrp",), maps={"lrp": half}))
    shape = np.asarray(image(told(page)["maps"]["lrp"][0][0]).convert("RGBA")).astype(int)
    assert shape.shape == (192, 256, 4), "of the image's shape"
    left, right = shape[:, :112], shape[:, 144:]
    assert (left[..., 0] > left[..., 2]).all()
    assert (right[..., 2] > right[..., 0]).all()
    assert shape[:, [0, -1], 3].min() > 200


def test_a_map_that_is_never_negative_is_darkness_with_light_in_it():
    alpha = np.zeros((1, 9), np.float32)
    alpha[0, 0] = 1
    page = explanation_page(explanation(word("dog", 0), methods=("attention",), maps={"attention": alpha}))
    shape = np.asarray(image(told(page)["maps"]["attention"][0][0]).convert("RGBA"))
    assert shape[..., :3].max() == 0
    assert shape[2, 2, 3] < 30
    assert shape[-2, -2, 3] > 180


def test_of_several_heads_there_is_the_mean_and_each():
    page = explanation_page(explanation(*caption(), heads=4))
    maps = told(page)["maps"]
    assert {len(each) for each in maps["attention"]} == {5}
    assert len(set(maps["attention"][0])) == 5
    assert {len(each) for each in maps["lrp"]} == {1}


def test_a_word_that_was_not_said_stands_beside_the_one_that_was():
    tokens = ("a", "dog", "runs")
    page = explanation_page(explanation(word("cat", 1, said="dog"), tokens=tokens))
    assert "<del>dog</del><ins>cat</ins>" in page
    assert page.count("<button") == 1, "only what is explained can be chosen"
    assert page.count('class="token"') == 3


def test_what_the_encoder_did_not_see_is_told():
    assert told(explanation_page(explanation(*caption())))["seen"] is None
    cut = explanation_page(explanation(*caption(), region=(20.0, 0.0, 80.0, 60.0)))
    assert told(cut)["seen"] == [0.25, 0.0, 0.75, 1.0]


def test_regions_and_images_that_were_not_kept_can_be_shown():
    boxes = np.array([[0, 0, 0.5, 1], [0.5, 0, 1, 1]], np.float32)
    values = np.array([[1.0, -1.0]], np.float32)
    more: dict[str, Any] = {"grid": None, "boxes": boxes, "image": None, "maps": {"lrp": values}}
    page = explanation_page(explanation(word("dog", 0, pixels=None, beta=None), methods=("lrp",), **more))
    shape = np.asarray(image(told(page)["maps"]["lrp"][0][0]).convert("RGBA")).astype(int)
    assert shape[100, 20, 0] > shape[100, 20, 2]
    assert shape[100, -20, 2] > shape[100, -20, 0]
    assert "Gate β</dt>" not in page, "a gate is explained only where there is one"


def test_a_gate_is_explained_where_there_is_one():
    assert "<dt>Gate β</dt>" in explanation_page(explanation(*caption()))


class Browser:
    """What a real browser makes of a page, after a script of the test's own has acted on it."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder = program, folder

    def __call__(self, page: str, acting: str = "", at: str = "") -> str:
        file = self.folder / "report.html"
        file.write_text(page.replace("</body>", f"<script>{acting}</script></body>"), encoding="utf-8")
        quietly = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder / 'profile'}"]
        done = subprocess.run(
            [self.program, *quietly, "--dump-dom", f"{file.as_uri()}{at}"], capture_output=True, text=True, timeout=120
        )
        return done.stdout


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium to open the page with")
    return Browser(program, tmp_path)


def inside(dom: str, name: str) -> str:
    """The text of the element with this id."""
    found = re.search(rf'<(\w+)[^>]* id="{name}"[^>]*>(.*?)</\1>|id="{name}"[^>]*>(.*?)</', dom, re.DOTALL)
    assert found, name
    return unescape(re.sub(r"<[^>]+>", " ", found[2] or found[3] or "")).strip()


def tokens(dom: str) -> list[tuple[str, str]]:
    """Of each word of the caption, its classes and its weight."""
    return re.findall(r'class="(token[^"]*)".*?<span class="weight">(.*?)</span>', dom, re.DOTALL)


def test_in_a_browser_the_first_word_is_shown_at_first(browser):
    dom = browser(explanation_page(explanation(*caption(), heads=2)))
    assert inside(dom, "word") == "a"
    assert "nothing was said before" in inside(dom, "hint")
    assert "67 %" in inside(dom, "share")
    assert inside(dom, "facts").split() == ["Probability", "0.500", "Gate", "β", "0.40"]
    assert dom.count('class="thumb"') == 3


def test_in_a_browser_an_address_names_a_word_and_a_method(browser):
    page = explanation_page(explanation(*caption(), heads=2))
    dom = browser(page, at="#word=3&method=gradcam")
    assert inside(dom, "word") == "runs"
    assert tokens(dom) == [("token", "+1.00"), ("token", "−2.00"), ("token current", "")]
    assert told(page)["maps"]["gradcam"][2][0] in dom.split('id="told"')[0]
    assert inside(dom, "about") == look("gradcam").about


def test_in_a_browser_keys_and_pointers_choose_words(browser):
    acting = """
      const words = [], see = () => words.push(document.getElementById("word").textContent);
      const key = (name, at) => at.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
      const [, , runs] = document.querySelectorAll(".token");
      const point = (how) => runs.dispatchEvent(new PointerEvent(how, { pointerType: "mouse" }));
      key("ArrowRight", document.body); see();
      key("ArrowRight", document.body); key("ArrowRight", document.body); see();
      key("ArrowLeft", document.getElementById("strength")); see();
      document.querySelector(".thumb").click(); see();
      point("pointerenter"); see();
      point("pointerleave"); see();
      document.querySelector(".token").focus(); key("ArrowRight", document.activeElement);
      words.push(document.activeElement.querySelector(".text").textContent);
      document.getElementById("hint").textContent = words.join(" ");
    """
    dom = browser(explanation_page(explanation(*caption())), acting)
    steps = {"right": "dog", "beyond the end": "runs", "in the slider": "runs", "a click": "a"}
    steps |= {"hovering": "runs", "and leaving": "a", "focus follows": "dog"}
    assert dict(zip(steps, inside(dom, "hint").split(), strict=True)) == steps


def test_in_a_browser_attention_has_heads_and_no_weights_for_words(browser):
    page = explanation_page(explanation(*caption(), heads=2))
    choose = "document.querySelector('input[value=attention]').click();"
    head = "document.getElementById('head').value = 2;"
    head += "document.getElementById('head').dispatchEvent(new Event('change'));"
    dom = browser(page, choose + head, at="#word=2")
    assert "gives earlier words no weight" in inside(dom, "hint")
    assert [weight for _, weight in tokens(dom)] == ["", "", ""]
    assert inside(dom, "head").split() == ["mean", "1", "2"]
    assert told(page)["maps"]["attention"][1][2] in dom.split('id="told"')[0]


def test_in_a_browser_nasty_words_stay_words(browser):
    words = tuple(word(each, place) for place, each in enumerate(NASTY))
    page = explanation_page(explanation(*words))
    dom = browser(page)
    assert inside(dom, "word") == NASTY[0]
    assert all(escape(each, quote=False) in dom.split('id="all"')[1].split("<details>")[0] for each in NASTY)


def test_in_a_browser_a_contrast_names_both_words(browser):
    page = explanation_page(explanation(word("cat", 1, said="dog", instead="fox"), tokens=("a", "dog")))
    dom = browser(page)
    assert inside(dom, "word") == "cat, not fox"
    assert inside(dom, "said") == "The caption has “dog” here."
    assert inside(dom, "score") == "lead over “fox”"
