"""The section of heads in the app: every control, a click on a head, both parts, odd input, exports."""

from __future__ import annotations

import pytest

from dashboard.components.lab_views import MatrixCell
from dashboard.views import lab_heads
from tests.lab.pages import Exports, first_run, needs_models, opened, settled, shown

pytestmark = needs_models


def test_every_control_moves_what_is_shown_and_every_figure_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("heads")
    text = shown(at)
    assert "The 8 heads of a token" in text
    assert "grouped-query, G = 2: keys and values 0 are read by heads 0 to 3" in text
    at.slider(key="lab_heads_heads").set_value(6).run()
    at.selectbox(key="lab_heads_groups").set_value(3).run()
    at.selectbox(key="lab_heads_head").set_value(5).run()
    at.slider(key="lab_heads_seed").set_value(4).run()
    assert [matrix.name for matrix in exports.given[-1][0].matrices][:2] == ["Q of head 5", "K 2 (shared)"]
    told = exports.check()
    assert told["settings"] == {"layer": "random layer, seed 4", "heads": 6, "key–value heads": 3, "head": 5}
    for name, count in {"All heads": 6, "What heads add": 1}.items():
        at.selectbox(key="lab_heads_exported").set_value(name).run()
        figure = exports.given[-1][0]
        assert len(getattr(figure, "matrices", None) or figure.panels) == count
        exports.check()
    assert {"heads": "6", "groups": "3", "head": "5", "seed": "4"}.items() <= dict(at.query_params).items()


def test_a_click_on_a_head_chooses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clicks = {}
    real = lab_heads.show_matrices

    def watched(view, *, key, on_select=None):
        clicks[key] = on_select
        real(view, key=key, on_select=on_select)

    monkeypatch.setattr(lab_heads, "show_matrices", watched)
    at = opened("heads")
    chosen = []
    monkeypatch.setattr(
        lab_heads, "choose_in_section", lambda section, **values: chosen.append((section, values))
    )
    clicks["lab_heads_all_view"](MatrixCell(6, 0, 0))
    assert chosen == [("heads", {"head": 6})]
    assert not at.exception


def test_a_layer_of_the_bundled_bert_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("heads", numbers="model", layer="99", groups="5", head="99")
    heads = at.selectbox(key="lab_heads_head")
    assert heads.value == 11
    assert heads.options == [f"head {index}" for index in range(12)]
    assert at.selectbox(key="lab_heads_groups").options[0] == "grouped-query, G = 4, as 5 does not divide 12"
    assert "Pooling 12 key–value heads to 4 changes the layer's output by" in shown(at)
    assert exports.given[-1][1].settings["layer"].endswith("layer 5")
    assert exports.given[-1][1].settings["head"] == 11
    at.selectbox(key="lab_heads_layer").set_value(0).run()
    at.selectbox(key="lab_heads_groups").set_value(12).run()
    assert "Pooling" not in shown(at)
    at.selectbox(key="lab_heads_exported").set_value("What heads add").run()
    assert len(exports.given[-1][0].panels) == 2
    exports.check()
    for text in ("a", " ".join(["word"] * 40), "<script>alert(1)</script> $x$"):
        at.text_area(key="lab_text").set_value(text)
        settled(at.run())
        assert exports.given[-1][1].input == text
    at.text_area(key="lab_text").set_value("  ").run()
    assert "Type a sentence on the left." in shown(at)
    assert not at.exception


def test_sizes_of_shared_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("heads", show="cache")
    assert "multi-head attention keeps 512.00 MiB for 4,096 tokens" in shown(at)
    at.slider(key="lab_heads_heads").set_value(32).run()
    at.selectbox(key="lab_heads_groups").set_value(8).run()
    at.selectbox(key="lab_heads_tokens").set_value(131072).run()
    at.slider(key="lab_heads_width").set_value(64).run()
    at.slider(key="lab_heads_layers").set_value(16).run()
    at.selectbox(key="lab_heads_bits").set_value("8").run()
    assert "multi-head attention keeps 8.00 GiB for 131,072 tokens" in shown(at)
    assert exports.check()["settings"]["bits"] == "8"
    at.selectbox(key="lab_heads_exported").set_value("Who reads what").run()
    assert [matrix.values.shape for matrix in exports.given[-1][0].matrices] == [(32, 32), (32, 8), (32, 1)]
    exports.check()
    at.slider(key="lab_heads_layers").set_value(1).run()
    assert not at.exception


@pytest.mark.parametrize("heads", ["1", "7", "32"])
@pytest.mark.parametrize("show", ["split", "cache"])
def test_any_number_of_heads(heads: str, show: str) -> None:
    assert not opened("heads", heads=heads, groups="4", head="31", show=show).exception


def test_what_a_link_says_wrongly_is_told() -> None:
    at = first_run("heads", heads="99", groups="0", bits="7", t="one two")
    assert "bits, groups, heads" in shown(at)
    assert not settled(at).exception
