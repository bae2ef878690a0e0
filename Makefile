# `make demo` and `make test` need a Python 3.10 or newer and nothing else; `make help` lists the rest.
#
#   PYTHON=python3.13   the interpreter to make the virtual environment with
#   VENV=.venv          where it lies
#   ARGS="-k ledger"    handed to pytest, to the benchmark or to the black-box rows
#   QUIET=10 BUSY=10    how often `make repeat` runs the suite, and how often with every core kept busy

VENV ?= .venv
RUN := $(VENV)/bin
# More than cores: much of what tests do is waiting for deadlines and for processes that end.
WORKERS ?= $(shell expr $$(nproc) + 4)

PYTHON_FOLDERS := src tests bench tools docs native examples hatch_build.py
C_FILES = $$(find native examples src/vram/include tests/header -name '*.[ch]' -o -name '*.[ch]pp' -o -name '*.cu')
PROGRAMS := src/vram/virtualgpu/programs
ARM := aarch64-linux-gnu

# Where the environment forbids Python to keep what it compiled, each of the thousands of programs that
# the suite starts would compile vram anew.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help native demo serve-demo fleet-demo test interpreter interpreter-here test-tools repeat faults sanitize lint format types bench bench-here docs map golden pictures matrix dist arm explore gpu clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

# ---- set-up: a stamp per purpose, so that only the first run waits ----

groups-run =
groups-demo = demo
groups-test = test clients docs services
groups-lint = lint test
groups-interpreter = test clients
groups-docs = docs
groups-bench = bench
groups-dist = dist

$(VENV)/ready-%: pyproject.toml hatch_build.py native/build.py tools/environment.py
	@python=$$(tools/find-python $(PYTHON)) && "$$python" tools/environment.py $(VENV) $(groups-$*)
	@touch $@ $(VENV)/ready-run

# Always asked, since it knows better than timestamps what has changed; it answers in no time.
native:
	@$(RUN)/python native/build.py >/dev/null

# ---- what people run ----

demo: $(VENV)/ready-run native ## the five questions, shown by real processes on a virtual GPU
	@$(RUN)/vram demo $(ARGS)

serve-demo: $(VENV)/ready-demo native ## vram serve on a virtual GPU with a ghost: page, metrics, API; Ctrl-C ends it
	@$(RUN)/python tools/serve_demo.py $(ARGS)

fleet-demo: $(VENV)/ready-demo native ## many machines in one table: virtual nodes, by Ray where it is installed
	@$(RUN)/python tools/fleet_demo.py $(ARGS)

# The first time all tests are compiled, while PyCUDA is: else every worker would compile all of them.
test: $(VENV)/ready-test native ## the whole suite; no GPU needed. Installs nothing outside of this folder
	@[ -e $(VENV)/compiled ] || { $(RUN)/python -m pytest --collect-only -q >/dev/null 2>&1; touch $(VENV)/compiled; } & \
		$(RUN)/python tools/pycuda_wheel.py --install; wait
	@$(RUN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)

# What depends on the interpreter: what other versions broke before. Programs on further versions of Python are the
# suite's: whichever one starts them, they run the same. `make matrix` runs everything on all of them.
OF_THE_INTERPRETER := tests/guard tests/inside tests/tracer tests/history tests/cli tests/pytest_plugin \
	tests/reach/test_payload.py tests/reach/test_agent.py tests/reach/test_remote_exec.py \
	tests/serve/test_http.py tests/serve/test_socket.py tests/doctor/test_other_eyes.py tests/release/test_faults.py \
	tests/test_python_310.py

interpreter: ## those parts with PYTHON=, in an environment of their own
	@$(MAKE) --no-print-directory VENV=.build/$(notdir $(PYTHON)) interpreter-here

interpreter-here: $(VENV)/ready-interpreter native
	@$(RUN)/python -m pytest -q -n $(WORKERS) --dist worksteal --this-python $(OF_THE_INTERPRETER) $(ARGS)

test-tools: ## Debian's packages that some tests drive: a browser, Slurm, shells...; needs root, says what it installs
	@tools/get-test-tools
	@tools/get-newer-pythons 3.14 3.15

repeat: $(VENV)/ready-test native ## the suite QUIET and BUSY times, and a table of what failed how often
	@$(RUN)/python tools/pycuda_wheel.py --install
	@$(RUN)/python tools/repeat.py --workers $(WORKERS) $(if $(QUIET),--quiet $(QUIET)) $(if $(BUSY),--busy $(BUSY)) $(ARGS)

# VRAM_PID_REUSES, VRAM_KILLS, VRAM_MACHINES, VRAM_LOOKS and VRAM_VISITS make its longest rows as long as the promise is:
# 10000, 1000, 10000, 1000 and 5000.
faults: $(VENV)/ready-test native ## every row of the fault table, and its page docs/reference/faults.md
	@$(RUN)/python -m pytest -q -n $(WORKERS) -m fault --faults-page=docs/reference/faults.md $(ARGS)

sanitize: $(VENV)/ready-test ## the C libraries under ASan and UBSan, driven by their tests
	@$(RUN)/python tools/sanitize.py -n $(WORKERS) $(ARGS)

lint: $(VENV)/ready-lint ## ruff, names, import contracts, workflows, C format and warnings (with a compiler for aarch64: there too)
	@$(RUN)/ruff check --quiet $(PYTHON_FOLDERS)
	@$(RUN)/ruff format --check --quiet $(PYTHON_FOLDERS)
	@$(RUN)/python tools/names.py
	@$(RUN)/lint-imports >$(VENV)/lint-imports.txt || { cat $(VENV)/lint-imports.txt; exit 1; }
	@$(RUN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(RUN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	@$(RUN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	@$(RUN)/clang-format --dry-run -Werror $(C_FILES)
	@$(RUN)/python native/build.py --strict --into .build/strict >/dev/null
	@! command -v $(ARM)-gcc >/dev/null || \
	$(RUN)/python native/build.py --strict --target $(ARM) --into .build/strict-arm >/dev/null

format: $(VENV)/ready-lint ## put Python and C into the one format that lint checks
	@$(RUN)/ruff format --quiet $(PYTHON_FOLDERS)
	@$(RUN)/clang-format -i $(C_FILES)

types: $(VENV)/ready-lint ## mypy --strict
	@$(RUN)/mypy --no-error-summary
	@MYPYPATH=$(PROGRAMS) $(RUN)/mypy --no-error-summary --config-file= --strict --explicit-package-bases $(PROGRAMS)

# An environment of its own: numba-cuda, which the suite needs, puts a hook into every start of Python,
# for us and for the others.
bench: ## speed against gpustat, nvitop, fuser and lsof, as ratios
	@$(MAKE) --no-print-directory VENV=.build/bench bench-here

# Compiled beforehand, as pip does for the others: some environments forbid Python to do so itself.
bench-here: $(VENV)/ready-bench native
	@$(RUN)/python -m compileall -q src
	@$(RUN)/python bench/run.py $(ARGS)

# The cache knows what has not changed; whatever Sphinx warns of fails the build.
docs: $(VENV)/ready-docs ## the documentation as a site in site/: strict, searched offline
	@$(RUN)/python docs/sphinx/collect.py .build/site-source
	@$(RUN)/python -m sphinx -j auto -W --keep-going -q -d .build/site-cache .build/site-source site
	@echo "site/index.html is ready: it needs no server and no network"

dist: $(VENV)/ready-dist ## what people install, in dist/: built twice and compared, and tried on every Python that is found
	@$(RUN)/python tools/dist.py $(ARGS)

map: ## every source file and its one job; ARGS=ledger: those of one folder
	@python=$$(tools/find-python $(PYTHON)) && PYTHONPATH=docs "$$python" -m generators.files $(ARGS)

golden: $(VENV)/ready-test native ## the pages of tests/golden anew: what every command prints
	@VRAM_WRITE_GOLDEN=1 $(RUN)/python -m pytest -q tests/golden $(ARGS)

pictures: $(VENV)/ready-test native ## draw the pictures of docs/ and README.md, from demos on the virtual GPU
	@$(RUN)/python docs/generators/pictures.py docs
	@$(RUN)/python docs/generators/top_pictures.py docs/pictures
	@$(RUN)/python docs/generators/trace_pictures.py docs/pictures
	@$(RUN)/python docs/generators/serve_pictures.py docs/pictures
	@$(RUN)/python tools/bytes_picture.py docs/bytes.svg

matrix: ## the suite on every supported Python that is found, and a table; PYTHONS=3.10,3.14: on those
	@python=$$(tools/find-python $(PYTHON)) && "$$python" tools/matrix.py $(if $(PYTHONS),--pythons $(PYTHONS)) $(ARGS)

# About 250 MB of Debian's packages the first time. ARGS="tests/reach -k native": those alone.
arm: $(VENV)/ready-run ## the tests that depend on the processor, on aarch64 in an emulator
	@$(RUN)/python tools/arm.py $(ARGS)

explore: $(VENV)/ready-test native ## the property tests, on examples that nobody has tried yet
	@$(RUN)/python -m pytest -q -n $(WORKERS) -m hypothesis --hypothesis-profile=explore $(ARGS)

# With PYTHON= the hardware suite runs on that interpreter as it is: nothing is installed, and what
# it lacks (msgspec, nvidia-ml-py) can lie in a folder that PYTHONPATH names. EVIDENCE=docs/evidence
# keeps the results there. Driver faults are the virtual GPU's: they need no hardware.
hardware = $(1) tests/blackbox/run.py $(ARGS) $(if $(EVIDENCE),--evidence $(EVIDENCE)) && { \
	export VRAM_EVIDENCE=$(EVIDENCE); \
	$(1) -m pytest -q -p no:cacheprovider --real-gpu -m shares_gpu -n 6 --dist worksteal tests/hardware; shared=$$?; \
	$(1) -m pytest -q -p no:cacheprovider --real-gpu -m "not shares_gpu" \
	--ignore=tests/ghosts/test_faults.py tests/ghosts tests/hardware tests/reclaim/test_no_victim.py && exit $$shared; }

ifeq ($(wildcard /dev/nvidiactl /dev/dxg),)
gpu: ## the tests that need real hardware
	@echo "no NVIDIA GPU here (neither /dev/nvidiactl nor /dev/dxg exists): hardware tests skipped"
else ifdef PYTHON
gpu:
	@$(PYTHON) native/build.py >/dev/null
	@export PYTHONPATH=src:$$PYTHONPATH; $(call hardware,$(PYTHON))
else
gpu: $(VENV)/ready-test native
	@$(call hardware,$(RUN)/python)
endif

clean: ## remove everything that was built or installed here
	@rm -rf $(VENV) .build build dist site .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	@find $(PYTHON_FOLDERS) -name __pycache__ -type d -prune -exec rm -rf {} +
