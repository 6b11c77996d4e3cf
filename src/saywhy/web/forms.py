"""The fields of requests, as FastAPI reads and documents them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import File, Form, UploadFile

from saywhy.errors import UserError
from saywhy.web.pictures import Upload

NO_IMAGE = "send an image: a file in the multipart field image, or the image_id of an earlier answer"


class PictureForm:
    """The picture of a request."""

    def __init__(
        self,
        image: Annotated[UploadFile | None, File(description="The image file, for example a JPEG or PNG.")] = None,
        image_id: Annotated[
            str | None, Form(max_length=64, description="In place of image: the image_id of an earlier answer.")
        ] = None,
        erase: Annotated[
            UploadFile | None,
            File(description="A PNG over the whole image, white where the image is erased by the mean colour."),
        ] = None,
        model: Annotated[
            str | None, Form(max_length=200, description="The name of a served model; the first one by default.")
        ] = None,
    ) -> None:
        self.image, self.image_id, self.erase, self.model = image, image_id, erase, model

    async def upload(self) -> Upload | str:
        """The image, or the id of one that was sent before."""
        if self.image is not None:
            return Upload.of(await self.image.read(), self.image.filename or "")
        if not self.image_id:
            raise UserError(NO_IMAGE)
        return self.image_id

    async def erased(self) -> bytes:
        """The mask; empty without one."""
        return b"" if self.erase is None else await self.erase.read()


class DecodingForm:
    """How a caption is decoded."""

    def __init__(
        self,
        style: Annotated[str | None, Form(max_length=80, description="The style, of a model with several.")] = None,
        beam: Annotated[int | None, Form(ge=1, description="The beam width.")] = None,
        guidance: Annotated[
            float | None, Form(ge=0, le=10, description="Above 1: more specific to the image. 1 turns it off.")
        ] = None,
        sample: Annotated[bool, Form(description="Sample words in place of beam search.")] = False,
        temperature: Annotated[float, Form(ge=0.1, le=5, description="Of sampling.")] = 1.0,
        seed: Annotated[int, Form(ge=0, le=2**31, description="Of sampling.")] = 0,
    ) -> None:
        self.style, self.beam, self.guidance = style, beam, guidance
        self.sample, self.temperature, self.seed = sample, temperature, seed

    def changes(self) -> dict[str, Any]:
        """The settings of `saywhy.decoding.Decoding` that differ from the model's."""
        if self.sample and self.beam is not None:
            raise UserError("beam is for beam search, sample replaces it: give one or the other")
        if not self.sample and (self.temperature, self.seed) != (1.0, 0):
            raise UserError("temperature and seed are for sampling: add sample=true")
        given = {"style": self.style, "beam": self.beam, "guidance": self.guidance}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.sample:
            changes |= {"method": "sample", "temperature": self.temperature, "seed": self.seed}
        return changes


class TargetForm:
    """What is explained."""

    def __init__(
        self,
        caption: Annotated[
            str | None, Form(max_length=1000, description="Explain this caption; by default the model's own.")
        ] = None,
        position: Annotated[
            int | None, Form(ge=1, le=1000, description="Explain only the word at this position, from 1.")
        ] = None,
        word: Annotated[
            str | None, Form(max_length=80, description="Explain this word at the position, in place of the caption's.")
        ] = None,
        contrast: Annotated[
            str | None, Form(max_length=80, description="Explain why not this word, at the position.")
        ] = None,
        methods: Annotated[
            str,
            Form(max_length=200, description="Methods, separated by commas; lrp and attention are always included."),
        ] = "lrp,attention",
    ) -> None:
        self.caption, self.position, self.word, self.contrast = caption, position, word, contrast
        self.methods = [name.strip() for name in methods.split(",") if name.strip()]
        if position is None and (word is not None or contrast is not None):
            raise UserError("word and contrast need a position, from 1")
