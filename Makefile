# make demo   the main job on real data: logistic regression on a9a
# make test   linter, types and tests
# make test-quick   the tests that are not marked slow: each sampler on one backend, all bad input
# make test-long   the tests that make test leaves out: more of the same, on other ways and backends
# make docs   the documentation site, in docs/_build/html
# make gallery   runs the notebooks of docs/gallery again, with their outputs and thumbnails
# make bench  speed against hand-written and rival loops
# Each makes the environment first. PYTHON=/path/to/python3.12 chooses the interpreter.

PY := .venv/bin/python
PYTEST := $(PY) -m pytest -n auto --dist loadfile --no-loadscope-reorder
STAMP := .venv/.installed

.PHONY: install demo test test-quick test-long lint docs gallery bench clean

install: $(STAMP)

$(STAMP): pyproject.toml
	@python=$$(sh .ci/find_python "$(PYTHON)") || exit 1; \
	echo "Making .venv with $$python"; \
	"$$python" -m venv .venv
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet --editable '.[jax,zarr,dask,test,docs,dev]'
	@touch $(STAMP)

demo: install
	$(PY) examples/logistic_regression_a9a.py

test: install
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PYTEST) -m "not long"

# A test is marked slow(seconds) where it takes more than about 1.5 CPU seconds with empty caches;
# on numba and C if it runs on JAX too (tests/conftest.py).
test-quick: install
	$(PYTEST) -m "not slow and not long"

# Long statistical tests, and further ways through what make test shows on one.
test-long: install
	$(PYTEST) -m long

lint: install
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(PY) -m mypy

docs: install
	$(PY) -m sphinx -W --keep-going -b html docs docs/_build/html

gallery: install
	$(PY) docs/scripts/make_gallery.py

bench: install
	$(PY) benchmarks/speed.py

clean:
	rm -rf .venv docs/_build .pytest_cache .mypy_cache .ruff_cache
