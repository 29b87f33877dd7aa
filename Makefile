# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
# Plugins that no test uses are not loaded: it takes seconds in every worker.
PYTEST := $(BIN)/python -m pytest --disable-plugin-autoload -p xdist -p hypothesispytest
export HF_HUB_OFFLINE ?= 1
unexport PYTHONDONTWRITEBYTECODE  # or each of the tests' processes compiles the package and the tests again

SEED := $(or $(SEED),$(shell date +%s))

.PHONY: demo test fuzz chaos kills lint docs setup dev clean

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "installing tsdfm and torch into $(VENV): about a gigabyte, a minute or more"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@
	@echo "installed: $(BIN)/tsdfm sample writes two texts; docs/quickstart.md goes on from there"

$(VENV)/.ready-dev: $(VENV)/.ready
	$(INSTALL) '.[dev]'
	touch $@

$(VENV)/.ready-docs: $(VENV)/.ready
	$(INSTALL) '.[docs]'
	touch $@

setup: $(VENV)/.ready

dev: $(VENV)/.ready-dev

demo: setup
	$(BIN)/tsdfm pipeline tiny_cpu --out runs/demo

test: dev
	$(PYTEST) -n 3

fuzz: dev  # other examples each time; a failure is repeated by the seed it was found with
	@echo "make fuzz SEED=$(SEED)"
	$(if $(EXAMPLES),EXAMPLES=$(EXAMPLES) )$(PYTEST) -n 2 -m hypothesis --hypothesis-profile fuzz --hypothesis-seed $(SEED) $(TESTS)

chaos: dev  # bad input and faults of every kind, on everything that reads or writes
	$(BIN)/python tests/chaos/campaign.py

kills: dev  # kill -9 of every stage; one that was stopped goes on where it was: make kills KILLS=1000
	$(BIN)/python tests/chaos/kills.py --kills $(or $(KILLS),1000) --log runs/kills.jsonl

lint: dev
	$(BIN)/ruff check --no-cache .  # the cache does not see that a new file makes a name the project's own
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is in site/index.html"

clean:
	rm -rf $(VENV) runs/demo site
