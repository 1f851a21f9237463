"""Rules of the house that a reader relies on: light imports, layers, sizes, nothing of this machine in the files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lightning_nli"
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("torch", "deepspeed", "ray", "flash_attn", "transformers", "pytorch_lightning", "sklearn", "scipy")
# A part may not import these parts of the package: data flows one way.
FORBIDDEN = {
    "types.py": tuple({path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES}),
    "batch.py": ("data", "models", "training", "cli"),
    "config": ("data", "models", "training", "cli"),
    "data": ("models", "training", "cli", "baselines", "swaps"),
    "metrics.py": ("models", "training", "cli"),
    "epoch_metrics.py": ("models", "training", "cli"),
    "swaps.py": ("models", "training", "cli"),
    "baselines.py": ("models", "training", "cli"),
    "statistics.py": ("data", "models", "training", "crossdomain", "cli"),
    "published": ("data", "models", "training", "crossdomain", "cli", "baselines", "swaps"),
    "models": ("training", "crossdomain", "cli"),
    "training": ("crossdomain", "cli"),
    "launch": ("data", "models", "training", "crossdomain", "analysis", "cli"),
    "crossdomain": ("analysis", "cli"),
    "analysis": ("cli",),
    "tuning": ("cli",),
    "explain": ("cli", "crossdomain"),
}


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import lightning_nli", (*HEAVY, "polars")),
        ("from lightning_nli.cli.main import main; main(['--help'])", (*HEAVY, "polars", "jsonargparse")),
        (
            "from lightning_nli.cli.main import main; main(['fit', '--help'])",
            (*HEAVY, "polars", "numpy", "jsonargparse"),
        ),
        ("import lightning_nli.data.readers, lightning_nli.metrics, lightning_nli.swaps", HEAVY),
    ],
)
def test_light_commands_import_nothing_heavy(code, unwanted):
    script = f"import sys; {code}; print('LOADED', *sorted(name.split('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "lightning_nli" in loaded
    assert not loaded & set(unwanted)


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: imports are absolute here"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_folder_imports_only_from_those_above_it(path):
    part = path.relative_to(PACKAGE).parts[0]
    rule = next((banned for name, banned in FORBIDDEN.items() if part == name or part.startswith(f"{name}_")), ())
    rule = FORBIDDEN["config"] if part.startswith("config") else rule
    for name in imported_modules(path):
        if name.startswith("lightning_nli."):
            assert name.split(".")[1] not in rule, f"{path.name} imports {name}"
        if name.split(".")[0] == "flash_attn":
            assert path.name == "attention.py"


def test_the_rules_cover_every_part():
    parts = {path.relative_to(PACKAGE).parts[0] for path in MODULES}
    covered = {part for part in parts if part in FORBIDDEN or part.startswith("config")}
    assert parts - covered == {"__init__.py", "__main__.py", "cli"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_small_and_say_what_they_do(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert text.count("\n") <= 400
    if text.strip():
        assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno + 1 <= 60, f"{node.name} is too long"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            raise AssertionError(f"print in {path.name}:{node.lineno}")


def test_no_file_speaks_of_the_machine_it_was_written_on():
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    pattern = re.compile(r"(^|[^.\w])/(work|root|home|farm|opt)/")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".png", ".svg", ".parquet", ".xlsx"} or not path.exists():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not pattern.search(line) or name == "tests/test_house.py", f"{name}:{number}: {line.strip()}"


def test_the_fixed_places_are_there():
    for name in ("pyproject.toml", "README.md", "Makefile", ".ci/run", "CHANGELOG.md", "LICENSE", "CONTRIBUTING.md"):
        assert (ROOT / name).is_file()
    for name in ("lightning_nli", "experiments", "slurm", "tests", "benchmarks", "docs", "constraints"):
        assert (ROOT / name).is_dir()
    assert (PACKAGE / "py.typed").exists()


def test_the_readmes_map_names_every_part():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in sorted(PACKAGE.iterdir()):
        if path.name not in {"__init__.py", "__main__.py", "py.typed", "__pycache__"}:
            name = path.stem.partition("_")[0] if path.stem.startswith("config_") else path.stem
            assert name in text, path.name
