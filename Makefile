# `make demo` and `make test` install what is missing into .venv first; nothing else is needed.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-slurm reliability bench bench-gpu check format clean help

help:
	@echo "make demo    train e5-small on the embedded corpus (about 3 minutes on 2 cores, after the install)"
	@echo "make test    run the tests"
	@echo "make test-slurm  the tests against a real SLURM, which it installs (root, apt-get) and runs in a temporary folder"
	@echo "make reliability  kill runs at every moment, write docs/RELIABILITY.md (about half an hour)"
	@echo "make bench   measure speed and memory beside the peers at small sizes, into benchmarks/results/"
	@echo "make bench-gpu  the same on a CUDA machine (under 8 minutes)"
	@echo "make check   format, lint and types"
	@echo "make format  put the code into format"
	@echo "make clean   remove .venv and caches"

$(INSTALLED): pyproject.toml constraints/cpu.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed ($(PYTHON) not found); make PYTHON=python3 ..." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints/cpu.txt -e '.[dev]'
	touch $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/lnli stage e5-small
	$(BIN)/lnli fit --config experiments/demo.yaml --run-dir runs/demo-$$(date +%Y%m%d-%H%M%S)

test: $(INSTALLED)
	$(BIN)/lnli stage e5-small
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not gpu and not multigpu and not slurm"

test-slurm: $(INSTALLED)
	sh tests/slurm/install.sh
	$(BIN)/python -m pytest tests/slurm -m slurm

reliability: $(INSTALLED)
	$(BIN)/python tests/reliability/kill_matrix.py --write
	$(BIN)/python tests/reliability/random_kills.py 100 --write

bench: $(INSTALLED)
	$(BIN)/lnli stage e5-small
	$(BIN)/python benchmarks/throughput.py --steps 8 --warm-up 2 --repeats 2 --eval-rows 64
	$(BIN)/python benchmarks/inference.py --rows 128 --repeats 2
	$(BIN)/python benchmarks/loader.py --data sample:10000 --repeats 2
	$(BIN)/python benchmarks/startup.py --repeats 2 --rows 300000
	$(BIN)/python benchmarks/memory.py --steps 4 --repeats 1
	$(BIN)/python benchmarks/scaling.py --steps 5 --repeats 1

bench-gpu: $(INSTALLED)
	$(BIN)/python benchmarks/gpu.py

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
