"""The HTML pages of explanations."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saywhy.explain import METHODS, Budget, Explanation, WordExplanation
from saywhy.viz.explanation_page import explanation_page, index_page, thumbnail
from saywhy.viz.method_styles import METHOD_STYLES

MARKUP = ('<script>alert("x")</script>', "a&b", "it's", '"quoted"', "{{js}}")


def word(text: str, position: int, **fields: Any) -> WordExplanation:
    weights = [(-1.0) ** place * (place + 1) for place in range(position)]
    budget = Budget(2.5, -1.0, 0.25, 0.5)
    defaults = {
        "caption_word": text,
        "contrast": None,
        "logit": budget.total,
        "score": budget.total,
        "probability": 0.5,
        "beta": 0.4,
    }
    defaults |= {"pixel_relevance": 0.1, "absorbed_by_encoder": 2.4}
    defaults |= {"earlier_words": {method: weights for method in METHODS if method != "attention"}}
    return WordExplanation(text, position, budget=budget, **(defaults | fields))


def explanation(
    *words: WordExplanation, methods: tuple[str, ...] = METHODS, heads: int = 0, side: int = 16, **fields: Any
) -> Explanation:
    """An explanation whose maps are noise, which compresses badly."""
    rng = np.random.default_rng(0)
    maps = {method: rng.normal(size=(len(words), side, side)) for method in METHODS}
    alpha = rng.random((len(words), heads, 9) if heads else (len(words), 9))
    maps |= {"gradcam": rng.random((len(words), 9)), "attention": alpha}
    pixels = rng.integers(0, 256, (60, 80, 3), np.uint8)
    defaults = {"source": "photos/dog.png", "size": (80, 60), "crop": (0.0, 0.0, 80.0, 60.0), "grid": (3, 3)}
    defaults |= {"model": "tiny", "tokens": tuple(word.caption_word for word in words)}
    defaults |= {"composite": "epsilon-plus", "methods": methods, "input_size": side, "image": Image.fromarray(pixels)}
    defaults |= {"maps": {method: maps[method].astype(np.float32) for method in methods}}
    return Explanation(words=words, **(defaults | fields))


def caption(text: str = "a dog runs") -> tuple[WordExplanation, ...]:
    return tuple(word(token, place) for place, token in enumerate(text.split()))


def page_data(page: str) -> dict[str, Any]:
    """The data that the page's script reads."""
    (content,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(content)


def decoded(url: str) -> Image.Image:
    assert url.startswith("data:image/")
    return Image.open(io.BytesIO(base64.b64decode(url.split(",")[1])))


def without_images(page: str) -> str:
    return re.sub(r"data:image/\w+;base64,[A-Za-z0-9+/=]+", "", page)


def test_the_page_loads_nothing_from_elsewhere():
    page = explanation_page(explanation(*caption()))
    assert not re.search(r"https?:|//[a-z]|@import|<link(?! rel=\"icon\" href=\"data:,\")", without_images(page))
    addresses = re.findall(r"(?:src|href)=\"([^\"]*)\"", page) + re.findall(r"url\(([^)]*)\)", page)
    assert addresses
    assert all(address.startswith("data:") for address in addresses)
    assert "default-src 'none'" in page, "the browser is forbidden to load anything else"


def test_the_page_has_every_word_and_every_method():
    words = caption("two dogs play in the grass")
    page = explanation_page(explanation(*words))
    data = page_data(page)
    assert [entry["word"] for entry in data["words"]] == [word.word for word in words]
    assert [entry["id"] for entry in data["methods"]] == list(METHODS)
    for method in METHODS:
        assert f'value="{method}"' in page
        assert escape(METHOD_STYLES[method].name) in page
        assert len(data["maps"][method]) == len(words)
    assert page.count('class="token"') == len(words)


def test_the_table_shows_the_numbers_without_a_script():
    page = explanation_page(explanation(*caption()))
    table = unescape(re.search(r"<table>.*</table>", page, re.DOTALL)[0])  # type: ignore[index]
    for number in ("2.500", "−1.000", "0.250", "0.500", "2.250", "67 %"):
        assert number in table


def test_the_footer_names_model_rules_and_image_but_no_folder():
    page = explanation_page(explanation(*caption()))
    footer = re.search(r"<footer.*</footer>", page, re.DOTALL)[0]  # type: ignore[index]
    for name in ("tiny", "epsilon-plus", "dog.png", "80 × 60"):
        assert name in footer
    assert "photos/" not in page


def test_markup_in_words_and_names_is_escaped():
    words = tuple(word(text, place, contrast=MARKUP[0]) for place, text in enumerate(MARKUP))
    page = explanation_page(explanation(*words, source="<i>&.png", model="<b>m</b>", composite="<u>"))
    text = without_images(page)
    assert "<script>alert" not in text
    assert text.count("</script>") == 2, "one for the data and one for the program"
    assert not re.search(r"<i>&|<b>m|<u>", text)
    assert [entry["word"] for entry in page_data(page)["words"]] == list(MARKUP)
    assert '<span class="text">{{js}}</span>' in text, "words are not taken for variables of the template"


def test_twelve_words_and_six_methods_take_less_than_three_megabytes():
    words = caption("a b c d e f g h i j k l")
    page = explanation_page(explanation(*words, side=288, size=(1024, 1024), crop=(0.0, 0.0, 1024.0, 1024.0)))
    assert len(page.encode()) < 3_000_000


def test_a_signed_map_is_red_for_positive_and_blue_for_negative_values():
    lrp = np.ones((1, 16, 16), np.float32)
    lrp[:, :, 8:] = -1
    page = explanation_page(explanation(word("dog", 0), methods=("lrp",), maps={"lrp": lrp}))
    layer = np.asarray(decoded(page_data(page)["maps"]["lrp"][0][0]).convert("RGBA")).astype(int)
    assert layer.shape == (192, 256, 4), "the shape of the image"
    left, right = layer[:, :112], layer[:, 144:]
    assert (left[..., 0] > left[..., 2]).all()
    assert (right[..., 2] > right[..., 0]).all()
    assert layer[:, [0, -1], 3].min() > 200


def test_an_unsigned_map_is_black_and_transparent_where_it_is_high():
    alpha = np.zeros((1, 9), np.float32)
    alpha[0, 0] = 1
    page = explanation_page(explanation(word("dog", 0), methods=("attention",), maps={"attention": alpha}))
    layer = np.asarray(decoded(page_data(page)["maps"]["attention"][0][0]).convert("RGBA"))
    assert layer[..., :3].max() == 0
    assert layer[2, 2, 3] < 30
    assert layer[-2, -2, 3] > 180


def test_maps_of_all_words_share_one_scale():
    lrp = np.zeros((3, 16, 16), np.float32)
    lrp[0], lrp[1] = 2, -0.5
    page = explanation_page(explanation(*caption(), methods=("lrp",), maps={"lrp": lrp}))
    assert page_data(page)["strengths"]["lrp"] == [1, 0.25, 0]


def test_the_page_knows_the_relevance_of_every_place_for_every_word():
    lrp = np.zeros((2, 16, 16), np.float32)
    lrp[0, :, :8], lrp[1, :, 8:] = 1, -0.5
    words = (word("dog", 0), word("cat", 1))
    data = page_data(explanation_page(explanation(*words, methods=("lrp",), maps={"lrp": lrp})))
    columns, rows = data["grid"]
    assert (columns, rows) == (20, 15), "the shape of the image"
    dog, cat = (np.array(values).reshape(rows, columns) for values in data["cells"]["lrp"])
    assert (dog[:, :9] > 950).all()
    assert (np.abs(dog[:, 11:]) < 50).all()
    assert (np.abs(cat[:, :9]) < 50).all()
    assert (np.abs(cat[:, 11:] + 500) < 50).all()


@pytest.mark.parametrize(("risks", "opens"), [((None, None, None), 0), ((0.1, None, 0.6), 2), ((None, 0.3, 0.3), 1)])
def test_the_page_opens_with_the_word_that_is_most_likely_made_up(risks, opens):
    words = [word(text, place, risk=risk) for place, (text, risk) in enumerate(zip("abc", risks, strict=True))]
    assert page_data(explanation_page(explanation(*words)))["opens"] == opens


def test_lrp_is_named_after_its_map():
    data = page_data(explanation_page(explanation(*caption(), map_kind="why")))
    assert data["methods"][0]["name"] == METHOD_STYLES["lrp-why"].name


@pytest.mark.parametrize(("score", "text"), [("logp", "how much it leads over"), ("logit", "the logit; the word with")])
def test_the_help_says_what_the_score_is(score, text):
    page = explanation_page(explanation(*caption(), score=score))
    assert text in " ".join(page.split())


def test_multi_head_attention_has_a_mean_map_and_one_map_per_head():
    maps = page_data(explanation_page(explanation(*caption(), heads=4)))["maps"]
    assert {len(word_maps) for word_maps in maps["attention"]} == {5}
    assert len(set(maps["attention"][0])) == 5
    assert {len(word_maps) for word_maps in maps["lrp"]} == {1}


def test_another_word_is_shown_as_the_replacement_of_the_captions_word():
    tokens = ("a", "dog", "runs")
    page = explanation_page(explanation(word("cat", 1, caption_word="dog"), tokens=tokens))
    assert "<del>dog</del><ins>cat</ins>" in page
    assert page.count("<button") == 1, "only explained words can be chosen"
    assert page.count('class="token"') == 3


def test_words_that_are_likely_made_up_are_marked():
    page = explanation_page(explanation(word("dog", 0, risk=0.2), word("cat", 1, risk=0.75)))
    assert re.findall(r'likely-made-up" title="([^"]*)" data-word="(.)"', page) == [("75 % likely made up", "1")]
    assert "<dt>Chance that it is made up</dt>" in page
    assert "<dt>Chance that it is made up</dt>" not in explanation_page(explanation(*caption()))


def test_the_page_knows_the_crop_as_fractions_of_the_image():
    assert page_data(explanation_page(explanation(*caption())))["crop"] is None
    cropped = explanation_page(explanation(*caption(), crop=(20.0, 0.0, 80.0, 60.0)))
    assert page_data(cropped)["crop"] == [0.25, 0.0, 0.75, 1.0]


def test_regions_and_explanations_without_an_image_can_be_shown():
    boxes = np.array([[0, 0, 0.5, 1], [0.5, 0, 1, 1]], np.float32)
    values = np.array([[1.0, -1.0]], np.float32)
    fields: dict[str, Any] = {"grid": None, "boxes": boxes, "image": None, "maps": {"lrp": values}}
    region_word = word("dog", 0, pixel_relevance=None, beta=None)
    page = explanation_page(explanation(region_word, methods=("lrp",), **fields))
    layer = np.asarray(decoded(page_data(page)["maps"]["lrp"][0][0]).convert("RGBA")).astype(int)
    assert layer[100, 20, 0] > layer[100, 20, 2]
    assert layer[100, -20, 2] > layer[100, -20, 0]
    assert "Gate β</dt>" not in page, "the help leaves out the gate of a model that has none"


def test_the_help_explains_the_gate_of_a_model_that_has_one():
    assert "<dt>Gate β</dt>" in explanation_page(explanation(*caption()))


def test_the_index_links_to_reports_and_escapes_names():
    dog = explanation(*caption(), source="<b>dog</b>.png")
    page = index_page([("a dog?/report.html", dog), ("no image/report.html", explanation(word("<i>", 0), image=None))])
    assert 'href="a%20dog%3F/report.html"' in page
    assert "<b>" not in page
    assert "<i>" not in page
    assert "Why each word: 2 images" in page
    assert page.count("<img") == 1


def test_the_index_colours_words_by_their_share_from_the_image_and_marks_made_up_ones():
    against = Budget(-1.0, 3.0, 0.0, 0.0)
    words = (word("dog", 0, risk=0.2), word("'s", 1), replace(word("cat", 2, risk=0.75), budget=against))
    page = index_page([("dog/report.html", explanation(*words))])
    text = re.search(r'<p class="caption">(.*?)</p>', page)[1]  # type: ignore[index]
    assert unescape(re.sub("<.*?>", "", text)) == "dog's cat", "no space before 's"
    assert re.findall(r"--share: ([^\"]*)", text) == ["0.67", "0.67", "0.00"]
    (made_up,) = re.findall(r'class="made-up"[^>]* title="([^"]*)">cat<', text)
    assert made_up == "−25 % of the evidence is from the image; 75 % likely made up"
    assert "Wavy line" in page
    assert "Wavy line" not in index_page([("dog/report.html", explanation(*caption()))])


@pytest.mark.parametrize(("familiar", "count"), [(False, 1), (True, 0), (None, 0)])
def test_the_index_marks_images_that_are_unlike_the_training_images(familiar, count):
    page = index_page([("dog/report.html", explanation(*caption(), familiar=familiar))])
    assert page.count('class="unfamiliar"') == count


def test_the_index_does_not_colour_a_word_that_the_caption_does_not_have():
    page = index_page([("r.html", explanation(word("cat", 1, caption_word="dog"), tokens=("a", "dog")))])
    assert '<p class="caption">a dog</p>' in page


def test_the_index_loads_nothing_from_elsewhere():
    page = index_page([("dog/report.html", explanation(*caption()))])
    assert not re.search(r"https?:|//[a-z]|@import|url\(", without_images(page))
    assert "default-src 'none'" in page


def test_a_thumbnail_is_small_and_keeps_the_shape():
    wide = explanation(*caption(), image=Image.new("RGB", (1000, 500)))
    assert thumbnail(wide).size == (640, 320)
    assert thumbnail(explanation(*caption(), image=None)) is None


class Browser:
    """Opens a page in a real browser, runs a script of the test, and returns the DOM."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder = program, folder

    def __call__(self, page: str, script: str = "", fragment: str = "") -> str:
        file = self.folder / "report.html"
        file.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder / 'profile'}"]
        command = [self.program, *options, "--dump-dom", f"{file.as_uri()}{fragment}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium to open the page with")
    return Browser(program, tmp_path)


def text_of(dom: str, name: str) -> str:
    """The text of the element with this id."""
    match = re.search(rf'<(\w+)[^>]* id="{name}"[^>]*>(.*?)</\1>|id="{name}"[^>]*>(.*?)</', dom, re.DOTALL)
    assert match, name
    return unescape(re.sub(r"<[^>]+>", " ", match[2] or match[3] or "")).strip()


def tokens(dom: str) -> list[tuple[str, str]]:
    """The classes and the weight of each word of the caption."""
    return re.findall(r'class="(token[^"]*)".*?<span class="weight">(.*?)</span>', dom, re.DOTALL)


def test_in_a_browser_the_page_opens_with_the_first_word(browser):
    dom = browser(explanation_page(explanation(*caption(), heads=2)))
    assert text_of(dom, "word") == "a"
    assert "no earlier words" in text_of(dom, "earlier-words-note")
    assert "67 %" in text_of(dom, "image-share")
    assert text_of(dom, "word-numbers").split() == ["Probability", "0.500", "Gate", "β", "0.40"]
    assert dom.count('class="thumb"') == 3


def test_in_a_browser_the_address_chooses_word_and_method(browser):
    page = explanation_page(explanation(*caption(), heads=2))
    dom = browser(page, fragment="#word=3&method=gradcam")
    assert text_of(dom, "word") == "runs"
    assert tokens(dom) == [("token", "+1.00"), ("token", "−2.00"), ("token current", "")]
    assert page_data(page)["maps"]["gradcam"][2][0] in dom.split('id="data"')[0]
    assert text_of(dom, "method-description") == METHOD_STYLES["gradcam"].description


def test_in_a_browser_keys_and_pointer_choose_words(browser):
    script = """
      const words = [], record = () => words.push(document.getElementById("word").textContent);
      const key = (name, target) => target.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
      const [, , runs] = document.querySelectorAll(".token");
      const pointer = (type) => runs.dispatchEvent(new PointerEvent(type, { pointerType: "mouse" }));
      key("ArrowRight", document.body); record();
      key("ArrowRight", document.body); key("ArrowRight", document.body); record();
      key("ArrowLeft", document.getElementById("opacity")); record();
      document.querySelector(".thumb").click(); record();
      pointer("pointerenter"); record();
      pointer("pointerleave"); record();
      document.querySelector(".token").focus(); key("ArrowRight", document.activeElement);
      words.push(document.activeElement.querySelector(".text").textContent);
      document.getElementById("earlier-words-note").textContent = words.join(" ");
    """
    dom = browser(explanation_page(explanation(*caption())), script)
    steps = {"right": "dog", "right at the end": "runs", "left in the slider": "runs", "click on a thumbnail": "a"}
    steps |= {"pointer on a word": "runs", "pointer leaves it": "a", "right with the focus on a word": "dog"}
    assert dict(zip(steps, text_of(dom, "earlier-words-note").split(), strict=True)) == steps


def test_in_a_browser_a_weak_map_is_faded_unless_each_word_has_its_own_scale(browser):
    lrp = np.zeros((2, 16, 16), np.float32)
    lrp[0], lrp[1] = 1, 0.1
    page = explanation_page(explanation(word("dog", 0), word("cat", 1), methods=("lrp",), maps={"lrp": lrp}))
    read = "document.getElementById('caption-word').textContent = "
    read += "getComputedStyle(document.getElementById('viewer')).getPropertyValue('--strength');"
    assert float(text_of(browser(page, read, "#word=1"), "caption-word")) == 1
    dom = browser(page, read, "#word=2")
    assert float(text_of(dom, "caption-word")) == pytest.approx(0.1**0.7, abs=1e-3)
    assert text_of(dom, "map-warning") == "This map is weak: 10 % of the strength of the strongest word’s."
    own = "document.getElementById('own-scale').click();"
    assert float(text_of(browser(page, own + read, "#word=2"), "caption-word")) == 1


def test_in_a_browser_a_word_with_little_evidence_from_the_image_has_a_warning(browser):
    little = replace(word("dog", 0), budget=Budget(0.1, 1.9, 0.0, 0.0))
    dom = browser(explanation_page(explanation(little, word("cat", 1))))
    warning = "Only 5 % of the evidence for “dog” is from the image: read little into its map."
    assert text_of(dom, "map-warning") == warning
    assert text_of(browser(explanation_page(explanation(*caption()))), "map-warning") == ""


def test_in_a_browser_a_place_shows_its_relevance_for_every_word(browser):
    lrp = np.zeros((2, 16, 16), np.float32)
    lrp[0, :, :8], lrp[1, :, :8] = 1, -0.5
    words = (word("dog", 0), word("cat", 1))
    page = explanation_page(explanation(*words, methods=("lrp",), maps={"lrp": lrp}))
    script = """
      const box = document.getElementById("viewer").getBoundingClientRect();
      const at = (type, x) => document.getElementById("viewer").dispatchEvent(new PointerEvent(type, {
        pointerType: "mouse", clientX: box.left + x * box.width, clientY: box.top + 0.5 * box.height }));
      at("pointermove", 0.2);
    """
    dom = browser(page, script)
    assert [weight for _, weight in tokens(dom)] == ["100 %", "−50 %"]
    assert "This place" in text_of(dom, "earlier-words-note")
    assert dom.count('class="spot"') == 3, "in the large frame and in both small ones"
    assert [weight for _, weight in tokens(browser(page, script + 'at("pointermove", 0.9);'))] == ["0 %", "0 %"]
    left = browser(page, script + 'at("pointerleave", 2);')
    assert left.count('class="spot"') == 0
    assert "This place" not in text_of(left, "earlier-words-note")


def test_in_a_browser_attention_has_heads_but_no_weights_of_words(browser):
    page = explanation_page(explanation(*caption(), heads=2))
    choose_method = "document.querySelector('input[value=attention]').click();"
    choose_head = "document.getElementById('head').value = 2;"
    choose_head += "document.getElementById('head').dispatchEvent(new Event('change'));"
    dom = browser(page, choose_method + choose_head, fragment="#word=2")
    assert "no weights to earlier words" in text_of(dom, "earlier-words-note")
    assert [weight for _, weight in tokens(dom)] == ["", "", ""]
    assert text_of(dom, "head").split() == ["mean", "1", "2"]
    assert page_data(page)["maps"]["attention"][1][2] in dom.split('id="data"')[0]


def test_in_a_browser_markup_in_words_is_shown_as_text(browser):
    words = tuple(word(text, place) for place, text in enumerate(MARKUP))
    dom = browser(explanation_page(explanation(*words)))
    assert text_of(dom, "word") == MARKUP[0]
    thumbs = dom.split('id="thumbs"')[1].split("<details>")[0]
    assert all(escape(text, quote=False) in thumbs for text in MARKUP)


def test_in_a_browser_a_contrast_shows_both_words(browser):
    page = explanation_page(explanation(word("cat", 1, caption_word="dog", contrast="fox"), tokens=("a", "dog")))
    dom = browser(page)
    assert text_of(dom, "word") == "cat, not fox"
    assert text_of(dom, "caption-word") == "The caption has “dog” here."
    assert text_of(dom, "score-name") == "lead over “fox”"
