"""Measures the figures of issue 16 and prints them beside those of commit 62e114e, from which the issue starts.

``python -m tests.tidy.figures`` measures this tree. ``--tree FOLDER`` measures another checkout, for example one made by
``git worktree add FOLDER COMMIT``; its code runs in a process of its own. ``--no-walks`` leaves out the calls of a request,
which need a broker on loopback.

- Code lines: lines that hold code. Blank lines, comments and docstrings (also those of attributes) do not count.
- Later features: modules that exist only for what 62e114e could not do count apart, as "code lines in modules", one line for each
  feature. LATER names them. A module counts for the features of 62e114e if its content was there under any name, if an old
  feature uses it, or in doubt. So what later features added to old modules counts for the old ones, and so do checks that came
  later for old features (validation of batches, limits of documents). A module that several later features use is listed with the
  first that needed it.
- Walks: the calls of functions in ``minikafka/`` between the first byte of a request and the last of its response, in a
  running broker; the files that they are in; and how often a call is in another file than the call before. The request is
  repeated, and the fewest calls count, because a timer of the broker may run in between.
- Words: whole words in the product's Python files, in docs/ and in README.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.sources import ROOT

WALK = ROOT / "tests" / "tidy" / "walk.py"

BEFORE_LINES = {
    "rest": 8674,
    "cli": 6283,
    "sim": 5752,
    "broker": 4914,
    "client": 4868,
    "chaos": 3421,
    "world": 3342,
    "log": 3151,
    "quorum": 3076,
    "spark": 2747,
    "check": 2146,
    "lab": 2128,
    "wire": 1750,
    "groups": 1678,
    "ui": 986,
    "replication": 812,
}
"""Code lines of commit 62e114e by package: those that the issue names, and so are the next two figures."""

BEFORE_TOTAL, BEFORE_MODULES = 57_509, 440

BEFORE_WORDS = {"told": 1191, "whoever": 97, "anew": 93, "somebody": 63, "as it is": 36}
"""Of 62e114e, counted as here. (ENGLISH's 1,028, 84 and 78 are of the code alone.)"""

BEFORE_WALKS = {"/rpc": (177, 34, 109), "/v1": (239, 47, 148)}
"""Calls, files and changes of file of 62e114e, measured as here. The issue names (210, 36, 120), and 480 calls in 50 files
of a request over ``/v1``: it does not say how it counted.
"""

WANTED_LINES = {"rest": 5_500}
WANTED_TOTAL, WANTED_MODULES = 48_000, 320
WALKS_WANTED = 0.75
WORDS_WANTED = 0.05

LATER = {
    "Kafka's binary protocol": (
        "broker/forwarding.py",
        "broker/image_directory.py",
        "broker/kafka_pipeline.py",
        "broker/kafka_session.py",
        "sim/kafka_link.py",
        "sim/kafka_plans.py",
        "sim/kafka_producer.py",
        "sim/kafka_reader.py",
        "sim/streams.py",
        "wire/kafka/",
        "world/kafka_connection.py",
    ),
    "transactions": (
        "broker/api/markers.py",
        "broker/marker_sender.py",
        "broker/transaction_manager.py",
        "broker/verification.py",
        "check/transactions.py",
        "cli/transactions.py",
        "client/transaction_operations.py",
        "client/transactions.py",
        "coordination/regexes.py",
        "lab/transactions.py",
        "log/transaction_index.py",
        "log/transactions.py",
        "log/verification.py",
        "rest/transactions.py",
        "sim/looper.py",
        "sim/transaction_book.py",
        "sim/transaction_invariants.py",
        "sim/transactor.py",
        "sim/transactor_plans.py",
        "sim/transactors.py",
        "spark/transactions.py",
        "transactions/",
        "wire/features.py",
        "wire/markers.py",
        "wire/transaction_messages.py",
    ),
    "the consumer protocol (KIP-848)": (
        "client/consumer_member.py",
        "groups/consumer/",
        "sim/consumer_group_watch.py",
        "sim/heartbeat_member.py",
        "sim/migration_watch.py",
        "sim/ownership.py",
    ),
    "security: TLS, logins, ACLs, quotas": (
        "blocking/tls.py",
        "broker/access.py",
        "broker/api/acls.py",
        "broker/envelopes.py",
        "broker/http_login.py",
        "broker/image_credentials.py",
        "broker/kafka_login.py",
        "broker/throttle.py",
        "cli/acls.py",
        "cli/certs.py",
        "cli/quotas.py",
        "cli/users.py",
        "client/security_operations.py",
        "config/listeners.py",
        "config/security.py",
        "hosting/certificates.py",
        "hosting/secured.py",
        "quorum/administration.py",
        "quorum/client_quotas.py",
        "rest/permissions.py",
        "rest/quotas.py",
        "security/",
        "sim/tenant_plans.py",
        "sim/tenants.py",
        "wire/acls.py",
        "wire/credentials.py",
        "wire/quotas.py",
        "world/jwks.py",
        "world/tls.py",
        "world/tls_listener.py",
    ),
    "limits against hostile clients, lists of connections": (
        "broker/event_limiter.py",
        "broker/large_turns.py",
        "broker/regex_turns.py",
        "wire/response_room.py",
        "world/connections.py",
        "world/unread_responses.py",
    ),
    "the console, live states, history": (
        "broker/group_history.py",
        "broker/history.py",
        "rest/console.py",
        "rest/fault_script.py",
        "rest/group_history.py",
        "rest/history.py",
        "rest/live.py",
        "rest/stories.py",
        "wire/differences.py",
    ),
    "command lines of Kafka's tools": ("cli/kafka_tools.py",),
    "compiled rules": ("compiled.py",),
    "compression.type in brokers": ("wire/recompress.py",),
    "REST Proxy's produce routes": ("rest/proxy.py",),
    "minikafka sim traffic": ("sim/traffic.py",),
    "unregistering a broker": ("sim/departures.py",),
}
"""Later features, with the modules (or packages, with a slash at the end) below ``minikafka`` that exist only for them."""

NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}

Line = tuple[str, object, object, object]
"""What is measured, its value before, its value now, and what the issue wants. None: there is no such figure."""


def code_lines(text: str) -> int:
    """Return the number of lines that hold code: no blank lines, comments or docstrings."""
    docstrings = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - {line for each in docstrings for line in each})


def package_of(path: Path, tree: Path) -> str:
    """Return the package below ``minikafka`` that holds a file; a module beside the packages stands for itself."""
    return path.relative_to(tree / "minikafka").parts[0].removesuffix(".py")


def later_feature(path: Path, tree: Path) -> str:
    """Return the later feature that a file exists for; empty if it belongs to the features of 62e114e."""
    name = path.relative_to(tree / "minikafka").as_posix()
    return next((each for each, places in LATER.items() if any(is_below(name, place) for place in places)), "")


def is_below(name: str, place: str) -> bool:
    """Return True if ``place`` is the file ``name`` or a folder that holds it."""
    return name.startswith(place) if place.endswith("/") else name == place


def modules(tree: Path) -> list[Path]:
    """Return the product's Python files."""
    return sorted((tree / "minikafka").rglob("*.py"))


def words(tree: Path) -> dict[str, int]:
    """Return how often each word of BEFORE_WORDS occurs in the product and the docs."""
    files = [*modules(tree), *(tree / "pyspark_minikafka").rglob("*.py"), *(tree / "docs").rglob("*.md")]
    text = "\n".join(each.read_text(encoding="utf-8") for each in [*files, tree / "README.md"])
    return {
        word: len(re.findall(r"\b" + r"[\s#]+".join(word.split()) + r"\b", text, re.IGNORECASE))
        for word in BEFORE_WORDS
    }


def walks(tree: Path) -> dict[str, tuple[int, int, int]]:
    """Return calls, files and changes of file of each walk, measured in a process that runs the tree's code."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "MINIKAFKA_PURE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", str(WALK)], cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return {name: tuple(figures) for name, figures in json.loads(done.stdout).items()}


def measured(tree: Path, *, with_walks: bool) -> Iterator[Line]:
    """Yield the lines of the table."""
    by_package: Counter[str] = Counter()
    by_feature: Counter[str] = Counter()
    files = modules(tree)
    modules_of = Counter(later_feature(path, tree) for path in files)
    for path in files:
        feature, lines = later_feature(path, tree), code_lines(path.read_text(encoding="utf-8"))
        by_feature[feature] += lines
        by_package[package_of(path, tree)] += 0 if feature else lines
    yield "code lines (features of 62e114e)", BEFORE_TOTAL, by_feature[""], f"at most {WANTED_TOTAL:,}"
    for package, lines in (+by_package).most_common():
        wanted = f"at most {WANTED_LINES[package]:,}" if package in WANTED_LINES else None
        yield f"  {package}", BEFORE_LINES.get(package), lines, wanted
    yield "modules (features of 62e114e)", BEFORE_MODULES, modules_of[""], f"at most {WANTED_MODULES}"
    for feature in (each for each in LATER if modules_of[each]):
        yield f"later: {feature}", None, f"{by_feature[feature]:,} in {modules_of[feature]}", None
    yield "code lines, modules of all features", None, f"{by_feature.total():,} in {len(files)}", None
    for name, found in walks(tree).items() if with_walks else ():
        for what, before, now in zip(("calls", "files", "changes of file"), BEFORE_WALKS[name], found, strict=True):
            wanted = f"at most {int(before * WALKS_WANTED)}" if what != "files" else None
            yield f"produce over {name}: {what}", before, now, wanted
    for word, count in words(tree).items():
        yield f"word: {word}", BEFORE_WORDS[word], count, f"below {BEFORE_WORDS[word] * WORDS_WANTED:.1f}"


def table(lines: Iterator[Line]) -> str:
    """Return the lines as aligned columns."""
    head: Line = ("figure", "62e114e", "this tree", "wanted")
    rows = [[f"{cell:,}" if isinstance(cell, int) else str(cell or "") for cell in line] for line in (head, *lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip() for row in rows
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.tidy.figures", description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=ROOT, help="The checkout to measure (default: this one).")
    parser.add_argument("--no-walks", action="store_true", help="Leave out the calls of a request.")
    arguments = parser.parse_args()
    sys.stdout.write(table(measured(arguments.tree.resolve(), with_walks=not arguments.no_walks)) + "\n")


if __name__ == "__main__":
    main()
