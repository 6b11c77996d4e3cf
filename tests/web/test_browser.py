"""The page in a real browser, with the shipped model and the free photographs.

`make screenshots` lets these tests write the pictures of docs/web.md.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

playwright = pytest.importorskip("playwright.sync_api", reason="drives a browser: pip install playwright")
pytest.importorskip("uvicorn", reason="saywhy serve needs pip install 'saywhy[web]'")
expect = playwright.expect

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "examples" / "images"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
SHOTS = os.environ.get("SAYWHY_SCREENSHOTS")
TIMEOUT = 90_000  # milliseconds: other programs may use the processor
DESKTOP, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}

OpenPage = Callable[..., Any]


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """The address of a server."""
    command = [sys.executable, "-m", "saywhy", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=120)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """`saywhy serve` with the shipped model."""
    with serving() as address:
        yield address


@pytest.fixture(scope="module")
def two_models(folders: list[Path]) -> Iterator[str]:
    """`saywhy serve` with two small models."""
    with serving("--model", str(folders[0]), "--model", str(folders[1])) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[OpenPage]:
    """Open the page; errors of its scripts, and requests to other addresses, fail the test."""
    contexts, problems = [], []

    def open_(viewport: dict[str, int] = DESKTOP, address: str = address, **options: Any) -> Any:
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT)
        page.on("pageerror", lambda error: problems.append(f"script: {error}"))
        page.on("console", lambda line: problems.append(line.text) if "Security Policy" in line.text else None)
        page.on("request", lambda request: _note_foreign(request.url, address, problems))
        page.goto(address)
        page.wait_for_selector("body[data-state=ready]")
        return page

    expect.set_options(timeout=TIMEOUT)
    yield open_
    for context in contexts:
        context.close()
    assert problems == []


def _note_foreign(url: str, address: str, problems: list[str]) -> None:
    if not url.startswith((address, "blob:", "data:")):
        problems.append(f"request to {url}")


def upload(page: Any, name: str = "surfer_wave.jpg") -> list[str]:
    """Send a photograph; the words of its caption."""
    page.set_input_files("#file", IMAGES / name)
    page.wait_for_selector("body[data-state=captioned]")
    return words(page)


def words(page: Any, row: int = 0) -> list[str]:
    return page.locator(".reading").nth(row).locator(".word .text").all_inner_texts()


def word(page: Any, k: int, row: int = 0) -> Any:
    return page.locator(".reading").nth(row).locator(".word").nth(k)


def map_pixels(page: Any, method: str, text: str) -> list[int]:
    """The colours of the map of this word, once it is drawn."""
    page.wait_for_selector(f'#map[data-of="{method} {text}"]')
    script = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    return page.locator("#map").evaluate(script)


def all_explained(page: Any, row: int = 0) -> None:
    expect(page.locator(".reading").nth(row).locator(".caption")).to_have_attribute("aria-busy", "false")
    buttons = page.locator(".reading").nth(row).locator(".word")
    expect(page.locator(".reading").nth(row).locator(".word.explained")).to_have_count(buttons.count())


def shoot(page: Any, name: str, **options: Any) -> None:
    """A picture for the docs, if pictures are wanted."""
    if SHOTS:
        page.mouse.move(0, 0)
        page.wait_for_timeout(600)  # until transitions end
        page.screenshot(path=Path(SHOTS) / f"{name}.jpg", type="jpeg", quality=82, **options)


def test_a_tapped_word_shows_its_map(open_page):
    page = open_page()
    shoot(page, "web-start")
    caption = upload(page)
    assert len(caption) > 4
    word(page, 2).click()
    third = map_pixels(page, "lrp", caption[2])
    assert any(third[3::4])  # something is drawn
    expect(page.locator("#word")).to_have_text(caption[2])
    word(page, 0).click()
    first = map_pixels(page, "lrp", caption[0])
    assert first != third
    all_explained(page)
    shares = page.locator(".word .percent").all_inner_texts()
    assert all(re.fullmatch(r"−?\d+ %", share) for share in shares)
    expect(page.locator(".word .risk").first).to_be_visible()
    word(page, 7).click()
    map_pixels(page, "lrp", caption[7])
    shoot(page, "web-word")


def test_the_methods_the_sign_and_the_opacity_change_what_is_seen(open_page):
    page = open_page()
    caption = upload(page)
    word(page, 1).click()
    why = map_pixels(page, "lrp", caption[1])
    for name, method in (("What sets it apart", "lrp-apart"), ("Attention", "attention"), ("Grad-CAM", "gradcam")):
        page.get_by_role("radio", name=name, exact=True).check(force=True)
        assert map_pixels(page, method, caption[1]) != why
    page.get_by_role("radio", name="Why this word", exact=True).check(force=True)
    map_pixels(page, "lrp", caption[1])
    page.get_by_role("radio", name="Against").check(force=True)
    against = map_pixels(page, "lrp", caption[1])
    visible = [i for i, opacity in enumerate(against[3::4]) if opacity]
    assert visible
    assert all(against[4 * i + 2] > against[4 * i] for i in visible)  # blue, not red
    page.locator("#opacity").fill("30")
    expect(page.locator("#map")).to_have_css("opacity", "0.3")


def test_another_word_starts_a_contrast(open_page):
    page = open_page()
    caption = upload(page)
    word(page, 1).click()
    other = page.locator(".alternative .name").first.inner_text()
    assert page.locator(".alternative").count() == 5
    page.get_by_role("button", name=re.compile(rf"^{other}: [\d.]+ %$")).click()
    map_pixels(page, "lrp", f"{caption[1]}, not {other}")
    expect(page.locator("#word")).to_have_text(f"{caption[1]}, not {other}")
    expect(page.locator("#budget")).to_contain_text("difference")
    expect(page.locator("#scale-low")).to_have_text(f"“{other}”")
    page.get_by_role("button", name="Back to the word alone").click()
    expect(page.locator("#word")).to_have_text(caption[1])
    expect(page.locator("#scale-low")).to_have_text("against")
    page.locator(".alternative").first.click()
    map_pixels(page, "lrp", f"{caption[1]}, not {other}")
    page.get_by_role("radio", name="Attention", exact=True).check(force=True)  # not a method of contrasts
    map_pixels(page, "attention", caption[1])
    expect(page.locator("#word")).to_have_text(caption[1])


def test_the_keyboard_focus_stays_where_the_visitor_is(open_page):
    page = open_page()
    caption = upload(page)
    expect(page.locator("#work")).to_be_focused()
    word(page, 1).click()
    map_pixels(page, "lrp", caption[1])
    alternative = page.locator(".alternative").nth(1)
    alternative.focus()
    all_explained(page)  # the panel is drawn again as other words become known
    expect(alternative).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#word")).to_contain_text(", not ")
    expect(alternative).to_be_focused()
    page.locator("#contrast-back button").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#word")).to_have_text(caption[1])
    expect(alternative).to_be_focused()
    page.locator("#brush").press("Enter")
    page.keyboard.press("Space")
    expect(page.locator("#restore")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#brush")).to_be_focused()
    page.locator("#restore").press("Enter")
    expect(page.locator("#remove")).to_be_focused()


def test_removing_the_evidence_changes_the_caption(open_page):
    page = open_page()
    caption = upload(page, "astronaut.jpg")
    all_explained(page)
    word(page, caption.index("computer")).click()
    page.get_by_role("button", name="Remove what supports “computer”").click()
    expect(page.locator("#erase-result")).to_contain_text("20 of 1,296 patches")
    expect(page.locator("#erase-result")).to_contain_text("The caption changed")
    assert "computer" not in words(page, 1)
    marked = page.locator(".word.changed .text").all_inner_texts()
    assert "computer" in marked
    assert set(marked) & set(words(page, 1))
    expect(page.locator("#erase-result")).to_contain_text("the probability of “computer” was")
    all_explained(page, 1)
    shoot(page, "web-erased")
    expect(page.locator("#remove")).to_have_text("Remove more of what supports “computer”")
    word(page, caption.index("boy")).click()
    page.get_by_role("button", name="Remove what supports “boy”").click()  # counts from the start
    expect(page.locator("#erase-result")).to_contain_text("20 of 1,296 patches")
    page.locator("#restore").click()
    expect(page.locator(".reading")).to_have_count(1)
    assert words(page) == caption


def test_the_brush_erases(open_page):
    page = open_page()
    caption = upload(page, "cat.jpg")
    page.locator("#brush").click()
    page.locator("#brush-size").fill("30")
    page.evaluate("document.querySelector('#viewer').scrollIntoView({block: 'nearest', behavior: 'instant'})")
    box = page.locator("#viewer").bounding_box()
    assert box is not None
    assert box["y"] >= 0
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    for row in range(6):
        x = box["x"] + (box["width"] - 5 if row % 2 else 5)
        page.mouse.move(x, box["y"] + (row + 0.5) * box["height"] / 6, steps=12)
    page.mouse.up()
    expect(page.locator("#erase-result")).to_contain_text("The caption changed")
    assert words(page, 1) != caption


def test_the_keyboard_is_enough(open_page):
    page = open_page()
    page.keyboard.press("Tab")
    for _ in range(30):
        if page.evaluate("document.activeElement.classList.contains('example')"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the first example
    page.wait_for_selector("body[data-state=captioned]")
    all_explained(page)
    caption = words(page)
    for _ in range(30):
        if page.evaluate("document.activeElement.classList.contains('word')"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Home")
    expect(page.locator("#word")).to_have_text(caption[0])
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    map_pixels(page, "lrp", caption[2])
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("End")
    expect(page.locator("#word")).to_have_text(caption[-1])
    page.locator("#brush").focus()
    page.keyboard.press("Enter")
    for key in ("ArrowLeft", "ArrowUp", " "):
        page.keyboard.press(key)
    expect(page.locator(".reading")).to_have_count(2)
    expect(page.locator("#erase-result")).to_contain_text("The caption")


def test_a_phone_needs_no_sideways_scrolling(open_page):
    page = open_page(PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
    expect(page.get_by_text("Take a photo")).to_be_visible()
    caption = upload(page)
    word(page, 7).tap()
    map_pixels(page, "lrp", caption[7])
    all_explained(page)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"]
    for target in page.locator("button:visible, .choices label:visible").all():
        box = target.bounding_box()
        assert box is None or box["height"] >= 22, target.inner_text()
    page.evaluate("window.scrollTo({top: 0, behavior: 'instant'})")
    shoot(page, "web-phone")


def test_the_page_has_a_dark_side(open_page):
    page = open_page(color_scheme="dark")
    caption = upload(page, "woman_dog.jpg")
    all_explained(page)
    word(page, caption.index("dog")).click()
    map_pixels(page, "lrp", "dog")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    shoot(page, "web-dark")


def test_two_models_stand_side_by_side(open_page, two_models):
    page = open_page(address=two_models)
    caption = upload(page)
    assert page.locator("select[name=compare] option").all_inner_texts() == ["no other model", "second"]
    page.locator("select[name=compare]").select_option("second")
    expect(page.locator(".reading .label")).to_have_text(["first", "second"])
    all_explained(page, 0)
    all_explained(page, 1)
    other = words(page, 1)
    assert (words(page, 0), other == caption) == (caption, False)
    left, right = (page.locator(".reading").nth(row).bounding_box() for row in (0, 1))
    assert left["y"] == right["y"]
    word(page, 2, row=1).click()
    map_pixels(page, "lrp", other[2])
    expect(page.locator("#word-of")).to_have_text("second")
    page.locator("#remove").click()  # of the model whose word is chosen
    expect(page.locator(".reading .label")).to_have_text(["With the whole picture", "With the grey part erased"])
    assert words(page, 0) == other
    page.locator("#restore").click()
    expect(page.locator(".reading .label")).to_have_text(["first", "second"])


def test_settings_and_an_own_caption(open_page):
    page = open_page()
    upload(page)
    page.get_by_text("Settings, and your own caption").click()
    page.locator("#own-caption").fill("a dog on a surfboard")
    page.get_by_role("button", name="Explain it").click()
    expect(page.locator(".reading .label")).to_have_text("Your caption")
    all_explained(page)
    assert words(page) == ["a", "dog", "on", "a", "surfboard"]
    expect(word(page, 0)).to_be_in_viewport()
    expect(page.locator("#settings-result")).to_have_text("“a dog on a surfboard”")
    page.locator("#own-caption").fill("a zyzzyva on a surfboard")
    page.get_by_role("button", name="Explain it").click()
    expect(page.get_by_role("alert")).to_contain_text("'zyzzyva' is not in the model's vocabulary")
    assert words(page) == ["a", "dog", "on", "a", "surfboard"]  # what was shown stays
    with page.expect_response("**/api/caption") as answered:
        page.locator("select[name=style]").select_option("flickr8k")
    assert answered.value.status == 200


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("notes.txt", b"Dear diary", "notes.txt: not an image in a known format"),
        ("empty.jpg", b"", "empty.jpg is empty"),
        ("huge.png", bytes(25_000_000), "huge.png has 25 MB, and the limit is 20 MB"),
    ],
)
def test_a_file_that_is_no_picture_is_called_so(open_page, tmp_path, name, content, message):
    page = open_page()
    (tmp_path / name).write_bytes(content)
    page.set_input_files("#file", tmp_path / name)
    expect(page.get_by_role("alert")).to_contain_text(message)
    expect(page.locator("#start")).to_be_visible()
    expect(page.locator("#work")).to_be_hidden()
    upload(page)  # the page goes on
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_picture_that_the_browser_cannot_show_is_explained_in_its_shape(open_page, tmp_path):
    with Image.open(IMAGES / "surfer_wave.jpg") as photo:
        photo.save(tmp_path / "surfer.tiff")
        shape = photo.width / photo.height
    page = open_page()
    page.set_input_files("#file", tmp_path / "surfer.tiff")
    page.wait_for_selector("body[data-state=captioned]")
    expect(page.get_by_text("cannot show files of this kind")).to_be_visible()
    expect(page.locator("#picture")).to_be_hidden()
    box = page.locator("#viewer").bounding_box()
    assert box is not None
    assert box["width"] / box["height"] == pytest.approx(shape, rel=0.01)


def test_a_picture_unlike_the_training_photographs_is_called_so(open_page):
    page = open_page()
    upload(page, "rocket.jpg")
    expect(page.get_by_text("unlike the photographs")).to_be_visible()
    upload(page, "surfer_wave.jpg")
    expect(page.get_by_text("unlike the photographs")).to_be_hidden()


def test_downloads(open_page):
    page = open_page()
    upload(page)
    for button, suffix in (("Numbers (JSON)", ".json"), ("Figure (PNG)", ".png"), ("Report (HTML)", ".html")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=button).click()
        assert saved.value.suggested_filename == f"surfer-wave-why{suffix}" or suffix == ".json"
        assert Path(saved.value.path()).stat().st_size > 1000


def test_a_busy_server_is_asked_again(open_page):
    page = open_page()
    busy = []

    def refuse_once(route: Any) -> None:
        if busy:
            route.continue_()
        else:
            busy.append(route.request.url)
            route.fulfill(status=503, headers={"retry-after": "1"}, json={"error": "busy"})

    page.route("**/api/caption", refuse_once)
    page.set_input_files("#file", IMAGES / "cat.jpg")
    expect(page.locator("#busy")).to_have_text("The server is busy, waiting …")
    page.wait_for_selector("body[data-state=captioned]")
    expect(page.locator("#error")).to_be_hidden()


def test_an_image_that_the_server_forgot_is_sent_again(open_page):
    page = open_page()
    caption = upload(page)
    forgotten = []

    def forget(route: Any) -> None:
        if b'name="image_id"' in (route.request.post_data_buffer or b""):
            forgotten.append(route.request.url)
            route.fulfill(status=410, json={"error": "not kept any more"})
        else:
            route.continue_()

    page.route("**/api/explain", forget)
    word(page, 3).click()
    map_pixels(page, "lrp", caption[3])
    page.locator(".alternative").first.click()
    expect(page.locator("#word")).to_contain_text(", not ")
    assert forgotten


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_no_serious_problem(open_page, scheme, viewport):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python").Axe()
    page = open_page(viewport, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce")
    problems = _serious(axe.run(page))
    upload(page)
    all_explained(page)
    page.get_by_text("Settings, and your own caption").click()
    page.locator("#remove").click()
    expect(page.locator("#erase-result")).to_contain_text("The caption")
    all_explained(page, 1)
    problems += _serious(axe.run(page))
    page.goto(page.url + "docs")
    page.wait_for_selector("#endpoints section")
    assert problems + _serious(axe.run(page)) == []


def _serious(results: Any) -> list[str]:
    return [
        f"{violation['id']}: {violation['nodes'][0]['html'][:200]}"
        for violation in results.response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
