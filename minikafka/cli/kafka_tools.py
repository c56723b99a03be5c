"""Command lines of Kafka's own tools (and of kcat), and the same in the words of minikafka.

Rules for this file: words in, a command line or a sentence out. A command line is only proposed, never run: the user
sees what it is called here. What Kafka's tools have and minikafka lacks is named too.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

TOOLS: Final[Mapping[str, str]] = {
    "topic": "topics",
    "console-producer": "produce",
    "verifiable-producer": "produce",
    "producer": "produce",
    "console-consumer": "consume",
    "verifiable-consumer": "consume",
    "consumer": "consume",
    "consumer-groups": "groups",
    "group": "groups",
    "transactions": "transactions",
    "configs": "config",
    "acls": "acls",
    "get-offsets": "offsets",
    "delete-records": "topics delete-records",
    "reassign-partitions": "reassign",
    "leader-election": "elect",
    "cluster": "unregister",
    "metadata-quorum": "quorum",
    "metadata-shell": "log",
    "dump-log": "log",
    "server-start": "serve",
    "start": "up",
    "server": "serve",
    "broker": "serve",
}
"""A tool's name without ``kafka-`` and ``.sh`` -> the command here."""

VALUES: Final = frozenset(
    """--topic --partitions --replication-factor --config --group --timeout-ms --max-messages --partition --offset
    --state --to-offset --to-datetime --by-duration --shift-by --from-file --entity-type --entity-name --add-config
    --delete-config --reassignment-json-file --topics-to-move-json-file --broker-list --election-type
    --path-to-json-file --time --files --property --formatter-property --reader-property
    --allow-principal --deny-principal --allow-host --deny-host --operation --principal --transactional-id
    --resource-pattern-type --offset-json-file --command-config --start-offset --producer-id --broker-id
    --max-transaction-timeout --running-longer-than-ms --id -b -t -p -o""".split()
)
"""Options of Kafka's tools that take a value; all others are flags."""


@dataclass(slots=True)
class Given:
    """A command line of one of Kafka's tools, taken apart."""

    options: list[tuple[str, str | None]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def verb(self, verbs: Mapping[str, str]) -> str | None:
        """The subcommand of the first of these flags, or of the leading word, which is removed."""
        found = next((verb for flag, verb in verbs.items() if self.take(f"--{flag}")), None)
        if found is None and self.words and self.words[0] in verbs.values():
            found = self.words.pop(0)
        return found

    def take(self, *names: str) -> list[str]:
        """The values of these options, which are removed; a flag's is empty."""
        found = [value or "" for each, value in self.options if each in names]
        self.options = [(each, value) for each, value in self.options if each not in names]
        return found

    def rest(self) -> list[str]:
        """The options that are left, as they stand in a command line."""
        return [word for name, value in self.options for word in ([name] if value is None else [name, value])]


def parsed(words: Iterable[str]) -> Given:
    """Take options and words apart. ``--bootstrap-server`` (once ``--broker-list``, ``--zookeeper``) becomes ``-b``."""
    given = Given()
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            given.words.append(word)
        elif name in {"--bootstrap-server", "--zookeeper", "-b"}:
            given.options.append(("-b", value if equals else next(rest, "HOST:PORT")))
        elif equals or name in VALUES:
            given.options.append((name, value if equals else next(rest, "...")))
        else:
            given.options.append((name, None))
    return given


def _topics(given: Given) -> list[str] | None:
    verb = given.verb({each: each for each in ("list", "create", "describe", "alter", "delete")})
    return None if verb is None else [verb, *given.take("--topic")]


def _groups(given: Given) -> list[str] | None:
    verb = given.verb({each: each for each in ("list", "describe", "reset-offsets", "delete-offsets", "delete")})
    if verb == "describe":
        verb = "members" if given.take("--members") else "state" if given.take("--state") else verb
    given.take("--dry-run", "--offsets", "--verbose")
    return None if verb is None else [verb, *given.take("--group")]


def _config(given: Given) -> list[str] | None:
    verb = given.verb({"alter": "alter", "describe": "describe"})
    if verb is None:
        return None
    kinds, names = given.take("--entity-type"), given.take("--entity-name")
    whose = ["--all-brokers"] if given.take("--entity-default") else []
    if kinds and names:
        whose = [{"topics": "--topic", "brokers": "--broker"}.get(kinds[0], f"--{kinds[0]}"), names[0]]
    changes = [word for each in given.take("--add-config") for pair in each.split(",") for word in ("--set", pair)]
    changes += [word for each in given.take("--delete-config") for key in each.split(",") for word in ("--delete", key)]
    return [verb, *whose, *changes]


def _reassign(given: Given) -> list[str] | None:
    verb = given.verb(
        {"generate": "generate", "execute": "execute", "verify": "status", "cancel": "cancel", "list": "status"}
    )
    if verb is None:
        return None
    topics = [word for name in given.take("--topics-to-move-json-file") for word in ("--topics-file", name)]
    brokers = [word for ids in given.take("--broker-list") for word in ("--brokers", ids)]
    return [verb, *given.take("--reassignment-json-file"), *topics, *brokers]


def _elect(given: Given) -> list[str] | None:
    kinds = given.take("--election-type")
    if not kinds:
        return None
    places = [f"{topic}-{part}" for topic, part in zip(given.take("--topic"), given.take("--partition"), strict=False)]
    files = [word for name in given.take("--path-to-json-file") for word in ("--file", name)]
    return [kinds[0].lower(), *places, *files, *(["--all"] if given.take("--all-topic-partitions") else [])]


def _acls(given: Given) -> list[str] | None:
    verb = given.verb({"add": "add", "list": "list", "remove": "remove"})
    given.take("--force")
    return None if verb is None else [verb]


def _transactions(given: Given) -> list[str] | None:
    verb = given.verb({each: each for each in ("list", "describe", "describe-producers", "find-hanging", "abort")})
    given.take("--broker-id")  # all brokers are asked
    if verb in ("describe-producers", "abort"):
        places = zip(given.take("--topic"), given.take("--partition"), strict=False)
        return [verb, *(f"{topic}-{partition}" for topic, partition in places)]
    return None if verb is None else [verb, *given.take("--transactional-id")]


def _unregister(given: Given) -> list[str] | None:
    given.words = [each for each in given.words if each != "unregister"]
    return given.take("--id") or None


def _offsets(given: Given) -> list[str] | None:
    return given.take("--topic") or None


def _log(given: Given) -> list[str] | None:
    files = given.take("--files")
    given.take("--deep-iteration")
    given.words = [each for each in given.words if each != "dump"]
    return ["dump", *files, *(["--records"] if given.take("--print-data-log") else [])] if files else None


FORMS: Final[Mapping[str, Callable[[Given], list[str] | None]]] = {
    "topics": _topics,
    "groups": _groups,
    "config": _config,
    "reassign": _reassign,
    "elect": _elect,
    "acls": _acls,
    "transactions": _transactions,
    "unregister": _unregister,
    "offsets": _offsets,
    "log": _log,
}

SENTENCES: Final[Mapping[str, str]] = {
    "--property": (
        "consume prints keys and more with a format, -f '%k %s\\n', or with -o json; produce reads keys with"
        " --key-separator"
    ),
    "--formatter-property": "print keys and more with a format, -f '%k %s\\n', or with -o json",
    "--reader-property": "read keys with --key-separator",
    "--producer-property": "produce has --acks, keys and headers; the Python client has all settings",
    "--consumer-property": "consume has options for the group and its session; the Python client has all settings",
    "--producer.config": "produce has --acks, keys and headers; the Python client has all settings",
    "--consumer.config": "consume has options for the group and its session; the Python client has all settings",
    "--request-required-acks": "use --acks all, --acks 1 or --acks 0",
    "--compression-codec": "compression is the topic's setting compression.type, or the Python producer's",
    "--command-config": "TLS and a login are --ca, --cert, --user and --token-file, also in the environment",
    "--config": "settings of a topic are altered with `minikafka config alter --topic TOPIC --set KEY=VALUE`",
    "--skip-message-on-error": "records are printed as bytes, so that none is an error; leave it out",
    "--sync": "each record is acknowledged on its own anyway; leave it out",
}
"""Options of Kafka's tools that have another form here, or none."""


def tool_named(name: str) -> str | None:
    """The command for a name of Kafka's tools, such as ``kafka-topics.sh`` or ``consumer-groups``."""
    plain = name.lower().removesuffix(".sh").removesuffix(".bat").removeprefix("kafka-")
    return TOOLS.get(plain) or (plain if plain != name and plain in FORMS else None)


def translated(words: Sequence[str], commands: Collection[str] = ()) -> str | None:
    """The command line here for one whose first word is a command; None if it is not a known form.

    ``commands`` are its subcommands: options in front of one belong behind it.
    """
    name, *others = words
    form, given = FORMS.get(name), parsed(others)
    start = form(given) if form is not None else None
    if start is None:
        if not any(each in commands for each in given.words) or not others[0].startswith("-"):
            return None
        start, given.words = given.words, []
    line = shlex.join(["minikafka", name, *start, *given.words, *given.rest()])
    return None if line == shlex.join(["minikafka", *words]) else line


def hint(words: Sequence[str], option: str, commands: Collection[str] = ()) -> str | None:
    """What to do instead of an option that does not exist; None if no tool of Kafka's has it."""
    if option in SENTENCES:
        return SENTENCES[option]
    line = translated(words, commands)
    if line is None or (option != "-b" and option in line.split()):
        return None
    return f"here it is: {line}"
