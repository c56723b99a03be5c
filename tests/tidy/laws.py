"""The laws as functions: a source goes in, the breaches come out as sentences that name the replacement (STYLE 24).

Each law is shown to bite in ``test_laws.py`` before it is applied to the product.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from tests.tidy.sources import FLOORS, Source

Law = Callable[[Source], Iterator[str]]

ASYNC_FLOOR = 5
WORLD_FLOOR = 6
DOOR_FLOOR = 7

BANNED_MODULES = {
    "time": "take `now` as an argument (rules), or the Clock port (drivers)",
    "datetime": "keep milliseconds; take `now` as an argument, or the Clock port",
    "socket": "use the Network port",
    "ssl": "use the Network port",
    "select": "use the Network port",
    "os": "use the Disk port",
    "io": "use the Disk port",
    "shutil": "use the Disk port",
    "tempfile": "use the Disk port",
    "pathlib": "use the Disk port: paths are strings relative to the data directory",
    "uuid": "draw 16 bytes from World.random (wire has the printing of Kafka's UUIDs)",
    "secrets": "draw from World.random",
    "subprocess": "processes belong to world/",
    "signal": "signals belong to world/ and cli/",
}
"""Outside the adapters and doors (floors 0 to 5)."""

BANNED_CALLS = {
    "open": "use the Disk port",
    "input": "doors take input",
    "breakpoint": "remove it",
    "hash": "hash() of a string differs from run to run: use murmur2 or crc32c",
    "id": "an address differs from run to run: number the thing",
}
"""Built-ins that reach outside or depend on the run, on floors 0 to 5."""

DANGEROUS_MODULES = {
    "pickle": "use msgpack or JSON",
    "marshal": "use msgpack or JSON",
    "shelve": "use the log",
    "dill": "use msgpack or JSON",
}
DANGEROUS_CALLS = {
    "eval": "parse the text",
    "exec": "call a function",
    "compile": "call a function",
    "__import__": "import",
}


def no_asyncio_in_rules(source: Source) -> Iterator[str]:
    """DESIGN: `asyncio` is imported on floors 5 to 7 only."""
    if source.floor < ASYNC_FLOOR:
        for node, name in source.imports():
            if name.split(".")[0] in {"asyncio", "threading", "concurrent", "multiprocessing", "queue"}:
                yield f"{source.at(node)}: {name} is banned here, rules are synchronous: take `now`, return effects"


def no_loop_internals_in_drivers(source: Source) -> Iterator[str]:
    """A driver's threads and executors would escape the simulator: floor 5 has none."""
    if source.floor == ASYNC_FLOOR:
        for node, name in source.imports():
            if name.split(".")[0] in {"threading", "concurrent", "multiprocessing", "queue"}:
                yield f"{source.at(node)}: {name} is banned here, threads belong to world/: await a port"
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and node.attr in {"run_in_executor", "to_thread"}:
                yield f"{source.at(node)}: {node.attr} is banned here, threads belong to world/: await a port"


def no_world_outside_the_adapters(source: Source) -> Iterator[str]:
    """Only an adapter touches a clock, a socket, a file or randomness."""
    if source.floor >= WORLD_FLOOR:
        return
    for node, name in source.imports():
        module = name.split(".")[0]
        if module in BANNED_MODULES:
            yield f"{source.at(node)}: {module} is banned here, {BANNED_MODULES[module]}"
        if module == "random" and name != "random.Random":
            yield f"{source.at(node)}: {name} is banned here, take a Random as an argument (World.random)"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
            yield f"{source.at(node)}: {node.func.id}() is banned here, {BANNED_CALLS[node.func.id]}"


def _is_set_annotation(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    if isinstance(node, ast.BinOp):
        return _is_set_annotation(node.left) or _is_set_annotation(node.right)
    if isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id in {"set", "frozenset", "AbstractSet", "Set", "MutableSet"}


def _set_names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """(attributes, local names) that this file annotates as sets or assigns a set to."""
    attributes: set[str] = set()
    names: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.ClassDef):
            for field in each.body:
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and _is_set_annotation(field.annotation)
                ):
                    attributes.add(field.target.id)
                if isinstance(field, ast.FunctionDef) and _is_set_annotation(field.returns):
                    attributes.add(field.name)
        elif isinstance(each, ast.AnnAssign) and _is_set_annotation(each.annotation):
            if isinstance(each.target, ast.Attribute):
                attributes.add(each.target.attr)
            elif isinstance(each.target, ast.Name):
                names.add(each.target.id)
        elif isinstance(each, ast.arg) and _is_set_annotation(each.annotation):
            names.add(each.arg)
        elif isinstance(each, ast.Assign) and _is_set(each.value, set(), set()):
            for target in each.targets:
                if isinstance(target, ast.Name):
                    names.add(target.id)
                elif isinstance(target, ast.Attribute):
                    attributes.add(target.attr)
    return attributes, names


def _is_set(node: ast.expr, attributes: set[str], names: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(attr="union" | "intersection" | "difference" | "symmetric_difference")):
            return True
        case ast.Call(func=ast.Attribute(attr=attr)):
            return attr in attributes
        case ast.Attribute(attr=attr):
            return attr in attributes
        case ast.Name(id=name):
            return name in names
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), left=left, right=right):
            return _is_set(left, attributes, names) or _is_set(right, attributes, names)
        case ast.IfExp(body=body, orelse=orelse):
            return _is_set(body, attributes, names) or _is_set(orelse, attributes, names)
        case _:
            return False


ORDER_BLIND = {"sorted", "min", "max", "sum", "any", "all", "len", "set", "frozenset"}
"""Calls whose answer does not depend on the order in which they see the elements."""

ORDER_KEEPING = {"list", "tuple", "enumerate", "zip", "map", "filter", "iter", "reversed", "join", "chain", "extend"}
"""Calls that hand the order on."""


def no_iteration_over_a_set(source: Source) -> Iterator[str]:
    """A set's order differs under another PYTHONHASHSEED, and with it the decision (best effort: within one file)."""
    if not 1 <= source.floor <= ASYNC_FLOOR:
        return
    attributes, names = _set_names(source.tree)
    blind: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDER_BLIND:
            blind.update(id(argument) for argument in node.args)
        if isinstance(node, ast.SetComp):  # a set made from a set has no order to lose
            blind.add(id(node))
    for node in ast.walk(source.tree):
        iterated: list[ast.expr] = []
        if isinstance(node, ast.For | ast.AsyncFor):
            iterated.append(node.iter)
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp) and id(node) not in blind:
            iterated.extend(generator.iter for generator in node.generators)
        elif isinstance(node, ast.Starred) and isinstance(node.ctx, ast.Load):
            iterated.append(node.value)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ORDER_KEEPING and id(node) not in blind:
                iterated.extend(node.args)
            if called == "pop" and isinstance(node.func, ast.Attribute) and not node.args and not node.keywords:
                iterated.append(node.func.value)
        for each in iterated:
            if _is_set(each, attributes, names):
                yield f"{source.at(each)}: iterating a set is banned here, its order is not the same twice: sorted(...)"


def no_assert(source: Source) -> Iterator[str]:
    """`assert` dies under -O."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assert):
            yield f"{source.at(node)}: assert is banned in product code, use invariant() from minikafka.invariant"


def no_print(source: Source) -> Iterator[str]:
    """Only the command line prints."""
    if source.floor < DOOR_FLOOR:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                yield f"{source.at(node)}: print() is banned here, tell it to the events sink"


MAKES_CODE = {"minikafka.wire.kafka.codec": "from the schema in this package alone (DESIGN D12)"}
"""Modules that may compile and run text, and what that text is made of."""


def no_code_from_data(source: Source) -> Iterator[str]:
    """Nothing that arrives may become code."""
    for node, name in source.imports():
        module = name.split(".")[0]
        if module in DANGEROUS_MODULES:
            yield f"{source.at(node)}: {module} is banned, {DANGEROUS_MODULES[module]}"
    if source.module in MAKES_CODE:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DANGEROUS_CALLS:
            yield f"{source.at(node)}: {node.func.id}() is banned, {DANGEROUS_CALLS[node.func.id]}"


def module_docstring(source: Source) -> Iterator[str]:
    """The first thing a reader of a file sees is what it owns."""
    if not ast.get_docstring(source.tree):
        yield f"{source.at(source.tree)}: no module docstring, say what the file owns and its rules"


def no_import_up_the_floors(source: Source) -> Iterator[str]:
    """DESIGN: an import may only point down; client and broker never import each other."""
    for node, name in source.imports():
        parts = name.split(".")
        if parts[0] != "minikafka" or source.floor == DOOR_FLOOR:
            continue
        if parts[1:] == ["__version__"]:
            continue
        here, there = source.module.split(".")[1], parts[1] if len(parts) > 1 else ""
        floor = FLOORS.get(there, DOOR_FLOOR)
        if floor > source.floor:
            yield f"{source.at(node)}: {name} (floor {floor}) is above floor {source.floor}: move what is shared down"
        if {here, there} in ({"broker", "client"}, {"sim", "world"}):
            yield f"{source.at(node)}: {here} may not import {there}: they meet on the wire, or behind a port"
