"""Principals of client certificates: DNs as Java writes them, and Kafka's mapping rules."""

from __future__ import annotations

import pytest

from minikafka.errors import InvalidConfig
from minikafka.security.principals import NAME_SIZE_MAX, NotAuthenticated, PrincipalMapping, name_text, subject_of

JAVA = {
    "3025310e300c060355040a0c05413d422363311330110603550403130a61646d696e2c4f553d78": r"CN=admin\,OU\=x,O=A\=B\#c",
    "301e310c300a060355040a1303747220310e300c06035504031305206c656164": "CN=\\ lead,O=tr\\ ",
    "3022310a3008060355040313016b3114301206092a864886f70d01090116056140622e63": (
        "1.2.840.113549.1.9.1=#16056140622e63,CN=k"
    ),
    "3022310a3008060355040a1301633114300806035504031301613008060355040b130162": "CN=a+OU=b,O=c",
    "30413111300f060a0992268993f22c64010113017531133011060a0992268993f22c64011916036f726731173015060a0992268993f22c"
    "64011916076578616d706c65": "DC=example,DC=org,UID=u",
    "30143112301006035504030c09613c623e3b635c6422": r"CN=a\<b\>\;c\\d\"",
    "3059310a3008060355040c130174310a30080603550405130135310a30080603550409130178310a3008060355040713016c310a300806"
    "03550408130173310b3009060355040613024445310e300c06035504030c05c3a9e4b8ad": (
        "CN=é中,C=DE,ST=s,L=l,STREET=x,2.5.4.5=#130135,2.5.4.12=#130174"
    ),
    "3010310e300c06035504030c05007a0a7909": "CN=\\00z\ny\t",
    "300f310d300b06035504030c042361200d": "CN=\\#a\\ \\\r",
    "300e310c300a06035504030c03202020": "CN=\\ \\ \\ ",
    "300f310d300b06035504031e04004100e9": "CN=\\00A\\00\N{REPLACEMENT CHARACTER}",
    "300d310b300906035504030402ffee": "CN=#0402ffee",
    "300b3109300706035504030c00": "CN=",
    "3000": "",
}
"""DER of a name -> text, as Java 17's X500Principal.getName() has printed it."""


@pytest.mark.parametrize(("der", "text"), JAVA.items())
def test_a_dn_has_the_text_that_java_prints(der: str, text: str):
    """ACLs of a Kafka cluster are compared as text: order, escapes, and attributes without a keyword must be equal."""
    assert name_text(bytes.fromhex(der)) == text


def test_bytes_that_are_no_der_give_no_principal():
    """Every prefix of a name, and lengths beyond the end: an error of authentication, never another exception."""
    whole = bytes.fromhex(next(iter(JAVA)))
    for cut in [*(whole[:size] for size in range(len(whole))), b"\x30\xff" + b"\xff" * 300, b"\x30\x84\xff"]:
        for read in (name_text, subject_of):
            with pytest.raises(NotAuthenticated):
                read(cut)


DN = "CN=kafka1.Example.com,OU=Service,O=Acme,C=DE"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", DN),
        ("", DN),
        ("RULE:^CN=(.*?),.*$/$1/", "kafka1.Example.com"),
        ("RULE:^CN=(.*?),.*$/$1/L", "kafka1.example.com"),
        ("RULE:^CN=(.*?),.*$/$1/U", "KAFKA1.EXAMPLE.COM"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),.*$/$1@$3/", "kafka1.Example.com@Acme"),
        # The first rule that matches decides, and a rule must match the whole DN.
        ("RULE:CN=kafka1/no/, RULE:^O=.*$/no/, RULE:.*,O=(\\w+),.*/$1/ , DEFAULT", "Acme"),
        # A slash in a pattern or a replacement is escaped; a comma is not.
        ("RULE:^CN=(.*?),.*$/a\\/$1,b/", "a/kafka1.Example.com,b"),
        # A group that is not there is text; of $12 with one group, 2 is text.
        ("RULE:^CN=(.*?),.*$/$1-$4/", "kafka1.Example.com-$4"),
        ("RULE:^CN=(.*?)\\..*$/$12/", "kafka12"),
        # Java's replaceAll also replaces the empty match at the end.
        ("RULE:.*/x/", "xx"),
        (",,DEFAULT", DN),
    ],
)
def test_rules_give_the_names_that_they_give_in_kafka(rules: str, name: str):
    """KIP-371: order, whole matches, references, L and U."""
    assert PrincipalMapping(rules).name(DN) == name


@pytest.mark.parametrize("rules", ["RULE:abc", "DEFAULT1", "RULE:a/b/LL", "RULE:(/b/", "RULE:a/b/,junk", "default"])
def test_a_setting_that_is_not_understood_is_refused_by_name(rules: str):
    """A broker that starts with a rule it ignores would let in the wrong clients."""
    with pytest.raises(InvalidConfig) as raised:
        PrincipalMapping(rules)
    assert raised.value.facts["setting"] == "ssl.principal.mapping.rules"


@pytest.mark.parametrize(
    ("rules", "dn"),
    [
        ("RULE:^CN=([a-z]+)$/$1/", DN),
        ("RULE:^CN=(.*)$/$1/", "CN=*"),
        ("RULE:^CN=(.*)$/$1/", "CN=ANONYMOUS"),
        ("RULE:^CN=(.*)$/$1/U", "CN=anonymous"),
        ("RULE:^CN=(.*)$/$1/", "CN="),
        ("DEFAULT", ""),
        ("DEFAULT", "CN=" + "x" * NAME_SIZE_MAX),
        ("RULE:^CN=(.*?),.*$/$1/", "CN=ad\nmin,O=x"),
    ],
)
def test_a_dn_without_a_name_of_its_own_is_not_authenticated(rules: str, dn: str):
    """SECURITY 8.7, test 17: no rule matches, the name means something else in ACLs, or it is far too long."""
    with pytest.raises(NotAuthenticated):
        PrincipalMapping(rules).name(dn)


def test_an_escaped_comma_does_not_end_a_common_name():
    """A CA that signs any CN must not sign a name of another organization: the comma stays escaped in the DN."""
    assert (
        PrincipalMapping("RULE:^CN=([a-z]+),OU=admins$/$1/,DEFAULT").name("CN=eve\\,OU=admins") == "CN=eve\\,OU=admins"
    )
