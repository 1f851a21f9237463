"""Known ways in which Vietnamese text goes wrong on its way to the tokenizer; a test's name starts with the case."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import unicodedata
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest
from tiny_models import TEXTS, bert_tokenizer
from transformers import PhobertTokenizer

from lightning_nli.data import text as text_module
from lightning_nli.data import vncorenlp
from lightning_nli.data.splits import find_duplicates, find_leaks
from lightning_nli.data.text import (
    WordSegmenter,
    align_words,
    comparison_expr,
    comparison_key,
    is_segmented,
    normalize_expr,
    normalize_text,
    word_set,
)
from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
from lightning_nli.data.values import parse_domains
from lightning_nli.types import BINARY, UserError

TONES = "\u0300\u0301\u0309\u0303\u0323"
OLD = "Hòa giải viên ở Thanh Hóa phải thỏa thuận."
NEW = "Hoà giải viên ở Thanh Hoá phải thoả thuận."
PANIC = pl.exceptions.PanicException  # what Rust code that panics raises: a BaseException, no Exception


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def frame_of(*premises: str) -> pl.DataFrame:
    ids = [str(i) for i in range(len(premises))]
    columns = {"example_id": ids, "premise": premises, "hypothesis": TEXTS[1], "condition": None, "label": "entailment"}
    return pl.DataFrame(columns, schema_overrides={"condition": pl.String})


def ids_of(frame: pl.DataFrame, *, normalize: bool = True, segmenter: str = "none") -> list[list[int]]:
    spec = EncoderSpec(bert_tokenizer(), ("premise",), 64, normalize=normalize, segmenter=segmenter)
    split = tokenize_split(frame, spec, BINARY)
    return [split.token_ids[a:b].tolist() for a, b in itertools.pairwise(split.offsets)]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Puts the source of a package (pyvi, py_vncorenlp) where Python finds it first."""

    def install(name: str, code: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "__init__.py").write_text(code, encoding="utf-8")
        info = tmp_path / f"{name}-9.9.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n", encoding="utf-8")
        for loaded in [key for key in sys.modules if key.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.syspath_prepend(str(tmp_path))
        text_module._segment_function.cache_clear()

    yield install
    text_module._segment_function.cache_clear()


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Makes a command that says it is Java of some version the only Java there is."""

    def install(version: str) -> None:
        command = tmp_path / "bin" / "java"
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n", encoding="utf-8")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", str(command.parent))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        vncorenlp._java_version.cache_clear()

    yield install
    vncorenlp._java_version.cache_clear()


# T03: two ways to place a tone mark


def test_t03_both_tone_placements_are_one_text_to_compare_and_stay_as_they_are():
    assert comparison_key(OLD) == comparison_key(NEW) == comparison_key(unicodedata.normalize("NFD", NEW).upper())
    assert normalize_text(OLD) == OLD and normalize_text(NEW) == NEW  # NFC alone does not join them
    pairs = frame_of(OLD, NEW, OLD.replace("Thanh", "Khánh"))
    found = find_duplicates(pairs)
    assert (found.height, found.num_loose) == (0, 1)
    leaks = find_leaks(pairs[:1], pairs[1:])
    assert leaks.pairs.rows() == [("0", "1")]
    assert parse_domains("Văn hoá - Xã hội") == parse_domains("Văn hóa - xã hội") == ["culture_society"]


def test_t03_no_two_words_become_one():
    """Syllables of every initial, rhyme, tone, place of the tone, ending: only the place in open ones is forgotten."""
    rhymes = ("oa", "oe", "uy", "ua", "oă", "ao")
    initials = ("", "h", "th", "kh", "q", "ng", "x")
    meaning_of = {}
    for initial, rhyme, tone, end in itertools.product(initials, rhymes, ("", *TONES), ("", "n", "i", "ch")):
        for spelled in (rhyme[0] + tone + rhyme[1], rhyme + tone):
            word = nfc(initial + spelled + end)
            meaning_of[word] = nfc(initial + rhyme + tone) if rhyme in rhymes[:3] and not end else word
    keys = pl.DataFrame({"word": list(meaning_of)}).select(comparison_expr(pl.col("word")))["word"].to_list()
    assert len(set(keys)) == len(set(meaning_of.values())) == len(meaning_of) - len(initials) * 3 * len(TONES)
    assert len({*zip(keys, meaning_of.values(), strict=True)}) == len(set(keys))


@pytest.mark.parametrize(
    ("one", "other"),
    [("hoà", "hoá"), ("của", "cùa"), ("quả", "qua"), ("quý", "quỷ"), ("hoàn", "hoạn"), ("thuý", "thủy"), ("đa", "da")],
)
def test_t03_different_words_stay_different(one: str, other: str):
    assert comparison_key(one) != comparison_key(other)


def test_t03_words_with_qu_have_one_form_each():
    assert comparison_key("quý") == comparison_key("qúy") == comparison_key("QUÝ")
    assert comparison_key("quả của") == "quả của"
    assert comparison_key("hoàn toàn khoẻn") == "hoàn toàn khoẻn"


def test_t03_expression_keeps_nulls_and_meets_every_word_of_a_text():
    frame = pl.DataFrame({"t": ["hoà hoà, thuỷ_sản; khoẻ", None]})
    assert frame.select(comparison_expr(pl.col("t")))["t"].to_list() == ["hòa hòa thủy sản khỏe", None]


@pytest.mark.parametrize("source", [OLD, NEW])
@pytest.mark.parametrize("rewritten", [OLD, NEW])
def test_t03_words_of_a_rewriting_segmenter_are_found_in_the_source(source: str, rewritten: str):
    words = rewritten.replace("Thanh H", "Thanh_H").replace("giải v", "giải_v").replace(".", "  .")
    spans = align_words(source, words)
    found = [source[start:end] for start, end in spans]
    assert found == [source[:3], "giải viên", "ở", source[16:25], "phải", source[31:35], "thuận", "."]
    assert (16, 25) in spans


def test_t03_words_are_found_in_a_source_that_is_not_in_normal_form():
    source = unicodedata.normalize("NFD", "Điều\u00a01.  Ðất\u200b đaị ﬁ… ____ x")
    spans = align_words(source, "Điều 1 . Đất_đại fi ... ____ x")
    found = [nfc(source[start:end]) for start, end in spans]
    assert found == ["Điều", "1", ".", "Ðất\u200b đaị", "ﬁ", "…", "", "x"]


@pytest.mark.parametrize(
    ("segmented", "message"),
    [
        ("Hoà giải_viên ở Hà_Nội", "from character 16 on the source reads 'Thanh Hoá phải thoả thuận.', where"),
        ("Hoà giải_viên ở", "the segmented text it ends"),
        (f"{NEW} thêm", "stands 'thêm'"),
    ],
)
def test_t03_a_segmenter_that_changes_words_is_an_error(segmented: str, message: str):
    with pytest.raises(UserError, match="not the source's") as caught:
        align_words(NEW, segmented)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["pyvi", "underthesea"])
def test_t03_real_segmenters_give_evidence_back(name: str):
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed (extra 'vietnamese')")
    segmenter = WordSegmenter(name)
    for source in (OLD, NEW):
        assert is_segmented(segmenter(source))
        assert (16, 25) in segmenter.locate_words(source)
        assert source[16:25] in ("Thanh Hóa", "Thanh Hoá")
    texts = ["Đaị diện hợp pháp của đương sự", "Điều 5.  Quyền, “nghĩa vụ” 1.500.000 đồng/tháng; a) b@c.vn", "!!"]
    for text in texts:
        assert "  " not in segmenter(text)
        spans = segmenter.locate_words(text)
        assert "".join(text[start:end] for start, end in spans).replace(" ", "") == text.replace(" ", "")


# T04, T05, T07: one sentence, several ways to write it


@pytest.mark.parametrize(
    ("case", "other"),
    [
        ("t04 NFD", unicodedata.normalize("NFD", TEXTS[0])),
        (
            "t07 no-break and zero-width",
            TEXTS[0].replace("lao động", "lao\u00a0độ\u200bng\ufeff").replace("nghỉ", "nghỉ\u00ad"),
        ),
    ],
)
def test_t04_t07_another_way_to_write_a_text_gives_the_same_ids(case: str, other: str):
    frame = frame_of(TEXTS[0], other)
    raw = ids_of(frame, normalize=False)
    assert raw[0] != raw[1], case  # it does matter to the tokenizer
    first, second = ids_of(frame)
    assert first == second == raw[0]
    assert word_set(other) == word_set(TEXTS[0])
    assert comparison_key(other) == comparison_key(TEXTS[0])


def test_t05_eth_is_read_as_the_vietnamese_letter():
    right = "Điều: doanh nghiệp phải nộp thuế ĐÚNG hạn đã định"
    wrong = right.replace("Đ", "\u00d0").replace("đ", "\u00f0")
    assert normalize_text(wrong) == right
    assert pl.DataFrame({"t": [wrong]}).select(normalize_expr(pl.col("t")))["t"].to_list() == [right]
    assert comparison_key(wrong) == comparison_key(right) and word_set(wrong) == word_set(right)
    assert normalize_text("da đa") == "da đa"
    text = TEXTS[0]  # holds a đ that the tokenizer knows
    frame = frame_of(text, text.replace("đ", "\u00f0"), text.replace("đ", "d"))
    raw, ids = ids_of(frame, normalize=False), ids_of(frame)
    assert ids[0] == ids[1] == raw[0] != raw[1]
    assert ids[2] != ids[0]


def test_t04_t05_t07_the_published_inputs(shared: Path):
    for name in ("nfc_nfd", "eth_vs_dstroke", "nbsp_zwsp"):
        lines = (shared / "cases" / "inputs" / "tok" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        first, second = (json.loads(line) for line in lines if line)
        assert first["premise"] != second["premise"]
        assert normalize_text(first["premise"]) == normalize_text(second["premise"]), name


# T06: the segmenter fails in one row


@pytest.mark.parametrize("error", ["PanicException('index out of bounds')", "ValueError('no such word')"])
def test_t06_a_panic_in_one_row_leaves_that_row_and_no_other(error: str, stand_in, caplog: pytest.LogCaptureFixture):
    stand_in(
        "pyvi",
        "from polars.exceptions import PanicException\n"
        "class ViTokenizer:\n"
        "    def tokenize(text):\n"
        f"        if 'Đaị' in text: raise {error}\n"
        "        return text.replace('lao động', 'lao_động  ')\n",
    )
    broken = "Đaị diện " + "hợp pháp " * 20
    segmenter = WordSegmenter("pyvi")
    with caplog.at_level(logging.WARNING):
        assert segmenter(broken) == broken
        assert segmenter("người lao động nghỉ") == "người lao_động nghỉ"  # single spaces
        rows = ids_of(frame_of(TEXTS[0], broken, TEXTS[3]), segmenter="pyvi")
    assert [len(row) > 2 for row in rows] == [True] * 3
    assert "pyvi failed, text left unsegmented: 'Đaị diện hợp pháp" in caplog.text
    assert error.split("'")[1] in caplog.text
    assert len(caplog.records) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_t06_what_must_stop_a_run_does(error: type[BaseException], stand_in):
    stand_in("pyvi", f"class ViTokenizer:\n    def tokenize(text):\n        raise {error.__name__}\n")
    with pytest.raises(error):
        WordSegmenter("pyvi")("người lao động")


def test_t06_a_segmenter_that_answers_nothing_loses_no_text(stand_in):
    stand_in("pyvi", "class ViTokenizer:\n    def tokenize(text):\n        return ' '\n")
    assert WordSegmenter("pyvi")("người lao động") == "người lao động"


def test_is_segmented_tells_joined_words_from_blanks():
    assert is_segmented("Người lao_động có quyền")
    assert not is_segmented("Họ tên: ____ , _x , y_ a _ b")


# T08: VnCoreNLP


VNCORENLP = """\
import os
class VnCoreNLP:
    def __init__(self, annotators, save_dir):
        assert annotators == ["wseg"] and os.path.isabs(save_dir)
        os.chdir(save_dir)
    def word_segment(self, text):
        return [part.replace("lao động", "lao_động") + " ." for part in text.split(".") if part]
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models folder"
    (folder / "models" / "wordsegmenter").mkdir(parents=True)
    for name in vncorenlp._FILES:
        (folder / name).write_text("x", encoding="utf-8")
    return folder


def test_t08_the_current_folder_is_the_same_afterwards(stand_in, java, models, monkeypatch, tmp_path):
    java("1.8.0_292")
    stand_in("py_vncorenlp", VNCORENLP)
    stand_in("jnius_config", "vm_running = False\nadd_options = lambda option: None\n")
    monkeypatch.setenv(vncorenlp.FOLDER_VARIABLE, models.name)  # relative, as a user may give it
    monkeypatch.chdir(tmp_path)
    segmenter = WordSegmenter("vncorenlp")
    assert segmenter("người lao động.nghỉ.") == "người lao_động . nghỉ ."
    assert Path.cwd() == tmp_path
    Path("out.txt").write_text("here", encoding="utf-8")
    assert (tmp_path / "out.txt").exists()
    before = segmenter.version
    (models / vncorenlp._FILES[1]).write_text("another vocabulary", encoding="utf-8")
    assert before.startswith("9.9-") and segmenter.version != before  # the model is part of the cache key


def test_t08_without_java_one_line_names_the_pure_python_segmenter(stand_in, java, monkeypatch, tmp_path):
    stand_in("py_vncorenlp", VNCORENLP)
    java("1.7.0_80")
    with pytest.raises(UserError, match=r"Java 8 or newer not found \(.*java is of version 7\)"):
        WordSegmenter("vncorenlp")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "")
    with pytest.raises(
        UserError, match="Java 8 or newer not found; install one, or take the segmenter 'pyvi'"
    ) as caught:
        WordSegmenter("vncorenlp")
    assert "\n" not in str(caught.value)


def test_t08_what_else_is_missing_is_named(stand_in, java, models, monkeypatch):
    java("17.0.15")
    monkeypatch.setattr(vncorenlp.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="pip install py_vncorenlp"):
        WordSegmenter("vncorenlp")
    monkeypatch.undo()
    java("17.0.15")
    stand_in("py_vncorenlp", "class VnCoreNLP:\n    def __init__(self, **_): raise OSError('no libjvm')\n")
    stand_in("jnius_config", "vm_running = True\n")
    monkeypatch.delenv(vncorenlp.FOLDER_VARIABLE, raising=False)
    with pytest.raises(UserError, match=f"set {vncorenlp.FOLDER_VARIABLE} to the folder"):
        WordSegmenter("vncorenlp")
    monkeypatch.setenv(vncorenlp.FOLDER_VARIABLE, str(models))
    with pytest.raises(UserError, match=r"could not be started \(no libjvm\)"):
        WordSegmenter("vncorenlp")("lao động")
    (models / "VnCoreNLP-1.2.jar").unlink()
    with pytest.raises(UserError, match=r"holds no VnCoreNLP-1\.2\.jar"):
        WordSegmenter("vncorenlp")


JAVA_SOURCES = {
    "Annotation": "public String text, out; public Annotation(String t) { text = t; }"
    " public String toString() { return out; }",
    "VnCoreNLP": "public VnCoreNLP(String[] a) {} public void annotate(Annotation a) {"
    ' if (a.text.contains("hỏng")) throw new RuntimeException("broken word");'
    ' a.out = ""; for (String w : a.text.replace("lao động", "lao_động").split(" "))'
    ' a.out += "1\\t" + w + "\\t_\\t_\\t_\\t_\\n"; a.out += "\\n"; }',
}
IN_A_REAL_JAVA = """\
import os, signal
seen = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: seen.append(number))
from lightning_nli.data.text import WordSegmenter
segmenter = WordSegmenter("vncorenlp")
assert segmenter("người lao động") == "người lao_động"
assert segmenter("hỏng lao động") == "hỏng lao động"
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    os.kill(os.getpid(), number)
print(os.getcwd(), *map(int, seen))
"""


def test_t08_in_a_real_java_machine_signals_still_reach_us(models: Path, tmp_path: Path):
    """The wrapper and Java are real; our few classes stand in for VnCoreNLP's, whose models no registry carries."""
    is_installed = any(one.name.replace("-", "_") == "py_vncorenlp" for one in importlib.metadata.distributions())
    if not (is_installed and shutil.which("javac") and shutil.which("jar")):
        pytest.skip("needs the package py_vncorenlp and a Java development kit")
    for name, body in JAVA_SOURCES.items():
        source = tmp_path / f"{name}.java"
        source.write_text(f"package vn.pipeline; public class {name} {{ {body} }}", encoding="utf-8")
    sources = [str(tmp_path / f"{name}.java") for name in JAVA_SOURCES]
    subprocess.run(["javac", "-encoding", "UTF-8", "-d", str(tmp_path / "classes"), *sources], check=True)
    jar = ["jar", "cf", str(models / "VnCoreNLP-1.2.jar"), "-C", str(tmp_path / "classes"), "vn"]
    subprocess.run(jar, check=True)
    done = subprocess.run(
        [sys.executable, "-c", IN_A_REAL_JAVA],
        env=os.environ | {vncorenlp.FOLDER_VARIABLE: str(models)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [str(tmp_path), "15", "10", "12"], done.stderr
    assert "broken word" in done.stderr


# T12: a tokenizer without offsets


def test_t12_words_are_aligned_without_the_tokenizers_offsets(tmp_path: Path):
    words = ["Người", "lao_động", "được", "nghỉ", "Thanh_Hóa"]
    pieces = [f"{letter}@@" for letter in sorted(set("".join(words)))] + sorted(set("".join(words)))
    (tmp_path / "vocab.txt").write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")
    (tmp_path / "bpe.codes").write_text("", encoding="utf-8")
    tokenizer = PhobertTokenizer(str(tmp_path / "vocab.txt"), str(tmp_path / "bpe.codes"))
    assert not tokenizer.is_fast
    text = " ".join(words)
    split = tokenize_split(frame_of(text), EncoderSpec(tokenizer, ("premise",), 64), BINARY)
    by_word = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
    assert tokenizer.unk_token_id not in itertools.chain(*by_word)
    assert split.token_ids[1:-1].tolist() == list(itertools.chain(*by_word))
    source = "Người lao động được nghỉ Thanh Hoá"
    found = [source[start:end] for start, end in align_words(source, text)]
    assert found == ["Người", "lao động", "được", "nghỉ", "Thanh Hoá"]
