PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
IMAGES ?= examples/images
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

.PHONY: demo test slow results clean

# Caption the example images with the shipped model, and draw its attention.
demo: $(VENV)/ready
	$(BIN)/saywhy caption $(IMAGES) --figures demo
	@echo "attention figures: demo/*.png"

test: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST)

# The tests that are too slow for every change; .ci/run runs them too.
slow: $(VENV)/ready
	$(PYTEST) -m slow

# Write docs/results.md from results/*.json.
results: $(VENV)/ready
	$(BIN)/saywhy results results --out docs/results.md

clean:
	rm -rf $(VENV) demo .pytest_cache .ruff_cache .mypy_cache

# The environment is built once, and again when pyproject.toml changes. uv installs faster than pip, if it is available.
$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade uv && $(BIN)/uv pip install --quiet --python $(BIN)/python -e ".[dev]" \
		|| $(BIN)/pip install --quiet -e ".[dev]"
	touch $@
