"""Long texts: documents in windows against a dense merge, sliding windows as rules, 8,192 tokens in one pass."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import masking_utils

import tests.input_helpers as tiny
from analysis.catalogue import MINILM, is_installed
from analysis.evidence.document import explain_document
from analysis.evidence.methods import explain
from analysis.evidence.passes import forward_pass
from analysis.evidence.targets import class_logit
from analysis.figure_data import TokenLabel
from analysis.hf.rule_masks import band_of, rule_mask
from analysis.inputs import encode_text
from analysis.models import LoadedModel
from analysis.reading import encode_document
from attn_core.factored import FactoredMap
from dashboard import text_reading
from dashboard.document_places import part_of, places_of
from dashboard.selection import TextReading
from tests.capture_helpers import captured
from tests.test_app import let_nothing_start, opened, shown
from tests.tiny_models import ARCHITECTURES

REPOSITORY = Path(__file__).parent.parent

# Sliding windows of the library as rules ---------------------------------------------------------------------------


def _both(*functions: Callable[..., Any]) -> Callable[..., Any]:
    return masking_utils.and_masks(*functions)


KNOWN = {
    "causal": (masking_utils.causal_mask_function, True, None),
    "bidirectional": (masking_utils.bidirectional_mask_function, False, None),
    "causal window": (masking_utils.sliding_window_causal_mask_function(3), True, 3),
    "window of one": (masking_utils.sliding_window_causal_mask_function(1), True, 1),
    "both ways": (masking_utils.sliding_window_bidirectional_mask_function(2), False, 3),
    "itself alone": (masking_utils.sliding_window_bidirectional_mask_function(0), False, 1),
    "nested": (
        _both(masking_utils.sliding_window_causal_mask_function(5), masking_utils.causal_mask_function),
        True,
        5,
    ),
    "causal and both ways": (
        _both(masking_utils.sliding_window_bidirectional_overlay(2), masking_utils.causal_mask_function),
        True,
        3,
    ),
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize(("queries", "keys", "start"), [(9, 9, 0), (3, 9, 6), (1, 7, 6), (9, 9, 4)])
def test_a_known_mask_becomes_a_rule_that_allows_the_same_pairs(
    name: str, queries: int, keys: int, start: int
) -> None:
    """``start``: the queries' first position; in the last case key and query positions are counted from 4."""
    function, causal, window = KNOWN[name]
    key_start = start if queries == keys else 0
    valid = torch.ones(2, keys + key_start, dtype=torch.long)
    valid[1, -1] = 0
    mask = rule_mask(2, queries, keys, start, key_start, function, valid)
    assert mask is not None
    rule = mask.rule
    assert (rule.causal, rule.window, rule.predicate) == (causal, window, None)
    items, rows, columns = torch.arange(2), torch.arange(queries), torch.arange(keys)
    expected = (
        function(items[:, None, None], None, rows[None, :, None] + start, columns[None, None] + key_start)
        & valid[:, None, key_start:].bool()
    )
    assert torch.equal(mask.written_out()[:, 0], expected.expand(2, queries, keys))


def _other(_: Any, __: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key <= query


@pytest.mark.parametrize(
    "function",
    [
        _other,
        masking_utils.sliding_window_overlay(3),  # alone it allows every later key
        masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long)),
        masking_utils.or_masks(masking_utils.causal_mask_function, _other),
        _both(
            masking_utils.causal_mask_function, masking_utils.padding_mask_function(torch.ones(2, 9).bool())
        ),
    ],
)
def test_any_other_mask_stays_the_function_that_it_is(function: Callable[..., Any]) -> None:
    assert band_of(function) is None
    mask = rule_mask(2, 9, 9, 0, 0, function, None)
    assert mask is not None
    assert mask.rule.predicate is not None


def test_a_mask_that_is_not_aligned_with_the_last_key_stays_a_function() -> None:
    """A static cache has room behind the query: the rule's diagonal would lie elsewhere."""
    mask = rule_mask(1, 2, 9, 3, 0, masking_utils.sliding_window_causal_mask_function(3), None)
    assert mask is not None
    assert mask.rule.predicate is not None
    rows, columns = torch.arange(2)[:, None] + 3, torch.arange(9)
    assert torch.equal(mask.written_out()[0, 0], (columns <= rows) & (columns > rows - 3))


def test_a_library_that_means_something_else_by_a_window_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rule is compared with the function, so a changed edge is seen."""
    from analysis.hf import rule_masks

    def wider(sliding_window: int) -> Callable[..., Any]:
        def inner(_: Any, __: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return key >= query - sliding_window

        return inner

    monkeypatch.setattr(rule_masks, "_SLIDING", wider(1).__code__)
    assert band_of(masking_utils.and_masks(wider(3), masking_utils.causal_mask_function)) is None


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("ModernBERT", {None, 4}),
        ("Mistral", {4}),
        ("Gemma 2", {None, 4}),
        ("Qwen 3", {None, 5}),
    ],
)
def test_sliding_layers_of_models_are_captured_as_windows(name: str, windows: set[int | None]) -> None:
    architecture = next(each for each in ARCHITECTURES if each.name == name)
    trace, _ = captured(architecture.build(), architecture.batch().tensors)
    maps = trace.encoder + trace.decoder
    assert all(isinstance(layer, FactoredMap) for layer in maps)
    assert {layer.rule.window for layer in maps} == windows
    assert all(layer.rule.predicate is None for layer in maps)


# Long context in one pass ------------------------------------------------------------------------------------------

LONG_CONTEXT = """
    import torch
    from analysis.hf.attention import capture
    from analysis.rollout import rollout_row
    from benchmarks.measure import extra_memory
    from tests.tiny_models import ARCHITECTURES

    length = 8192
    ids = torch.randint(3, 99, (1, length), generator=torch.Generator().manual_seed(0))

    def one_pass(module, ids):
        with torch.no_grad(), capture(module) as trace:
            module(input_ids=ids)
        return [layer.item(0) for layer in trace.encoder + trace.decoder]

    for name in ("ModernBERT", "Llama"):
        architecture = next(each for each in ARCHITECTURES if each.name == name)
        module = architecture.build(max_position_embeddings=length, num_hidden_layers=2)
        one_pass(module, ids[:, :64])
        maps = []
        print(extra_memory(lambda: maps.extend(one_pass(module, ids))))
        assert [layer.shape[2:] for layer in maps] == [(length, length)] * 2
        print(extra_memory(lambda: [layer.pooled(None, 64) for layer in maps]))
        print(extra_memory(lambda: rollout_row(maps, 5000)))
"""


def test_long_context_models_are_captured_without_n_by_n() -> None:
    """8,192 tokens: one n × n map of float32 would be 268 MB, a boolean mask 67 MB."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LONG_CONTEXT)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    grown = [int(line) for line in ran.stdout.split()]
    assert len(grown) == 6
    assert max(grown) < 8192 * 8192, grown


# Evidence over windows ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny.loud_classifier(tmp_path_factory.mktemp("classifier"))


TEXT = " ".join(tiny.SENTENCES)


def test_scores_of_a_document_are_those_of_the_mean_over_its_windows(classifier: LoadedModel) -> None:
    """Input × gradient of the mean logit, by one graph in which the windows share the document's embeddings."""
    inputs = encode_document(classifier, TEXT, window=14, stride=5)
    reading, module = inputs.reading, classifier.module
    assert reading is not None
    table: Any = module.get_input_embeddings()
    embedded = table(inputs.tensors["input_ids"][0]).detach().requires_grad_()  # (N, M)
    logits = [module(inputs_embeds=embedded[held][None]).logits[0, 2] for held in reading.columns]
    (gradient,) = torch.autograd.grad(torch.stack(logits).mean(), embedded)
    expected = (gradient * embedded).sum(-1).detach()
    told: list[float] = []
    found = explain_document("input_x_gradient", classifier, inputs, class_logit(2), progress=told.append)
    assert found.scores.abs().max() > 1e-4
    assert_close(found.scores, expected[found.positions], atol=1e-7, rtol=1e-3)
    assert found.positions.tolist() == list(range(1, len(inputs.tokens or ()) - 1))
    assert found.details["windows"] == len(reading.windows)
    assert found.details["value"] == pytest.approx(float(torch.stack(logits).mean().detach()), abs=1e-5)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_what_ignores_the_target_is_said_by_the_window_that_owns_a_token(classifier: LoadedModel) -> None:
    inputs = encode_document(classifier, TEXT, window=14)
    reading = inputs.reading
    assert reading is not None
    found = explain_document("rollout", classifier, inputs)
    runs = [explain("rollout", forward_pass(classifier, window)) for window in reading.windows]
    for position, score in zip(found.positions.tolist(), found.scores.tolist(), strict=True):
        owner = reading.owner(position)
        assert owner is not None
        place = reading.columns[owner].tolist().index(position)
        inside = runs[owner].positions.tolist().index(place)
        assert score == pytest.approx(float(runs[owner].scores[inside]))


def test_scores_of_a_pair_in_windows(classifier: LoadedModel) -> None:
    """The text that every window has: the sum over the windows for a target, their mean for what ignores it."""
    inputs = encode_document(classifier, "the house", TEXT, window=16)
    reading = inputs.reading
    assert reading is not None
    runs = [forward_pass(classifier, window) for window in reading.windows]
    for method, target, weight in (("input_x_gradient", class_logit(2), 1.0), ("rollout", None, 1.0)):
        found = explain_document(method, classifier, inputs, target)
        each = [explain(method, run, target) for run in runs]
        of_the = [float(one.scores[one.positions.tolist().index(1)]) for one in each]
        assert len(set(of_the)) > 1
        assert float(found.scores[0]) == pytest.approx(weight * sum(of_the) / len(of_the))


def test_a_text_that_goes_in_at_once_is_no_document(classifier: LoadedModel) -> None:
    inputs = encode_document(classifier, "the house")
    with pytest.raises(ValueError, match="must be read in windows but go in at once; use explain"):
        explain_document("saliency", classifier, inputs, class_logit(0))


# Choices of the page -----------------------------------------------------------------------------------------------


def test_how_a_long_text_is_read_can_be_chosen(classifier: LoadedModel) -> None:
    text = TEXT * 4
    whole = encode_document(classifier, text)
    reading = whole.reading
    assert reading is not None

    def encoded(chosen: TextReading) -> Any:
        return text_reading.encode(classifier, text, None, chosen)

    assert encoded(TextReading()).digest == whole.digest
    first = encoded(TextReading("first"))
    assert first.digest == encode_text(classifier, text).digest
    assert first.kept_tokens == 64 < first.total_tokens == whole.total_tokens
    assert encoded(TextReading("alone", alone=2)).digest == reading.windows[2].digest
    assert encoded(TextReading("alone", alone=999)).digest == reading.windows[-1].digest
    finer = encoded(TextReading(stride=10)).reading
    assert (finer.stride, finer.window) == (10, 64)
    assert encoded(TextReading(stride=999)).reading.stride == 62


def test_a_short_text_leaves_nothing_to_choose(classifier: LoadedModel) -> None:
    assert text_reading.long_text("tiny", "the house", None, _model=classifier) is None
    assert text_reading.encode(classifier, "the house", None, TextReading("alone", alone=3)).kept_tokens == 5


def test_the_longer_text_of_a_pair_is_read_in_windows(classifier: LoadedModel) -> None:
    found = text_reading.long_text("tiny", "the house", TEXT * 4, _model=classifier)
    assert found is not None
    assert (found.windowed, found.cut, found.shared) == (
        True,
        1,
        6,
    )  # [CLS] the house . [SEP] and the last [SEP]
    pair = text_reading.encode(classifier, "the house", TEXT * 4, TextReading())
    assert pair.reading is not None
    assert (pair.kept_tokens, len(pair.reading.windows)) == (found.tokens, len(found.starts(TextReading())))
    first = text_reading.encode(classifier, "the house", TEXT * 4, TextReading("first"))
    assert (first.reading, first.kept_tokens, first.total_tokens) == (None, 64, found.tokens)
    alone = text_reading.encode(classifier, "the house", TEXT * 4, TextReading("alone", alone=1))
    assert alone.digest == pair.reading.windows[1].digest
    swapped = text_reading.long_text("tiny", TEXT * 4, "the house", _model=classifier)
    assert swapped is not None
    assert swapped.cut == 0


def test_a_pair_of_two_long_texts_is_cut(classifier: LoadedModel) -> None:
    found = text_reading.long_text("tiny", TEXT * 2, TEXT * 4, _model=classifier)
    assert found is not None
    assert not found.windowed
    pair = text_reading.encode(classifier, TEXT * 2, TEXT * 4, TextReading())
    assert (pair.reading, pair.kept_tokens) == (None, 64)


def test_a_model_that_takes_it_at_once_may_still_read_it_in_windows(tmp_path: Path) -> None:
    options = tiny.BERT | {"max_position_embeddings": 4096}
    tokenizer = tiny.word_piece()
    tokenizer.model_max_length = 4096
    model = tiny.loaded(tmp_path, "BertModel", "BertConfig", tokenizer, **options)
    text = TEXT * 16
    found = text_reading.long_text(model.identity, text, None, _model=model)
    assert found is not None
    assert found.fits
    assert text_reading.encode(model, text, None, TextReading()).reading is None
    read = text_reading.encode(model, text, None, TextReading("windows")).reading
    assert read is not None
    assert (read.window, read.stride) == (512, 255)
    assert len(read.windows) == len(found.starts(TextReading("windows")))


# Places in a long text ---------------------------------------------------------------------------------------------


def _labels(text: str) -> list[TokenLabel]:
    """Words, those that begin with ~ being continuations."""
    words = [
        TokenLabel(word.removeprefix("~"), word, continues=word.startswith("~")) for word in text.split()
    ]
    return [TokenLabel("[CLS]", "[CLS]", special=True), *words, TokenLabel("[SEP]", "[SEP]", special=True)]


@pytest.mark.skipif(not is_installed(MINILM), reason="bundled models are not installed; run make bundled")
def test_the_page_around_a_long_pass_is_there_before_its_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Title, the switch of views and the link, while the pass waits to be started."""
    let_nothing_start(monkeypatch)
    at = opened("text")
    for view in ("head", "rollout"):
        at.button_group(key="text_view").set_value(view).run()
        assert not at.exception
        assert at.query_params["view"] == view
        assert "BERT all-MiniLM-L6-v2" in shown(at)
        assert any("One forward pass over" in element.value for element in at.markdown)
        assert [button.label for button in at.button].count("Compute") == 1


def test_words_are_found_where_they_begin() -> None:
    tokens = _labels("The art of st ~art ~ing : start the ARTS , art")
    assert places_of(tokens, "art") == [2, 10, 12]
    assert places_of(tokens, "starting") == [4]
    assert places_of(tokens, "arts, art") == [10]
    assert places_of(tokens, "Of  Start") == [3]
    assert places_of(tokens, "[CLS]") == places_of(tokens, "  ") == places_of(tokens, "nowhere") == []


@given(st.integers(1, 5000), st.integers(0, 6000))
def test_a_part_holds_the_token_that_is_asked_for(length: int, window: int) -> None:
    part = part_of(length, window)
    assert 0 <= part.start < part.stop <= length
    assert part.stop - part.start <= 512
    assert part.start <= min(window, length - 1) < part.stop
