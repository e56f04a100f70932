# Two commands: `make demo` and `make test`. Both make what they need first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# For two cores: real processes mostly wait for each other, so three tests at once keep both busy.
WORKERS ?= 3
# Errors only: of every installation in place pip passes on a warning of setuptools, a screenful that is no news.
INSTALL := $(BIN)/python -m pip install --quiet --quiet --editable

.PHONY: help demo test test-slow test-secure fuzz lint types bench clean mosquitto check-deploy check-compiled

help:
	@echo "make demo    seven peers train a classifier of handwritten digits; a link is cut, one is killed"
	@echo "make test    the tests, but for those that take many processes or long"
	@echo "make test-slow   these"
	@echo "make test-secure   its fleets of processes once more, with identities and encrypted links"
	@echo "make fuzz    guesses at all that is parsed before a peer is known, FUZZ_SECONDS=20 each"
	@echo "make lint    ruff; make types: mypy"
	@echo "make check-deploy  devices that boot, images, aarch64: as root, in minutes"
	@echo "make check-compiled  the machine, compiled by mypyc, does what its sources do"
	@echo "make bench   what the benchmarks need (large: PyTorch and Open MPI)"

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("edgepeer needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(INSTALL) '.[dev]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/edgepeer emulate --scenario demo --skip-impossible

test: $(VENV)/.ready mosquitto
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow' $(PYTEST_ARGS)

# Whole fleets of processes with faults, and what goes through many cases. What lands has passed both.
test-slow: $(VENV)/.ready mosquitto
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow $(PYTEST_ARGS)

# All emulations once more, each as a fleet of its own.
test-secure: $(VENV)/.ready mosquitto
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --secure tests/e2e $(PYTEST_ARGS)

# By coverage. What gets further is kept in build/fuzz, and so is what fails: tests/fuzz/fuzz.py NAME FILE repeats it.
fuzz: $(VENV)/.ready
	$(INSTALL) '.[dev,fuzz]'
	PYTHONPATH=tests $(BIN)/python tests/fuzz/fuzz.py

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

# Everything in deploy/, also what takes minutes: devices with a systemd of their own, images, aarch64 under qemu.
check-deploy: $(VENV)/.ready
	$(INSTALL) '.[dev,deploy]'
	CHECK_DEPLOY=1 $(BIN)/python -m pytest tests/deploy $(PYTEST_ARGS)

# The machine and the simulator, compiled from the same sources, do the same.
check-compiled: $(VENV)/.ready
	CHECK_COMPILED=1 $(BIN)/python -m pytest tests/e2e/test_compiled.py $(PYTEST_ARGS)

# The real broker, for the tests that use one. Without it they are skipped and say why.
mosquitto:
	@PATH="$$PATH:/usr/sbin" command -v mosquitto >/dev/null || sh deploy/install-mosquitto.sh || true

bench: $(VENV)/.ready
	$(INSTALL) '.[bench]'

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
