# The same commands locally and in CI. Needs Python 3.11 or later and make; nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DATA ?= ../shared/data

.PHONY: demo test check bench soak install clean

install: $(STAMP)

# torch first and by its exact version: a range would fetch gigabytes of CUDA.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep -m1 '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	@touch $@

demo: $(STAMP)  ## plan, fit GAP under edge and node privacy, print statements, write demo-out/
	$(BIN)/tacit demo --out demo-out

# One thread each: two workers with two threads each would wait for one another.
test: $(STAMP)  ## the whole fast suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

check: $(STAMP)  ## format, lint, types, import order, docs examples
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	TACIT_LEDGER=$(VENV)/examples.sqlite OMP_NUM_THREADS=1 $(BIN)/python -m pytest --doctest-modules src/tacit --doctest-glob='*.md' docs README.md -p no:cacheprovider

bench: $(STAMP)  ## speed, each a ratio against a peer in the same run
	$(BIN)/python benchmarks/hop.py
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/dpsgd.py
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/perturbation.py
	$(BIN)/python benchmarks/linkteller.py --slice 5
	$(BIN)/python benchmarks/teachers.py --teachers 16 --slice 1 --data $(DATA)/amazon_computers.npz
	$(BIN)/python benchmarks/dpdgc.py --data $(DATA)
	$(BIN)/python benchmarks/dpa.py
	$(BIN)/python benchmarks/multiparty.py --users 250
	$(BIN)/python benchmarks/accuracy.py --data $(DATA)

soak: $(STAMP)  ## long statistical checks
	$(BIN)/python -m pytest -m slow --override-ini "addopts=-q --strict-markers"

clean:
	rm -rf $(VENV) build dist demo-out bench-out .mypy_cache .ruff_cache .pytest_cache .hypothesis
