# make demo: a shipped model made faster, a pair trained, without downloads. make test: the tests. make lint: style.
# make bench: training and inference of the shapes in docs/speed, to CELLS=FILE.csv, which must be new.
# make verify: the published numbers from their weights, rows from the Hub or DATA="cifar10=FOLDER ...".
# make docs: the pages as a site, in build/site.
MAKEFLAGS += --no-print-directory
PYTHON ?= python3
CELLS ?= runs/bench/cells.csv
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
FLOOR := .venv-floor
CLIENTS := .venv-clients
AUDIT := .venv-audit
DOCS := .venv-docs
DEMO := runs/demo
PAIR := digits --eval_strategy no --save_strategy no
# Two processes, a whole file each at a time. One file alone: .venv/bin/python -m pytest tests/test_FILE.py
PYTEST := -m pytest -q -n 2 --dist loadfile
# Cards in model_cards/ are written by leaner publish:
RUFF := --line-length 119 --target-version py311 --extend-exclude 'model_cards/*/README.md'
RUFF_RULES := --select E,F,W,I,B,UP,C4,SIM --ignore B905,SIM905,SIM108 --config 'lint.isort.lines-after-imports = 2'

.PHONY: demo bench docs test test-full test-floor test-clients verify audit lint imports format
.DELETE_ON_ERROR:

demo: $(INSTALLED)
	@rm -rf $(DEMO)/faster $(DEMO)/faster.unfinished $(DEMO)/vit-nano $(DEMO)/vit-lean-nano
	$(BIN)/leaner slim model_cards/leanbert-mini-listops $(DEMO)/faster --speedup 1.5 --data listops-short --minutes 0.3
	$(BIN)/leaner train $(PAIR) --shape vit/nano --output_dir $(DEMO)/vit-nano
	$(BIN)/leaner train $(PAIR) --shape vit/lean-nano --output_dir $(DEMO)/vit-lean-nano
	@echo "The code of the card of $(DEMO)/vit-lean-nano predicts:"
	@sed -n '/^```python/,/^```$$/{/^```/!p}' $(DEMO)/vit-lean-nano/README.md | $(BIN)/python

# One thread. Meant for a quarter of an hour at most.
bench: $(INSTALLED)
	@mkdir -p $(dir $(CELLS))
	@cd docs/speed && $(CURDIR)/$(BIN)/leaner bench --shapes *-6x*.json --threads 1 --seconds 3 --csv \
	  $(abspath $(CELLS))

test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST)

test-full: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -m ""

test-floor: $(FLOOR)/.installed
	OMP_NUM_THREADS=1 $(FLOOR)/bin/python $(PYTEST)

test-clients: $(CLIENTS)/.installed
	OMP_NUM_THREADS=1 $(CLIENTS)/bin/python -m pytest -q tests/test_clients.py tests/test_export.py tests/test_ray.py \
	  tests/test_browser.py
	OMP_NUM_THREADS=1 $(CLIENTS)/bin/python -m pytest -q tests/test_documentation.py -k "short-export or short-clients"

verify: $(INSTALLED)
	$(BIN)/leaner verify $(if $(DATA),--data_files $(DATA))

# The pages as a site with search, in build/site; its links are checked.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

# Known weaknesses of the versions in constraints.txt, where the database of them answers.
audit: $(AUDIT)/.installed
	@$(AUDIT)/bin/python .ci/audit.py

lint: $(INSTALLED)
	$(BIN)/ruff check $(RUFF) $(RUFF_RULES) .
	$(BIN)/ruff format $(RUFF) --check .
	@$(MAKE) imports

# The rooms as they are installed, in one tree, where import-linter sees them all.
imports: $(INSTALLED)
	@tree=$$(mktemp -d) && trap 'rm -rf "$$tree"' EXIT && \
	  tar -c --exclude __pycache__ modeling_leaner training configuration setup.cfg | tar -x -C "$$tree" && \
	  cd "$$tree" && mv training configuration modeling_leaner && \
	  PYTHONPATH="$$tree" "$(CURDIR)/$(BIN)/lint-imports" --config setup.cfg --no-cache --no-logo

format: $(INSTALLED)
	$(BIN)/ruff check $(RUFF) $(RUFF_RULES) --fix .
	$(BIN)/ruff format $(RUFF) .

CHECK_PYTHON = @$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
  { echo "modeling_leaner needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }

$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	@echo "Installing into $(VENV) ..."
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# The oldest transformers that is supported, with the huggingface-hub 1.x that it needs; all else as pinned.
$(FLOOR)/.installed: setup.cfg pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	@echo "Installing into $(FLOOR) ..."
	@rm -rf $(FLOOR)
	@$(PYTHON) -m venv $(FLOOR)
	@grep -v -i -E '^(transformers|huggingface[-_]hub|httpx2|httpcore2)==' constraints.txt > $(FLOOR)/constraints.txt
	@echo 'transformers==5.17.0' >> $(FLOOR)/constraints.txt
	@echo 'huggingface-hub<2' >> $(FLOOR)/constraints.txt
	@$(FLOOR)/bin/python -m pip install -q --disable-pip-version-check -c $(FLOOR)/constraints.txt -e '.[dev]'
	@touch $@

# PEFT, TRL, ONNX, Ray and others, in an environment of their own: `make test` does not see them.
# With npm, what docs/browser.html needs, too.
$(CLIENTS)/.installed: setup.cfg pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	@echo "Installing into $(CLIENTS) ..."
	@rm -rf $(CLIENTS)
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,clients,ray]'
	@if command -v npm > /dev/null; then \
	  npm install --silent --ignore-scripts --prefix $(CLIENTS) @huggingface/transformers@4.3.2; fi
	@touch $@

$(DOCS)/.installed: setup.cfg pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	@echo "Installing into $(DOCS) ..."
	@rm -rf $(DOCS)
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

$(AUDIT)/.installed: constraints.txt
	$(CHECK_PYTHON)
	@echo "Installing into $(AUDIT) ..."
	@rm -rf $(AUDIT)
	@$(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt pip-audit
	@touch $@
