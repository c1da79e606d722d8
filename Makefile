# make HogWild       run an example: any folder with a model.py; ARGS="--train_steps=500" passes flags
# make compare       run all of them on the same problem: table, pictures; ARGS=--quick: in 3 minutes
# make tensorboard   look at these runs side by side; LOGDIR= names another directory
# make notebooks     open the notebooks of Basics-Tutorial in Jupyter
# make test          run the tests; ARGS="-k hogwild" passes arguments to pytest
# make test-both     the same on both TensorFlows
# make bench         measure: steps per second, start-up, memory
# make companions    copy the files and definitions that folders share from their master
# make clean         remove the environments and caches
#
# Each makes what it needs. PYTHON= and VENV= choose another interpreter and environment.

SHELL := bash
VENV ?= .venv

# An interpreter counts if it runs: pyenv puts a python3.7 on the PATH that may only print an error.
runs = $(shell $(1) -c 'import sys; v = sys.version_info; $(2) and print(sys.executable)' 2>/dev/null)
tf1_python = $(firstword $(foreach p,python3.7 $(wildcard $(HOME)/.pyenv/versions/3.7.*/bin/python),\
               $(call runs,$(p),v[:2] == (3, 7))))
tf2_python = $(firstword $(foreach p,python3 python3.13 python3.12 python3.11 python3.10,\
               $(call runs,$(p),(3, 10) <= v[:2] <= (3, 13))))
PYTHON ?= $(or $(tf1_python),$(tf2_python))

python := $(abspath $(VENV))/bin/python
examples := $(patsubst %/model.py,%,$(wildcard */model.py))
LOGDIR ?= $(firstword $(wildcard Comparison/mine/tensorboard Comparison/quick/tensorboard))

.PHONY: help $(examples) compare tensorboard notebooks test test-both test-1.15 test-2.21 bench \
        companions clean
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

$(examples): $(VENV)/installed
	@PYTHON=$(python) bash $@/run.sh $(ARGS)

compare: $(VENV)/installed
	@PYTHON=$(python) bash Comparison/run.sh $(ARGS)

tensorboard: $(VENV)/installed
	@if [ -z "$(LOGDIR)" ]; then echo 'Nothing to show yet: make compare ARGS=--quick' >&2; exit 1; fi
	$(python) -m tensorboard.main --logdir="$(LOGDIR)" $(ARGS)

notebooks: $(VENV)/installed
	cd Basics-Tutorial && $(python) -m notebook $(ARGS)

test: $(VENV)/installed
	$(python) -m pytest -o cache_dir=$(abspath $(VENV))/pytest_cache $(ARGS) tests

# At the same time: most tests wait for processes. Each line says which one it is of. A test may wait
# too short beside those of the other TensorFlow: what fails is run once more, and has to pass then.
test-both:
	@if [ -n "$(and $(tf1_python),$(tf2_python))" ]; then \
	  $(MAKE) --no-print-directory --jobs=2 test-1.15 test-2.21; \
	else \
	  $(MAKE) test && \
	  echo 'This machine has the Python of one TensorFlow only: 3.7, or 3.10 to 3.13.'; \
	fi

test-1.15 test-2.21: test-%:
	@set -o pipefail; \
	run() { \
	  $(MAKE) test VENV=$(if $(filter 1.15,$*),.venv,.venv-tf2) \
	    PYTHON=$(if $(filter 1.15,$*),$(tf1_python),$(tf2_python)) "$$@"; \
	}; \
	{ run || run ARGS=--last-failed; } 2>&1 | \
	while IFS= read -r line; do echo "$*: $$line"; done

bench: $(VENV)/installed
	$(python) Comparison/bench.py $(ARGS)

companions: $(VENV)/installed
	$(python) tests/companions.py

clean:
	rm -rf .venv .venv-tf2 .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -r {} +

$(VENV)/installed: requirements.txt
	@if [ -z "$(PYTHON)" ]; then \
	  echo 'No usable Python: TensorFlow 1.15 needs 3.7, TensorFlow 2.21 needs 3.10 to 3.13.' >&2; \
	  exit 1; \
	fi
	$(PYTHON) -m venv $(VENV)
	$(python) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@
