"""Principals of client certificates: the subject's distinguished name (DN) as Java writes it, mapped by rules.

Rules for this file:

1. The text is that of Java's ``X500Principal.getName()``, which Kafka puts into principals and ACLs: RFC 2253, the most
   specific part first, no space after commas. Java also escapes ``=`` and ``#`` everywhere, and writes attributes
   without a keyword as ``OID=#hex``.
2. ``ssl.principal.mapping.rules`` has Kafka's syntax (KIP-371, SslPrincipalMapper). The first rule whose pattern
   matches the whole DN decides. If no rule matches, the client is not authenticated.
3. A peer chooses the DN within what its CA signs: it is limited in size, and no DN becomes a name with a meaning of its
   own (``User:*``, ``User:ANONYMOUS``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from minikafka.errors import InvalidConfig
from minikafka.types import RESERVED_NAMES

NAME_SIZE_MAX = 1024
"""Characters of a DN. Patterns of rules can take time that grows fast with the length."""

SETTING = "ssl.principal.mapping.rules"

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""All attributes that have a keyword in RFC 2253."""

# Tags of ASN.1.
_SEQUENCE, _VERSION, _EXTENSIONS = 0x30, 0xA0, 0xA3
_ALTERNATIVE_NAME = "2.5.29.17"
_STRINGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString and BMPString."""

_ESCAPED = re.compile(r'[,=+<>#;"\\]')
_OUTER_SPACE = re.compile(r"^[ \r]+|[ \r]+$")


class NotAuthenticated(Exception):
    """A certificate gives its owner no principal; the text says why."""


# ---- distinguished names ---------------------------------------------------------------------------------------------


class _Element(NamedTuple):
    """One element of DER: its tag, its content, and all of its bytes."""

    tag: int
    content: bytes
    encoded: bytes


def _elements(data: bytes) -> Iterator[_Element]:
    """The elements that ``data`` is a sequence of. Raises ValueError or IndexError for other bytes."""
    at = 0
    while at < len(data):
        start, tag, size = at, data[at], data[at + 1]
        at += 2
        if size & 0x80:
            digits = size & 0x7F
            size = int.from_bytes(data[at : at + digits], "big")
            at += digits
        if at + size > len(data):
            raise ValueError("an element of DER ends behind its data")
        yield _Element(tag, data[at : at + size], data[start : at + size])
        at += size


def _oid(content: bytes) -> str:
    """An object identifier with dots."""
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _attribute(encoded: _Element) -> str:
    """``KEYWORD=value`` or ``OID=#hex`` of one type and value."""
    kind, value = _elements(encoded.content)
    oid = _oid(kind.content)
    keyword = _KEYWORDS.get(oid)
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or oid}=#{value.encoded.hex()}"
    # As Java: UTF-8 in whatever type of string, and of the control characters only NUL is escaped.
    text = _ESCAPED.sub(r"\\\g<0>", value.content.decode("utf-8", "replace")).replace("\0", "\\00")
    return f"{keyword}=" + _OUTER_SPACE.sub(lambda found: "".join(f"\\{each}" for each in found[0]), text)


def name_text(name: bytes) -> str:
    """Return the text of a DN, given as the DER of its ``Name``. Raises NotAuthenticated if it is none."""
    try:
        (outer,) = _elements(name)
        parts = ["+".join(map(_attribute, _elements(part.content))) for part in _elements(outer.content)]
    except (ValueError, IndexError) as error:
        raise NotAuthenticated("the certificate's subject cannot be read") from error
    return ",".join(reversed(parts))


def subject_of(certificate: bytes) -> bytes:
    """Return the DER of the subject of a certificate in DER. Raises NotAuthenticated if it is none."""
    try:
        (outer,) = _elements(certificate)
        to_be_signed = next(_elements(outer.content))
        fields = [each for each in _elements(to_be_signed.content) if each.tag != _VERSION]
        # Serial number, algorithm, issuer, validity, subject.
        return fields[4].encoded
    except (ValueError, IndexError, StopIteration) as error:
        raise NotAuthenticated("the certificate cannot be read") from error


def alternative_names(certificate: bytes) -> frozenset[bytes]:
    """Return the subject's alternative names of a certificate in DER, each as DER. Raises NotAuthenticated."""
    try:
        (outer,) = _elements(certificate)
        to_be_signed = next(_elements(outer.content))
        for block in (each for each in _elements(to_be_signed.content) if each.tag == _EXTENSIONS):
            (extensions,) = _elements(block.content)
            for extension in _elements(extensions.content):
                kind, *_, value = _elements(extension.content)
                if _oid(kind.content) == _ALTERNATIVE_NAME:
                    (names,) = _elements(value.content)
                    return frozenset(each.encoded for each in _elements(names.content))
    except (ValueError, IndexError, StopIteration) as error:
        raise NotAuthenticated("the certificate cannot be read") from error
    return frozenset()


# ---- rules -----------------------------------------------------------------------------------------------------------

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER = re.compile(_RULE)
_REFERENCE = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


class Rule(NamedTuple):
    """One rule: the whole DN must match ``pattern``."""

    pattern: re.Pattern[str]
    replacement: str
    case: str
    """``L``, ``U`` or empty."""

    def name_of(self, distinguished_name: str) -> str | None:
        """The name that the rule makes of a DN; None: it does not match."""
        if self.pattern.fullmatch(distinguished_name) is None:
            return None
        # Java's replaceAll: every match, which need not be the whole DN.
        name = self.pattern.sub(self._expanded, distinguished_name)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _expanded(self, found: re.Match[str]) -> str:
        """The replacement with ``$1`` and so on replaced. A reference to a group that is not there is plain text."""

        def value(reference: re.Match[str]) -> str:
            escaped, digits = reference.groups()
            if escaped is not None:
                return str(escaped)
            for end in range(len(digits), 0, -1):
                if int(digits[:end]) <= found.re.groups:
                    return (found[int(digits[:end])] or "") + digits[end:]
            return reference[0]

        return _REFERENCE.sub(value, self.replacement)


DEFAULT_RULE = Rule(re.compile(r"[\s\S]*"), "", "")
"""``DEFAULT``: the DN itself."""


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Return the rules of ``ssl.principal.mapping.rules``, separated by commas. Raises InvalidConfig."""
    return tuple(
        rule for found in _SPLITTER.finditer(text.strip() or "DEFAULT") if (rule := _parsed(found[1])) is not None
    )


def _parsed(text: str) -> Rule | None:
    found = _PARSER.match(text)
    if found is None or found.end() < len(text):
        raise InvalidConfig(
            f"{SETTING}: {text!r} is not a rule; write DEFAULT or RULE:pattern/replacement/, then L, U or nothing",
            setting=SETTING,
        )
    is_default, pattern, replacement, case, _ = found.groups()
    if is_default:
        return DEFAULT_RULE
    if pattern is None:
        return None  # an empty rule, as between two commas
    try:
        return Rule(re.compile(pattern), replacement, case)
    except re.error as error:
        raise InvalidConfig(
            f"{SETTING}: {pattern!r} is not a regular expression of Python: {error}", setting=SETTING
        ) from error


class PrincipalMapping:
    """``ssl.principal.mapping.rules`` of a listener."""

    def __init__(self, rules: str = "DEFAULT") -> None:
        """Parse the setting's text. Raises InvalidConfig."""
        self._rules = parse_rules(rules)

    def principal(self, certificate: bytes) -> str:
        """Return the principal (``User:NAME``) of the owner of a certificate in DER, which must be verified.

        Raises NotAuthenticated if no rule matches, or if the name must not be used.
        """
        return f"User:{self.name(name_text(subject_of(certificate)))}"

    def name(self, distinguished_name: str) -> str:
        """Return the name for a DN. Raises NotAuthenticated as :meth:`principal` does."""
        if len(distinguished_name) > NAME_SIZE_MAX:
            raise NotAuthenticated(f"the certificate's DN has more than {NAME_SIZE_MAX} characters")
        for rule in self._rules:
            name = distinguished_name if rule is DEFAULT_RULE else rule.name_of(distinguished_name)
            if name is not None:
                if name in RESERVED_NAMES:
                    raise NotAuthenticated(
                        f"the DN {distinguished_name!r} gives the name {name!r}, which no client may have"
                    )
                return name
        raise NotAuthenticated(f"no rule of {SETTING} matches {distinguished_name!r}")
