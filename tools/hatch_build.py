"""Hatch's build hook: a wheel holds the compiled rules if the machine that builds it has a C compiler.

MINIKAFKA_PURE=1 builds a wheel of pure Python. An editable installation is never compiled here: ``make compiled`` does
that, and again after an edit.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

import compile_rules


class CompiledRulesHook(BuildHookInterface[Any]):
    """Adds the package ``minikafka_compiled`` to the wheel."""

    def dependencies(self) -> list[str]:
        return [] if compile_rules.why_not() else [compile_rules.REQUIREMENT]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        reason = compile_rules.why_not()
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
