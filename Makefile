# make demo    train, score and stream a small phase recognizer on this machine
# make test    run the tests
# make lint    check format, names and spelling
#
# Each command first sets up .venv as far as it needs; a second call starts at
# once. Variables:
#   PYTHON=...    the Python to build .venv from (3.10 to 3.12)
#   PIP_ARGS=...  more options for pip install, for example --no-cache-dir. The
#                 default torch on Linux is the CUDA build, several GB. A torch
#                 that is in .venv already is kept, so to use another build, run
#                 `make venv`, install torch and torchvision with .venv/bin/pip,
#                 go on.
#   TEST_ARGS=... more options for pytest

PYTHON ?=
PIP_ARGS ?=
# Two processes: one for each core of the machine the time limit is for. Tests
# of one file stay together, because they share fixtures.
TEST_ARGS ?= -n 2 --dist loadfile

VENV := .venv
BIN := $(VENV)/bin
BUILD_FILES := pyproject.toml setup.py $(wildcard kernels/cpu/*.[ch])
TEST_EXTRAS := all,dev

.DEFAULT_GOAL := help
.PHONY: help demo test lint venv clean

help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.stamp-demo
	$(BIN)/python tools/demo/demo.py

# One thread per process: with more, small models wait for each other.
test: $(VENV)/.stamp-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(TEST_ARGS)

lint: $(VENV)/.stamp-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

venv: $(VENV)/.stamp-venv

clean:
	rm -rf build dist mmssm.egg-info .pytest_cache .ruff_cache .hypothesis
	find mmssm kernels tools tests configs -name __pycache__ -prune \
	    -exec rm -rf {} +

# A command named python3.x may exist and not run (a shim of pyenv): try each.
# A .venv left half made by an interrupt has no pip: it is made anew.
$(VENV)/.stamp-venv:
	@range='import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))'; \
	chosen=; \
	for python in $(if $(PYTHON),"$(PYTHON)",$(BIN)/python python3 \
	        python3.12 python3.11 python3.10); do \
	    [ "$$python" != '$(BIN)/python' ] || \
	        $$python -m pip --version >/dev/null 2>&1 || continue; \
	    if $$python -c "$$range" 2>/dev/null; then \
	        chosen=$$python; break; \
	    fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	    echo 'No Python 3.10, 3.11 or 3.12 was found$(if $(PYTHON), ($(PYTHON) was tried)).' >&2; \
	    echo 'Install one and name it: make demo PYTHON=/path/to/python3.12' >&2; \
	    exit 1; \
	fi; \
	echo "Making $(VENV) with $$($$chosen --version) ($$chosen)"; \
	if [ "$$chosen" != '$(BIN)/python' ] && ! $$chosen -m venv --clear $(VENV); then \
	    echo 'The virtual environment was not made. On Debian and Ubuntu the' >&2; \
	    echo 'module is a package of its own: apt install python3-venv' >&2; \
	    exit 1; \
	fi
	@touch $@

# $(call install,EXTRAS)
define install
	@echo 'Installing mmssm[$(1)]: the first time this downloads several GB'
	@$(BIN)/python -m pip install $(PIP_ARGS) -e '.[$(1)]' || { \
	    echo; \
	    echo 'The installation failed; the last lines above say why.' >&2; \
	    echo 'Network: check the connection (behind a proxy set HTTPS_PROXY),' >&2; \
	    echo 'then run the same command again: finished downloads are kept.' >&2; \
	    echo 'Disk: about 10 GB are needed in this directory and in ~/.cache.' >&2; \
	    exit 1; }
	@$(BIN)/python -c 'import torch, torchvision, cv2, mmengine.runner' || { \
	    echo; \
	    echo 'An installed package does not import. If it is libGL.so.1 or' >&2; \
	    echo 'libgthread-2.0.so.0 that is missing: apt install libgl1' >&2; \
	    echo 'libglib2.0-0. Otherwise remove $(VENV) and run again.' >&2; \
	    exit 1; }
endef

$(VENV)/.stamp-demo: $(VENV)/.stamp-venv $(BUILD_FILES)
	$(call install,video)
	@touch $@

# The set-up for the tests holds that for the demo.
$(VENV)/.stamp-test: $(VENV)/.stamp-venv $(BUILD_FILES)
	$(call install,$(TEST_EXTRAS))
	@touch $(VENV)/.stamp-demo $@
