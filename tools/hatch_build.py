"""Hatch's build hook: with MINIKAFKA_COMPILE=1 a wheel holds the compiled rules if this machine has a C compiler.

An editable installation is never compiled here: ``make compiled`` does that, and again after an edit.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

import compile_rules

COMPILE_VARIABLE = "MINIKAFKA_COMPILE"


def _why_not() -> str:
    if os.environ.get(COMPILE_VARIABLE, "") in {"", "0"}:
        return f"{COMPILE_VARIABLE} is not set"
    return compile_rules.why_not()


class CompiledRulesHook(BuildHookInterface[Any]):
    """Adds the package ``minikafka_compiled`` to the wheel."""

    def dependencies(self) -> list[str]:
        return [] if _why_not() else [compile_rules.REQUIREMENT]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        reason = _why_not()
        if reason:
            self.app.display_info(f"The rules in this wheel are pure Python: {reason}")
            return
        self._scratch = tempfile.TemporaryDirectory(prefix="minikafka-wheel-")
        folder = Path(self._scratch.name, "minikafka_compiled")
        compile_rules.build(folder)
        build_data["force_include"][str(folder)] = "minikafka_compiled"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()
