# Each target is one line of tools you know; nothing here cannot be typed by hand after `make setup`.
.PHONY: setup site down bundle test e2e lint unit proofs bench docs docs-site stack-sums mirror packer kubernetes lock
.NOTPARALLEL:
BIN := .venv/bin
STAGE := tools/stage.sh
IMAGE := tests/e2e/test_50_image.py
# Ansible refuses to start in a locale that is not UTF-8, such as POSIX.
export LC_ALL := C.UTF-8

setup: ## system packages and .venv; MUSTER_NO_INSTALL=1 only says what is missing
	@tools/setup.sh

# Users of the nodes read what it makes for them: the hosts file and /fsx. Secrets set their own modes, in a state folder of mode 0700.
site: setup $(if $(ON),$(ON)) ## fleet up, proved, trained on: make site [ON=kubernetes] [FLEET=name] [COMPUTE=4] [TYPE=p5.48xlarge] [RERUN=1], and without ON [SHRINK=1] [MONITORING=1]
	umask 022; $(BIN)/ansible-playbook $(if $(ON),-i inventory/local_$(ON)) site.yml $(if $(FLEET),-e muster_fleet='$(FLEET)') $(if $(COMPUTE),-e muster_local_compute='$(COMPUTE)') $(if $(TYPE),-e muster_local_type='$(TYPE)') $(if $(SHRINK),-e muster_local_shrink='$(SHRINK)') $(if $(RERUN),-e muster_rerun='$(RERUN)') $(if $(MONITORING),-e muster_monitoring='$(MONITORING)')

down: setup ## removes the fleet and nothing else: make down [ON=kubernetes] [FLEET=name]
	$(BIN)/ansible-playbook $(if $(ON),-i inventory/local_$(ON)) playbooks/local_$(if $(ON),$(ON)_)down.yml $(if $(FLEET),-e muster_fleet='$(FLEET)')

bundle: setup ## logs, configuration and checks of a failing fleet in one archive: make bundle [FLEET=name]
	$(BIN)/ansible-playbook playbooks/bundle.yml $(if $(FLEET),-e muster_fleet='$(FLEET)')

ifdef ROLE
test: setup ## everything, or one role's: make test [ROLE=slurm]
	cd roles/$(ROLE) && ../../$(BIN)/molecule test
else
test:
	@tools/setup.sh --test
	$(STAGE) lint 240 -- $(MAKE) --no-print-directory lint
	$(STAGE) unit 1300 -- $(MAKE) --no-print-directory unit
	$(STAGE) fleet 2000 -- tests/fleet.sh
	-$(STAGE) packer 600 -- $(BIN)/python tools/get_packer.py # where it is not to be had, the next stage skips its tests by name
	$(STAGE) image 600 -- $(BIN)/pytest --engine $(IMAGE)
	$(STAGE) proofs 400 -- $(BIN)/python tests/proofs.py rerun --seconds 240 # some, chosen by the commit
endif

e2e: packer ## tests/e2e: site.yml, its faults and sizes on a local fleet, and an AMI built, launched and trained on in the local cloud
	$(BIN)/pytest --engine tests/e2e

lint: setup ## ansible-lint, ruff, mypy, shellcheck, ansible-test sanity, generated files current
	tests/lint.sh

unit: setup ## unit tests on two Pythons and the trainer's with torch
	tests/unit.sh

proofs: setup ## the slow tests whose records do not hold: make proofs [DUE=1] [NAMES="restore users"]; tests/proof/records keeps the results
	$(BIN)/python tests/proofs.py run $(if $(DUE),--due) $(NAMES)

bench: setup ## measures ratios and writes docs/performance.md: make bench [ONLY="converge adding"] [PEERS=folder]
	PEERS='$(PEERS)' $(BIN)/python -m tests.bench $(ONLY)

docs: setup ## what is generated: the variable tables of the roles' READMEs, the catalogue of instance types, docs/efa.md, the manifests in kubernetes/, cloudformation/, the files of clusters in tests/fixtures/architectures, runbooks and dashboards, the table of proofs
	$(BIN)/python tools/role_readmes.py
	$(BIN)/python tools/catalogue.py
	$(BIN)/python tools/efa_doc.py
	$(BIN)/python tools/kubernetes_manifests.py
	$(BIN)/python tools/cloudformation.py
	$(BIN)/python tools/cluster_files.py
	$(BIN)/python tools/observe.py
	$(BIN)/python tests/proofs.py table --write

docs-site: setup ## the documentation as a site: build/docs/index.html
	tools/venv.sh .venv-docs $(BIN)/python requirements/docs.txt
	$(BIN)/python tools/docs_site.py build/docs-source
	.venv-docs/bin/mkdocs build --strict --quiet --config-file build/docs-source/mkdocs.yml --site-dir ../docs

stack-sums: setup ## fetches what a stack names, checks it, prints the lines to commit: make stack-sums [STACK=aws-2026.11]
	$(BIN)/python tools/stack_sums.py $(or $(STACK),aws-2026.11)

mirror: setup ## a folder with every file of a stack, for machines without internet: make mirror STACK=aws-2026.11 TO=/srv/mirror
	$(BIN)/python tools/mirror.py $(or $(STACK),aws-2026.11) $(if $(TO),'$(TO)')

packer: setup ## Packer and its plugins: what is here, the vendor's release, or built from source (some minutes, once)
	$(BIN)/python tools/get_packer.py

kubernetes: setup ## the programs of a local Kubernetes and its operators: the vendor's release, or built from source (many minutes, once)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/kubernetes.txt
	$(BIN)/python tools/get_kubernetes.py $(if $(OPERATORS),--operators $(OPERATORS))

lock: ## uv.lock and the hashed requirements from pyproject.toml (needs uv)
	uv lock --quiet
	uv export --quiet --frozen --no-emit-project --no-default-groups --extra controller --extra dev -o requirements/dev.txt
	uv export --quiet --frozen --no-emit-project --no-default-groups --extra kubernetes -o requirements/kubernetes.txt
	uv export --quiet --frozen --no-emit-project --no-default-groups --extra trainer --group trainer-tests -o requirements/trainer.txt
	uv export --quiet --frozen --no-emit-project --no-default-groups --no-header --extra trainer -o roles/trainer/files/requirements.txt
	uv pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-header --group docs -o requirements/docs.txt
	uv export --quiet --frozen --no-emit-project --no-default-groups --no-header --no-annotate --extra controller -o playbooks/files/muster_home.txt
	echo torch==2.11.0 | uv pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-header -o requirements/torch-2.11.txt -
