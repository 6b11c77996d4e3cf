"""The interface for programs: captions, explanations, masks, downloads."""

from __future__ import annotations

import base64
import io
import json
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saywhy.data.images import to_image
from saywhy.explain.word_by_word import WordByWord
from saywhy.viz.drawing import map_maximum
from saywhy.viz.explanation_page import drawn_map
from web_photos import photo

NDJSON = {"accept": "application/x-ndjson"}


def post(client: Any, path: str, number: int = 0, **fields: Any) -> Any:
    response = client.post(path, files={"image": ("photo.png", photo(number), "image/png")}, data=fields)
    assert response.status_code == 200, response.text
    return response


def events(client: Any, path: str, seed: int = 0, **fields: Any) -> list[dict[str, Any]]:
    response = client.post(path, files={"image": ("photo.png", photo(seed))}, data=fields, headers=NDJSON)
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def grey(answer: dict[str, Any]) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["png"]))))


def test_a_caption_equals_that_of_the_model(client, models):
    answer = post(client, "/api/caption", number=3).json()
    expected = models[0].caption(to_image(photo(3)))
    assert answer["caption"] == expected.text
    assert [word["word"] for word in answer["words"]] == list(expected.words)
    assert answer["words"][0]["logprob"] == pytest.approx(expected.logprobs[0], abs=1e-4)
    assert (answer["model"], answer["size"], answer["crop"]) == ("first", [96, 64], [0, 0, 1, 1])


def test_settings_change_the_caption_as_they_do_for_the_model(client, models):
    image = to_image(photo(1))
    for fields, options in [
        ({"beam": 4}, {"beam": 4}),
        ({"guidance": 3}, {"guidance": 3.0}),
        ({"sample": True, "seed": 5}, {"method": "sample", "seed": 5}),
        ({"sample": True, "temperature": 3}, {"method": "sample", "temperature": 3.0}),
    ]:
        assert (
            post(client, "/api/caption", number=1, **fields).json()["caption"]
            == models[0].caption(image, **options).text
        )


def test_the_named_model_answers(client, models):
    captions = {model.name: model.caption(to_image(photo(2))).text for model in models}
    assert len(set(captions.values())) == 2
    assert {name: post(client, "/api/caption", number=2, model=name).json()["caption"] for name in captions} == captions


def test_an_image_is_sent_once(client):
    first = post(client, "/api/caption").json()
    again = client.post("/api/caption", data={"image_id": first["image_id"]}).json()
    assert again == {**first}


def test_an_image_that_is_not_kept_any_more_has_to_be_sent_again(small_client):
    first = post(small_client, "/api/caption", number=0).json()["image_id"]
    post(small_client, "/api/caption", number=1)
    response = small_client.post("/api/caption", data={"image_id": first})
    assert response.status_code == 410
    assert "send the image again" in response.json()["error"]


def test_words_are_streamed_before_the_caption(client):
    streamed = events(client, "/api/caption")
    kinds = [event["event"] for event in streamed]
    assert kinds[-2:] == ["caption", "end"]
    prefixes = [event["words"] for event in streamed if event["event"] == "prefix"]
    assert [len(words) for words in prefixes] == list(range(1, len(prefixes) + 1))
    assert len(prefixes) >= 3


def test_an_explanation_has_the_numbers_and_maps_of_the_model(client, models):
    answer = post(client, "/api/explain", number=4).json()
    expected = models[0].explain(to_image(photo(4)), methods=("lrp", "attention"))
    assert answer["caption"] == expected.caption
    for k, (word, other) in enumerate(zip(answer["words"], expected.words, strict=True)):
        assert word["budget"]["image"] == pytest.approx(other.budget.image, rel=1e-3, abs=1e-4)
        assert word["image_share"] == pytest.approx(other.budget.image_share, abs=1e-3)
        assert len(word["alternatives"]) == 5
        values = drawn_map(expected, k, "lrp")
        given = answer["maps"]["lrp"][k]
        assert given["maximum"] == pytest.approx(map_maximum(values), rel=1e-3)
        signs = np.sign(grey(given).astype(int) - 127)
        strong = np.abs(values) > 0.3 * np.abs(values).max()
        assert (signs[strong] == np.sign(values[strong])).all()


def test_words_of_an_explanation_are_streamed_in_order_with_their_maps(client):
    streamed = events(client, "/api/explain", methods="lrp-apart,gradcam")
    begin, *words, apart, gradcam, end = streamed
    assert begin["event"] == "begin"
    assert [event["index"] for event in words] == list(range(len(begin["words"])))
    assert all(set(event["maps"]) == {"lrp", "attention"} for event in words)
    assert [(apart["method"], gradcam["method"]), end["event"]] == [("lrp-apart", "gradcam"), "end"]
    assert len(apart["maps"]) == len(gradcam["maps"]) == len(words)


def test_a_position_alone_is_answered_by_that_word_alone(client, models):
    fields = {"caption": "word0 word1 word2", "position": 2}
    answer = post(client, "/api/explain", methods="gradcam", **fields).json()
    (expected,) = models[0].explain(to_image(photo(0)), methods=("lrp",), **fields).words
    (word,) = answer["words"]
    assert (word["word"], word["position"]) == ("word1", 1)
    assert word["score"] == pytest.approx(expected.score, rel=1e-3, abs=1e-4)
    assert {method: len(maps) for method, maps in answer["maps"].items()} == {"lrp": 1, "gradcam": 1, "attention": 1}


def test_one_word_of_a_given_caption_is_explained(client):
    (begin, word, end) = events(client, "/api/explain", caption="word0 word1 word2", position=2)
    assert begin["words"] == ["word0", "word1", "word2"]
    assert (word["word"], word["index"], word["position"]) == ("word1", 1, 1)
    assert end["event"] == "end"


def test_a_contrast_is_explained(client, models):
    fields = {"caption": "word0 word1 word2", "position": 2, "contrast": "word4"}
    _, word, _ = events(client, "/api/explain", **fields)
    (expected,) = models[0].explain(to_image(photo(0)), methods=("lrp",), **fields).words
    assert word["contrast"] == "word4"
    assert word["score"] == pytest.approx(expected.score, rel=1e-3, abs=1e-4)
    assert word["score"] == pytest.approx(sum(word["budget"].values()), rel=1e-3, abs=1e-3)


def white(size: tuple[int, int], box: tuple[int, int, int, int]) -> bytes:
    mask, buffer = Image.new("L", size), io.BytesIO()
    mask.paste(255, box)
    mask.save(buffer, "PNG")
    return buffer.getvalue()


def test_what_is_erased_is_grey_for_the_model(client, models):
    mask = white((12, 8), (0, 0, 12, 8))
    files = {"image": ("photo.png", photo(5)), "erase": ("mask.png", mask)}
    erased = client.post("/api/caption", files=files).json()
    plain = np.broadcast_to(np.array((124, 116, 104), np.uint8), (64, 96, 3))
    assert erased["caption"] == models[0].caption(plain).text
    assert erased["caption"] != post(client, "/api/caption", number=5).json()["caption"]


def test_half_a_mask_erases_half_of_the_encoder_input(client, models):
    from saywhy.web.limits import Limits
    from saywhy.web.pictures import Upload, prepare

    upload, geometry = Upload.of(photo(6), "photo.png"), models[0].preprocessing
    whole = prepare(upload, geometry, Limits())
    half = prepare(upload, geometry, Limits(), white((96, 64), (0, 0, 48, 64)))
    changed = (whole.pixels != half.pixels).any(dim=0).float()
    assert changed[:, :31].mean() > 0.95
    assert changed[:, 33:].mean() == 0
    assert half.key != whole.key
    assert tuple(np.asarray(half.image)[32, 10]) == (124, 116, 104)


def test_the_patches_of_a_word_are_where_its_map_is_highest(client, models):
    fields = {"caption": "word0 word1 word2", "position": 3}
    answer = post(client, "/api/patches", number=7, patches=4, **fields).json()
    assert (answer["patches"], answer["of"]) == (4, 64)
    mask = grey({"png": answer["mask"]}) > 0
    assert mask.shape[1] / mask.shape[0] == pytest.approx(96 / 64, rel=0.02)
    assert mask.mean() == pytest.approx(4 / 64, rel=0.15)
    explanation = models[0].explain(to_image(photo(7)), methods=("lrp",), **fields)
    values = explanation.map(0, "lrp", size=(mask.shape[1], mask.shape[0]))
    assert values[mask].mean() > 3 * values[~mask].mean()


def test_downloads_are_the_files_of_saywhy_explain(client):
    report = post(client, "/api/report", number=8)
    assert report.headers["content-type"].startswith("text/html")
    assert report.headers["content-disposition"] == 'attachment; filename="photo-why.html"'
    assert "<!doctype html>" in report.text
    assert '"id": "guided-gradcam"' in report.text
    figure = post(client, "/api/figure", number=8)
    assert Image.open(io.BytesIO(figure.content)).format == "PNG"
    numbers = post(client, "/api/explain", number=8, maps=False).json()
    assert "maps" not in numbers
    assert numbers["format"] == 2


def test_equal_images_of_two_clients_keep_their_names(client):
    for name in ("mine.png", "yours.png"):
        files = {"image": (name, photo(9))}
        response = client.post("/api/figure", files=files, data={"caption": "word0 word1"})
        assert name.replace(".", "-why.") in response.headers["content-disposition"]


def test_answers_are_as_the_openapi_document_describes_them(client):
    from saywhy.web import schemas

    for path, fields, model in [
        ("/api/caption", {"risk": True}, schemas.CaptionAnswer),
        ("/api/explain", {}, schemas.ExplainAnswer),
        ("/api/explain", {"caption": "word0 word1", "position": 2, "contrast": "word3"}, schemas.ExplainAnswer),
        ("/api/patches", {"caption": "word0 word1", "position": 2}, schemas.PatchesAnswer),
    ]:
        model.model_validate(post(client, path, **fields).json())
    schemas.HealthAnswer.model_validate(client.get("/healthz").json())
    document = client.get("/openapi.json").json()
    for path in ("/api/caption", "/api/explain", "/api/patches", "/api/report", "/api/figure"):
        responses = document["paths"][path]["post"]["responses"]
        assert {"200", "410", "413", "415", "422", "503"} <= set(responses)
        assert responses["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorAnswer")
    assert "application/x-ndjson" in document["paths"]["/api/explain"]["post"]["responses"]["200"]["content"]
    assert set(document["paths"]["/api/figure"]["post"]["responses"]["200"]["content"]) == {"image/png"}


def test_models_health_and_reference(client):
    names = [model["name"] for model in client.get("/api/models").json()]
    assert names == ["first", "second"]
    assert client.get("/healthz").json()["status"] == "ok"
    schema = client.get("/openapi.json").json()
    assert {"/api/caption", "/api/explain", "/api/models", "/healthz"} <= set(schema["paths"])
    described = schema["components"]["schemas"]["Body_caption_api_caption_post"]["properties"]
    assert all(field.get("description") for field in described.values())


def test_pages_and_their_files_need_no_other_site(client):
    page = client.get("/").text
    assert client.get("/docs").status_code == 200
    assert "http://" not in page
    assert "https://" not in page
    for name in ("app.js", "style.css", "icon.svg", "docs.js"):
        response = client.get(f"/static/{name}")
        assert response.status_code == 200
        assert "https://" not in response.text
    data = client.get("/api/page").json()
    assert len(data["examples"]) == 11
    assert all(client.get(f"/examples/{name}").headers["content-type"] == "image/jpeg" for name in data["examples"])


def test_a_server_that_warms_up_explains_a_word_with_every_model(models, monkeypatch):
    from fastapi.testclient import TestClient

    from saywhy.web.app import create_app

    explained = Counter[str]()
    explain = WordByWord.explain

    def counted(self: WordByWord, k: int):
        explained[self.details["model"]] += 1
        return explain(self, k)

    monkeypatch.setattr(WordByWord, "explain", counted)
    with TestClient(create_app(models, warm_up=True), base_url="http://127.0.0.1:8000") as client:
        deadline = time.monotonic() + 60
        while set(explained) != {model.name for model in models}:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert client.get("/healthz").status_code == 200
    assert set(explained.values()) == {1}
