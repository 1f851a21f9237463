from __future__ import annotations

import importlib.machinery
import sys
import types
import unicodedata

import polars as pl
import pytest

from lightning_nli.data import text as text_module
from lightning_nli.data.text import (
    WordSegmenter,
    comparison_expr,
    comparison_key,
    normalize_expr,
    normalize_text,
    word_set,
)
from lightning_nli.types import UserError

TEXTS = [
    "",
    "   ",
    "Điều 1.  Hai  dấu cách\nvà dòng mới",
    unicodedata.normalize("NFD", "Người được ưu đãi"),
    "hợp\u00adđồng\u200b lao\u00a0động\u2007và\u202fthuế",
    "e\u00ad\u0301",
    "\ufeff\u2003 khoản 2\u2028 \x85\x1c",
    "İSTANBUL ẞ ΣΑΣ ⅷ ½ １２",
    "a_b—c…d “e”",
    "\u00d0ất \u00f0ai: Đất đai, da",
    "Hòa giải, hoà\u00ad giải; HOÀ thuỷ_sản khoẻ",
]


@pytest.mark.parametrize("text", TEXTS)
def test_python_and_polars_agree_and_normal_form_is_stable(text: str):
    normal = normalize_text(text)
    frame = pl.DataFrame({"t": [text, None]})
    assert frame.select(normalize_expr(pl.col("t")))["t"].to_list() == [normal, None]
    assert frame.select(comparison_expr(pl.col("t")))["t"].to_list() == [comparison_key(text), None]
    assert normalize_text(normal) == normal
    assert comparison_key(comparison_key(text)) == comparison_key(text)
    assert unicodedata.is_normalized("NFC", normal)


def test_normal_form_repairs_marks_and_spaces_and_nothing_else():
    assert normalize_text("hợp\u00adđồng\u200b lao\u00a0động ") == "hợpđồng lao động"
    assert normalize_text("e\u00ad\u0301") == "é"
    assert normalize_text(" A  b\n\nc\t") == "A  b\n\nc"


def test_comparison_key_ignores_case_spaces_punctuation_and_unicode_form():
    wanted = comparison_key("công ty trả lương chậm là sai")
    assert comparison_key(unicodedata.normalize("NFD", " CÔNG TY  trả lương,\nchậm là sai. ")) == wanted
    assert comparison_key("công ty trả lương chậm là đúng") != wanted


def test_word_set_is_lower_case_words():
    assert word_set("Thuế, phí; THUẾ 10%") == {"thuế", "phí", "10"}


def test_segmenter_none_changes_nothing():
    assert WordSegmenter()("hợp đồng lao động") == "hợp đồng lao động"
    assert WordSegmenter().version == ""


@pytest.mark.parametrize("name", ["pyvi", "underthesea"])
def test_absent_segmenter_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'lightning-nli\[vietnamese\]'"):
        WordSegmenter(name)


def test_unknown_segmenter_is_refused():
    with pytest.raises(UserError, match="pyvi"):
        WordSegmenter("jieba")


def fake_package(name: str, **members: object) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    for key, value in members.items():
        setattr(module, key, value)
    return module


def test_text_is_segmented_once(monkeypatch: pytest.MonkeyPatch):
    def join(text: str) -> str:
        return text.replace("lao động", "lao_động")

    monkeypatch.setitem(sys.modules, "pyvi", fake_package("pyvi", ViTokenizer=types.SimpleNamespace(tokenize=join)))
    monkeypatch.setitem(
        sys.modules, "underthesea", fake_package("underthesea", word_tokenize=lambda text, format: join(text))
    )
    monkeypatch.setattr(text_module.importlib.metadata, "version", lambda name: "9.9")
    text_module._segment_function.cache_clear()
    for name in ("pyvi", "underthesea"):
        segmenter = WordSegmenter(name)
        assert segmenter("hợp đồng lao động") == "hợp đồng lao_động"
        assert segmenter("hợp_đồng lao động") == "hợp_đồng lao động"
        assert segmenter.version == "9.9"
    text_module._segment_function.cache_clear()
