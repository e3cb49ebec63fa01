# make demo · make test · make test-slow · make lint · make show-NAME: each sets up what it needs
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DATA ?= $(firstword $(wildcard data ../shared/data))
RUNS ?= runs
export RUNS
export DATA
export HF_HUB_OFFLINE ?= 1
export HF_HUB_DISABLE_TELEMETRY ?= 1
export TOKENIZERS_PARALLELISM ?= false
export OMP_NUM_THREADS ?= 1
PACKAGE_FILES := $(sort $(shell find rewards eval trainer scripts configs -name '__pycache__' -prune -o -type f -print))

.PHONY: demo test test-slow lint show-chain show-dial show-null install clean

demo: install
	$(BIN)/distillknob run undistillable distillable --output $(RUNS)

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-slow: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

show-chain: install
	$(BIN)/python -m benchmarks.show.chain $(PART)

show-dial: install
	$(BIN)/python -m benchmarks.show.dial $(PART)

show-null: install
	$(BIN)/python -m benchmarks.show.null $(PART)

install: $(VENV)/installed

# A strict editable install links the files that there are: it is made again when their list changes.
$(VENV)/files: .FORCE
	@mkdir -p $(VENV)
	@printf '%s\n' $(PACKAGE_FILES) > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
.PHONY: .FORCE
.FORCE:

$(VENV)/installed: $(VENV)/files pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --config-settings editable_mode=strict --editable '.[dev]'
	@touch $@

clean:
	rm -rf build $(VENV)
