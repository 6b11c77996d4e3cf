PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
IMAGES := examples/images
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

.PHONY: demo test slow pictures screenshots results bench performance notebook docs clean

# Caption the example images with the shipped model, explain the captions, and one of them by all methods.
# One thread, because two are several times slower while other programs use the processor.
demo: export OMP_NUM_THREADS ?= 1
demo: $(VENV)/ready
	$(BIN)/saywhy caption $(IMAGES) --risk
	$(BIN)/saywhy explain $(IMAGES) --method lrp,attention --out demo > /dev/null
	$(BIN)/saywhy explain $(IMAGES)/surfer_wave.jpg --out demo/surfer_wave
	@echo
	@echo "Open demo/index.html in a browser: all captions, and why each word was chosen."

test: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST)

# The tests that are too slow for every change; .ci/run runs them too.
slow: $(VENV)/ready
	$(PYTEST) -m slow

# The pictures of README.md and docs/explain.md.
pictures: $(VENV)/ready
	$(BIN)/saywhy caption $(IMAGES) --risk --sheet docs/demo.jpg
	$(BIN)/saywhy explain $(IMAGES)/astronaut.jpg --method lrp --out demo/why
	cp demo/why/words.png docs/why.png

# The pictures of docs/web.md, taken by the tests of the page; they need Chromium.
screenshots: $(VENV)/ready
	SAYWHY_SCREENSHOTS=docs OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 0 -m slow tests/web/test_browser.py

# Write docs/results.md from results/*.json.
results: $(VENV)/ready
	$(BIN)/saywhy results results --out docs/results.md

# Speed beside other projects and the machine's limits, as a table. SGRVINOD, RUOTIANLUO and LRP_IC are checkouts
# of peers, and DATA is the folder that holds flickr8k/; what is not given is left out. Results go to bench/.
bench: export OMP_NUM_THREADS ?= 1
bench: $(VENV)/ready
	$(BIN)/python benchmarks/run_all.py --out bench $(if $(DATA),--data $(DATA)) \
		$(if $(SGRVINOD),--sgrvinod $(SGRVINOD)) $(if $(RUOTIANLUO),--ruotianluo $(RUOTIANLUO)) \
		$(if $(LRP_IC),--lrp-imagecaptioning $(LRP_IC))

# Write docs/performance.md and its plot from benchmarks/results/*.json.
performance: $(VENV)/ready
	$(BIN)/python benchmarks/report.py --out docs/performance.md
	$(BIN)/python benchmarks/growth.py --read benchmarks/results/growth.json --plot docs/growth.svg

# Run examples/explain.ipynb and store what its cells show.
notebook: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python docs/run_notebook.py examples/explain.ipynb

# The documentation with an API reference and a search box, as files that need no server: site/index.html.
docs: $(VENV)/ready
	$(BIN)/python docs/build_site.py site
	@echo "Open site/index.html in a browser."

clean:
	rm -rf $(VENV) demo site .pytest_cache .ruff_cache .mypy_cache

# The environment is built once, and again when pyproject.toml changes. uv installs faster than pip, if it is available.
$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade uv && $(BIN)/uv pip install --quiet --python $(BIN)/python -e ".[dev]" \
		|| $(BIN)/pip install --quiet -e ".[dev]"
	touch $@
