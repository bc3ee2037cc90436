# make demo       set up, then train on digits and write a report (runs/demo/report.html)
# make test       set up, then lint, types and tests
# make test-all   the same with the tests that take minutes
# make bench      what a step costs, against DDPM (about ten minutes)
# make figures    the figures of the presets, trained and measured again (about an hour)

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all lint format bench figures clean

demo: .venv/installed
	$(BIN)/egc demo

test: lint
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow" --durations=10

test-all: lint
	$(BIN)/pytest -n 2 --dist loadfile --durations=10

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed
	$(BIN)/python benchmarks/engine.py

figures: .venv/installed
	$(BIN)/python benchmarks/digits.py

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
