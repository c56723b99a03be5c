"""Compile the rules into C extension modules with mypyc, if this machine has a C compiler.

``python tools/compile_rules.py`` writes the package ``minikafka_compiled`` into the environment of the Python that runs
it (minikafka/compiled.py decides at run time whether it is used); ``--into FOLDER`` writes it elsewhere. Nothing is
written into the source tree. With MINIKAFKA_PURE=1, or without a C compiler, the rules stay pure Python. mypyc is
installed first if need be.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from minikafka import compiled  # noqa: E402 - of this tree, which need not be installed

REQUIREMENT = "mypy[mypyc]>=2.4"
MODULES = (
    "minikafka.types",
    "minikafka.parked",
    "minikafka.broker.append_throttle",
    "minikafka.broker.dispatch",
    "minikafka.broker.flusher",
    "minikafka.broker.image_directory",
    "minikafka.broker.kafka_pipeline",
    "minikafka.broker.kafka_session",
    "minikafka.broker.meters",
    "minikafka.broker.partition_history",
    "minikafka.broker.purgatory",
    "minikafka.broker.replica_fetcher",
    "minikafka.broker.replica_manager",
    "minikafka.broker.throttle",
    "minikafka.broker.api.fetch",
    "minikafka.broker.api.produce",
    "minikafka.replication.follower",
    "minikafka.replication.partition",
    "minikafka.replication.fetch_session",
    "minikafka.broker.access",
    "minikafka.security.authorizer",
    "minikafka.security.permissions",
    "minikafka.security.quotas",
    "minikafka.wire.batch",
    "minikafka.wire.codec",
    "minikafka.wire.limits",
    "minikafka.wire.validate",
    "minikafka.wire.kafka.frames",
    "minikafka.wire.kafka.translate.common",
    "minikafka.wire.kafka.translate.fetch",
    "minikafka.wire.kafka.translate.produce",
    "minikafka.log.durability",
    "minikafka.log.epochs",
    "minikafka.log.limits",
    "minikafka.log.partition_log",
    "minikafka.log.producer_state",
    "minikafka.log.segment",
    "minikafka.log.segment_store",
    "minikafka.log.tail",
    "minikafka.replication.high_watermark",
    "minikafka.replication.leader",
    "minikafka.wire.frames",
    "minikafka.world.os_disk",
)
"""Synchronous and strictly typed, on the path of each produce and fetch request."""

# mypyc checks each index of a bytes object. The compiler takes an index out of range for as likely as one within, and
# lays out the code so; with this the walk over records (wire/frames.py) takes a seventh less time.
HINTS = """
#include <Python.h>
#ifdef __GNUC__
__attribute__((cold)) void PyErr_SetString(PyObject *, const char *);
#endif
"""

# mypyc's coroutines pass an exception on to what they await as throw(type, value, traceback), of which Python 3.12 and
# newer warn. Where warnings are errors, that warning would take the place of the exception: a sync that failed would
# not be DiskFailed, and a cancelled task would not be cancelled.
THROW = ("PyObject_CallFunctionObjArgs(_m, type, value, traceback, NULL)", "PyObject_CallOneArg(_m, value)")

# Runs in a process of its own: setuptools keeps global state, and reads the pyproject.toml of its working directory.
# One C file for each module, compiled in parallel: gcc takes half as much time again for one file with all of them.
MYPYC = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from setuptools import Distribution
from setuptools.command.build_ext import build_ext
from mypyc.build import mypycify

class parallel_build_ext(build_ext):
    def build_extensions(self):
        self.compiler.compile = self.compile_all
        super().build_extensions()

    def compile_all(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0, extra_preargs=None,
                    extra_postargs=None, depends=None):
        compiler = self.compiler
        macros, objects, extra, options, each = compiler._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs
        )
        arguments = compiler._get_cc_args(options, debug, extra_preargs)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda made: compiler._compile(made, *each[made], arguments, extra, options), each))
        return objects

build, three, one, *paths = sys.argv[1:]
options = ["--config-file=pyproject.toml", f"--cache-dir={build}/cache"]
modules = mypycify([*options, *paths], group_name="minikafka_rules", multi_file=True, target_dir=f"{build}/c")
runtime = Path(build, "c", "misc_ops.c")
runtime.write_text(runtime.read_text(encoding="utf-8").replace(three, one), encoding="utf-8")
os.chdir(build)
command = parallel_build_ext(Distribution({"name": "minikafka", "ext_modules": modules}))
command.build_lib, command.build_temp = f"{build}/lib", f"{build}/objects"
command.ensure_finalized()
command.run()
"""


def why_not() -> str:
    """Return why the rules cannot, or should not, be compiled here; empty if they can."""
    if compiled.is_pure():
        return f"{compiled.PURE_VARIABLE} is set"
    if sys.implementation.name != "cpython":
        return "this Python is not CPython"
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(command) is None:
        return f"no C compiler ({command})"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python.h is missing; on Debian or Ubuntu: apt install python3-dev"
    return ""


def source_of(module: str) -> Path:
    """Return a module's file in this tree."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def build(folder: Path) -> None:
    """Compile into ``folder``. Raises CalledProcessError, with mypyc's or the C compiler's output."""
    sources = [source_of(module) for module in MODULES]
    digests = [sha256(source.read_bytes()).hexdigest() for source in sources]
    with tempfile.TemporaryDirectory(prefix="minikafka-compile-") as scratch:
        paths = [str(source.relative_to(ROOT)) for source in sources]
        hints = Path(scratch, "hints.h")
        hints.write_text(HINTS, encoding="utf-8")
        subprocess.run(
            [sys.executable, "-c", MYPYC, scratch, *THROW, *paths],
            cwd=ROOT,
            env={**os.environ, "CFLAGS": f"{os.environ.get('CFLAGS', '')} -g0 -include {hints}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        built = Path(scratch, "lib")
        for file in built.rglob("*.so"):
            shutil.copy(file, folder / ".".join(file.relative_to(built).parts))
    # Last: without it the package counts as not compiled.
    lines = [f"{digest}  {module}\n" for digest, module in zip(digests, MODULES, strict=True)]
    (folder / "SOURCES").write_text("".join(lines), encoding="utf-8")


def is_current(folder: Path) -> bool:
    """Return True if ``folder`` has all modules that are compiled, as their sources are now."""
    return compiled.compiled_in(folder)[0].keys() == {compiled.LIBRARY, *MODULES}


def main() -> int:
    """Compile if need be; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    here = Path(sysconfig.get_path("platlib"), compiled.PACKAGE)
    parser.add_argument("--into", type=Path, default=here, help="Folder of the package (default: %(default)s).")
    folder: Path = parser.parse_args().into
    reason = why_not()
    if reason:
        print(f"==> the rules run as pure Python: {reason}")
        return 0
    if is_current(folder):
        return 0
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        install = [sys.executable, str(ROOT / "tools" / "install.py"), "mypyc (15 MB)", REQUIREMENT]
        if subprocess.run(install, check=False).returncode:
            print("==> the rules run as pure Python: mypyc could not be installed")
            return 0
    print(f"==> compiling {len(MODULES)} modules (about a minute; {compiled.PURE_VARIABLE}=1 does without)", flush=True)
    began = time.monotonic()
    try:
        build(folder)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(error.stdout)
        print(f"compiling failed; {compiled.PURE_VARIABLE}=1 does without", file=sys.stderr)
        return 1
    print(f"    {time.monotonic() - began:3.0f} s  done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
