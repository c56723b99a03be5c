"""JVMs that tests start load Spark's classes from an archive (issue 16)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.spark.shared_classes import PREFIX


def test_the_session_maps_the_archive_though_its_spark_home_is_made_of_links(
    spark: Any, jvm_options: Mapping[str, str]
) -> None:
    """A JVM says nothing when it does without an archive, and each session then takes twice the processor time."""
    mapped = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text(encoding="utf-8")
    assert (PREFIX in mapped) == (PREFIX in jvm_options["JAVA_TOOL_OPTIONS"])
