PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
IMAGES ?= examples/images

.PHONY: demo test slow lint results clean

# Captions the example pictures with the shipped model and draws what it looked at.
demo: $(VENV)/ready
	$(BIN)/saywhy caption $(IMAGES) --figures demo
	@echo "what the model looked at: demo/*.png"

test: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

# The tests that take minutes.
slow: $(VENV)/ready
	$(BIN)/python -m pytest -q -m slow

# docs/results.md from results/*.json.
results: $(VENV)/ready
	$(BIN)/saywhy results results --out docs/results.md

clean:
	rm -rf $(VENV) demo .pytest_cache .ruff_cache .mypy_cache

# The environment is built once, and again when pyproject.toml changes. uv installs faster; pip does where uv is not to be had.
$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade uv && $(BIN)/uv pip install --quiet --python $(BIN)/python -e ".[dev]" \
		|| $(BIN)/pip install --quiet -e ".[dev]"
	touch $@
