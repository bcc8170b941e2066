"""Texts written for this program and photographs under free licences. Needs the standard library alone.

Each sample has a short ``id`` that stands in links, so an id never changes its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PICTURES = Path(__file__).resolve().parent / "sample_pictures"
"""Folder of the photographs; CREDITS.md in it says whose they are and what was changed."""

CORPUS = Path(__file__).resolve().parent / "sample_corpus.txt"
"""Sentences written for this program, one a line: what heads do is to be seen over many."""


@dataclass(frozen=True)
class TextSample:
    """A sentence or a pair.

    Attributes:
        id: what links call it.
        title: what the interface calls it.
        text: the sentence; ``pair`` the second one, or None.
        note: what may be looked for.
    """

    id: str
    title: str
    text: str
    pair: str | None
    note: str


@dataclass(frozen=True)
class PictureSample:
    """A photograph.

    Attributes:
        id: what links call it.
        title: what the interface calls it.
        file: name in ``PICTURES``.
        licence, credit, source: under which terms, whose it is, and where it comes from.
    """

    id: str
    title: str
    file: str
    licence: str
    credit: str
    source: str


_LONG = (
    "The lighthouse keeper had counted the steps so often that he no longer noticed them. There were two "
    "hundred and eleven, worn hollow in the middle, and every evening he climbed them with a can of oil in "
    "one hand and a book in the other. From the gallery he could see the harbour, the white houses that "
    "leaned against the hill, and the long road on which the post van came twice a week. His sister wrote to "
    "him from the city. She told him about trams and theatres, about a neighbour who kept pigeons on the "
    "roof, and about the river, which had flooded the lower streets again. He answered that the sea had also "
    "been high, that nobody had been hurt, and that the new lamp, although it was brighter than the old one, "
    "made a sound like a kettle when it turned. In winter the letters grew longer. Then, one morning in "
    "March, the van brought not a letter but the sister herself, with two suitcases and a cage in which a "
    "single pigeon sat. The keeper carried the suitcases up the hill, because she would not let anyone else "
    "carry the cage. That night they climbed the steps together, and at the top she asked him how many there "
    "were. He opened his mouth to answer, found that he had lost count, and laughed for the first time in a "
    "year. The pigeon slept through all of it, and the lamp turned above them, and the ships that passed far "
    "out saw nothing but the light."
)

_CALTECH = "authors of Caltech-101"

TEXT_SAMPLES: tuple[TextSample, ...] = (
    TextSample(
        "plain",
        "A plain sentence",
        "The cat slept on the warm windowsill while the rain drummed on the roof.",
        None,
        "Which heads look at the next or the previous token, and which at the separators?",
    ),
    TextSample(
        "coreference",
        "What does “it” stand for?",
        "The violin would not go into the case because it was too wide.",
        None,
        "“it” may stand for the violin or for the case. Pin it and go through the layers.",
    ),
    TextSample(
        "bank",
        "One word, two meanings",
        "She sat on the bank of the river and thought about the bank that had refused her loan.",
        None,
        "The same token occurs twice with two meanings: compare the rows of both.",
    ),
    TextSample(
        "negation",
        "Negation",
        "The film was not bad at all, but I would never call it good.",
        None,
        "What do “not” and “never” reach?",
    ),
    TextSample(
        "praise",
        "Praise",
        "A tender, funny and quietly devastating film, carried by two wonderful actors.",
        None,
        "Which words does a sentiment classifier rest on?",
    ),
    TextSample(
        "turn",
        "A turn in the middle",
        "The first half is dull and the jokes fall flat, yet the ending is so moving that I forgave everything.",
        None,
        "Both halves speak against each other; “yet” decides.",
    ),
    TextSample(
        "irony",
        "Irony",
        "Two and a half hours of people staring at rain, just what I needed after a long day.",
        None,
        "No word of it is negative. What does a classifier say?",
    ),
    TextSample(
        "agreement",
        "Agreement over a distance",
        "The keys to the old wooden cabinet in the narrow hallway are missing.",
        None,
        "“are” agrees with “keys”, eight words earlier, and not with the nearer nouns.",
    ),
    TextSample(
        "entailment",
        "Pair: one follows from the other",
        "A man is playing the guitar on a small stage.",
        "Someone is making music.",
        "Filter A → B and B → A: which words of one sentence look at which of the other?",
    ),
    TextSample(
        "contradiction",
        "Pair: a contradiction",
        "The restaurant was empty when we arrived at noon.",
        "All the tables were taken when we came for lunch.",
        "“empty” against “taken”, “noon” against “lunch”.",
    ),
    TextSample(
        "question",
        "Pair: question and answer",
        "Who repaired the clock in the church tower?",
        "The old clock had stood still for years until a young engineer from Bern repaired it in June.",
        "A question word and its answer.",
    ),
    TextSample(
        "german",
        "German",
        "Der Hund, den das Mädchen gestern im Park gesehen hat, bellte so laut, dass alle stehen blieben.",
        None,
        "An English vocabulary cuts German words into many pieces. Merge them into words.",
    ),
    TextSample(
        "french",
        "French",
        "L'élève naïve a mangé une crème brûlée à côté de la forêt.",
        None,
        "Accents and an apostrophe inside a word.",
    ),
    TextSample(
        "arabic",
        "Arabic",
        "قرأت الطالبة الكتاب الذي اشترته من المكتبة القديمة.",
        None,
        "Right-to-left text. Tokens stand in the model's order.",
    ),
    TextSample(
        "chinese",
        "Chinese",
        "小猫睡在窗台上，因为那里很暖和。",
        None,
        "No spaces: each character is a word of its own.",
    ),
    TextSample(
        "hindi",
        "Hindi",
        "लड़की ने वह किताब पढ़ी जो उसके भाई ने उसे दी थी।",
        None,
        "Marks that combine with the letter before them.",
    ),
    TextSample(
        "code",
        "Signs that look like markup",
        "if a<b<c: print('</script>') <!-- shown as typed --> & \"quoted\"",
        None,
        "Shown literally everywhere.",
    ),
    TextSample(
        "emoji",
        "An emoji glued to a word",
        "Great😀 work, see you tomorrow👩‍💻!",
        None,
        "What the vocabulary does not hold is shown as typed and marked as unknown.",
    ),
    TextSample(
        "long",
        "A long text",
        _LONG,
        None,
        "Some three hundred tokens: begin with the model view, then open a head.",
    ),
)

PICTURE_SAMPLES: tuple[PictureSample, ...] = (
    PictureSample(
        "cat",
        "Cat",
        "cat.jpg",
        "CC0 1.0",
        "Stéfan van der Walt",
        "chelsea.png of scikit-image",
    ),
    PictureSample(
        "coffee",
        "Coffee cup",
        "coffee.jpg",
        "CC0 1.0",
        "Rachel Michetti, courtesy of Pikolo Espresso Bar",
        "coffee.png of scikit-image",
    ),
    PictureSample(
        "astronaut",
        "Astronaut Eileen Collins",
        "astronaut.jpg",
        "Public domain",
        "NASA",
        "https://flic.kr/p/r9qvLn",
    ),
    PictureSample(
        "rocket",
        "Rocket on its launch pad",
        "rocket.jpg",
        "Public domain",
        "SpaceX",
        "https://www.flickr.com/photos/spacexphotos/16511594820/",
    ),
    PictureSample(
        "temple",
        "Temple in China",
        "temple.jpg",
        "CC BY 2.0",
        "danielbuechele on Flickr",
        "https://www.flickr.com/photos/danielbuechele/6061409035/",
    ),
    PictureSample(
        "flower",
        "Dahlia",
        "flower.jpg",
        "CC BY 2.0",
        "vultilion on Flickr",
        "https://www.flickr.com/photos/vultilion/6056698931/",
    ),
    PictureSample(
        "elephant",
        "Elephant",
        "elephant.jpg",
        "CC BY 4.0",
        _CALTECH,
        "elephant/image_0031.jpg of Caltech-101",
    ),
    PictureSample(
        "helicopter",
        "Helicopter",
        "helicopter.jpg",
        "CC BY 4.0",
        _CALTECH,
        "helicopter/image_0015.jpg of Caltech-101",
    ),
    PictureSample(
        "elephantdog",
        "Elephant and Dalmatian",
        "elephant-dalmatian.jpg",
        "CC BY 4.0",
        _CALTECH,
        "elephant/image_0043.jpg and dalmatian/image_0059.jpg of Caltech-101",
    ),
    PictureSample(
        "flamingoroo",
        "Flamingo and kangaroo",
        "flamingo-kangaroo.jpg",
        "CC BY 4.0",
        _CALTECH,
        "flamingo/image_0033.jpg and kangaroo/image_0038.jpg of Caltech-101",
    ),
)


def text_sample(sample_id: str) -> TextSample:
    """The text sample of that id.

    Raises:
        ValueError: if there is none.
    """
    for sample in TEXT_SAMPLES:
        if sample.id == sample_id:
            return sample
    known = ", ".join(sample.id for sample in TEXT_SAMPLES)
    raise ValueError(f"text_sample: sample_id must be one of {known} but is {sample_id!r}.")


def picture_sample(sample_id: str) -> PictureSample:
    """The photograph of that id.

    Raises:
        ValueError: if there is none.
    """
    for sample in PICTURE_SAMPLES:
        if sample.id == sample_id:
            return sample
    known = ", ".join(sample.id for sample in PICTURE_SAMPLES)
    raise ValueError(f"picture_sample: sample_id must be one of {known} but is {sample_id!r}.")


def sample_picture_bytes(sample_id: str) -> bytes:
    """The file of the photograph of that id.

    Raises:
        ValueError: if there is none.
    """
    return (PICTURES / picture_sample(sample_id).file).read_bytes()


def sample_corpus() -> tuple[str, ...]:
    """The sentences of the sample corpus."""
    return tuple(CORPUS.read_text(encoding="utf-8").splitlines())
