# make HogWild       run an example: any folder with a model.py; ARGS="--train_steps=500" passes flags
# make compare       run all of them on the same problem: table, pictures; ARGS=--quick: in 3 minutes
# make advise        your model, your cluster: which scheme? ARGS="--folder=... --cluster=..."
# make simulate      simulate many workers: ARGS="--scheme=AGN --workers=128"; or all: ARGS=--study
# make tensorboard   look at these runs side by side; LOGDIR= names another directory
# make notebooks     open the notebooks of Basics-Tutorial in Jupyter
# make test          run the tests, in minutes; ARGS="-k hogwild" passes arguments to pytest
# make test-all      run all of them: every case, every engine, each task killed in each way
# make test-both     make test on TensorFlow 1.15, and on 2.21
# make soak          faults at random for an hour; ARGS=--minutes=5
# make search-faults the protocols in orders drawn by a seed; ARGS=--planted
# make bench         measure: steps per second, start-up, memory; ARGS=--only=beside: beside others
# make peers         install these others, which takes gigabytes: PyTorch, TensorFlow 2, Horovod
# make clean         remove the environments and caches
#
# Each makes what it needs. PYTHON= and VENV= choose another interpreter and environment; JOBS=1
# runs one test at a time.

SHELL := bash
VENV ?= .venv
JOBS ?= 3

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

.PHONY: help $(examples) compare advise simulate tensorboard notebooks test test-all test-both \
        soak search-faults bench peers clean
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

$(examples): $(VENV)/installed
	@PYTHON=$(python) bash $@/run.sh $(ARGS)

compare: $(VENV)/installed
	@PYTHON=$(python) bash Comparison/run.sh $(ARGS)

advise: $(VENV)/installed
	@PYTHON=$(python) bash Simulation/run.sh --advise $(ARGS)

simulate: $(VENV)/installed
	@PYTHON=$(python) bash Simulation/run.sh $(ARGS)

tensorboard: $(VENV)/installed
	@if [ -z "$(LOGDIR)" ]; then echo 'Nothing to show yet: make compare ARGS=--quick' >&2; exit 1; fi
	$(python) -m tensorboard.main --logdir="$(LOGDIR)" $(ARGS)

# All of the checkout is served, because notebooks link to files outside of their folder. Jupyter 6
# and 7 have a name each for the page that opens. As root Jupyter wants to be told that it may run.
notebooks: $(VENV)/installed
	$(python) -m notebook --NotebookApp.default_url=/tree/Basics-Tutorial \
	  --JupyterNotebookApp.default_url=/tree/Basics-Tutorial \
	  $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

# Tests wait for processes more than they compute, so some run beside each other. If a process that
# runs tests dies, the whole run ends: pytest-xdist would start another one, and wait forever.
pytest = $(python) -m pytest --numprocesses=$(JOBS) --dist=loadgroup --max-worker-restart=0 \
         -o cache_dir=$(abspath $(VENV))/pytest_cache

test: $(VENV)/installed
	$(pytest) -m 'not thorough' $(ARGS) tests

test-all: $(VENV)/installed
	$(pytest) -m 'not brief' $(ARGS) tests

test-both:
ifeq ($(and $(tf1_python),$(tf2_python)),)
	$(MAKE) test
	@echo 'This machine has the Python of one TensorFlow only: 3.7, or 3.10 to 3.13.'
else
	$(MAKE) test VENV=.venv PYTHON=$(tf1_python)
	$(MAKE) test VENV=.venv-tf2 PYTHON=$(tf2_python)
endif

soak: $(VENV)/installed
	@$(python) tests/faults/soak.py $(ARGS)

search-faults: $(VENV)/installed
	@$(python) tests/searching/search.py $(ARGS)

bench: $(VENV)/installed
	$(python) Comparison/bench.py $(ARGS)

peers: .venv-peers/installed
	@if [ -n "$(tf1_python)" ]; then $(MAKE) .venv-horovod/installed; \
	else echo 'Horovod is left out: here it needs Python 3.7, as TensorFlow 1.15 does.'; fi

clean:
	rm -rf .venv .venv-tf2 .venv-peers .venv-horovod .pytest_cache .ruff_cache build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -r {} +

$(VENV)/installed: requirements.txt pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
	  echo 'No usable Python: TensorFlow 1.15 needs 3.7, TensorFlow 2.21 needs 3.10 to 3.13.' >&2; \
	  exit 1; \
	fi
	$(PYTHON) -m venv $(VENV)
	$(python) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(python) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

pip_install = bin/python -m pip install --quiet --disable-pip-version-check

.venv-peers/installed: Comparison/peers.txt
	@if [ -z "$(tf2_python)" ]; then echo 'Peers need Python 3.10 to 3.13.' >&2; exit 1; fi
	$(tf2_python) -m venv .venv-peers
	.venv-peers/$(pip_install) -r Comparison/peers.txt
	@touch $@

# It is compiled, against the TensorFlow that is installed first.
.venv-horovod/installed: Comparison/peers.txt
	$(tf1_python) -m venv .venv-horovod
	.venv-horovod/$(pip_install) -r Comparison/peers.txt
	PATH="$(abspath .venv-horovod/bin):$$PATH" HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
	  HOROVOD_WITH_TENSORFLOW=1 .venv-horovod/$(pip_install) --no-build-isolation horovod==0.28.1
	@touch $@
