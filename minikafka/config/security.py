"""The brokers' settings of security: how clients log in, certificates, tokens, and who may do what."""

from __future__ import annotations

from dataclasses import dataclass

from minikafka.config.listeners import LIFETIME, MECHANISMS
from minikafka.config.setting import INT_MAX, NO_EFFECT, setting
from minikafka.errors import InvalidConfig

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The only authorizer that there is, by the name that it has in Kafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """What a :class:`BrokerConfig` has of them."""

    sasl_enabled_mechanisms: str = setting(
        MECHANISMS,
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "SASL mechanisms of SASL listeners, comma separated: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        "sasl.mechanism.inter.broker.protocol",
        "PLAIN",
        "SASL mechanism with which brokers log in to each other if their listener uses SASL_SSL; only PLAIN.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        "",
        "Where the keys that sign tokens (JWKS) are: https://... or file:///...",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        "Interval at which the keys that sign tokens are read again.",
        low=1000,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        100,
        "Pause after keys could not be read; it doubles up to sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms.",
        low=1,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        10_000,
        "Longest pause after keys could not be read.",
        low=1,
    )
    oauth_jwks_truststore_location: str = setting(
        "mk.oauth.jwks.truststore.location",
        "",
        "PEM file with the CAs of the server of sasl.oauthbearer.jwks.endpoint.url (default: the CAs of the system).",
    )
    sasl_oauthbearer_expected_issuer: str = setting(
        "sasl.oauthbearer.expected.issuer", "", "Issuer (iss) that tokens must have; needed for OAUTHBEARER."
    )
    sasl_oauthbearer_expected_audience: str = setting(
        "sasl.oauthbearer.expected.audience",
        "",
        "Audiences, comma separated, of which tokens must have one (aud); needed for OAUTHBEARER.",
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        "sasl.oauthbearer.sub.claim.name", "sub", "Claim of a token that is the name of its user."
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        "Difference between the clocks of the broker and of the issuer that is tolerated.",
        low=0,
        high=600,
    )
    oauth_principal_prefix: str = setting(
        "mk.oauth.principal.prefix",
        "",
        "Text before the name of a token's user in its principal, so that it is never that of a SCRAM user.",
    )
    sasl_server_max_receive_size: int = setting(
        "sasl.server.max.receive.size",
        512 * 1024,
        "Largest request before a client has logged in, in bytes.",
        low=1024,
        high=INT_MAX,
    )
    connections_max_reauth_ms: int = setting(
        LIFETIME,
        0,
        "Lifetime of a session of a SASL listener; clients must log in again before its end (0: no limit).",
        low=0,
    )
    connection_failed_authentication_delay_ms: int = setting(
        "connection.failed.authentication.delay.ms",
        100,
        "Delay before a failed login is answered and its connection closed.",
        low=0,
        high=10_000,
    )
    ssl_keystore_type: str = setting("ssl.keystore.type", "PEM", NO_EFFECT, one_of=("PEM",))
    ssl_keystore_location: str = setting(
        "ssl.keystore.location",
        "",
        "PEM file with the unencrypted private key and the certificate chain of the broker.",
    )
    ssl_truststore_type: str = setting("ssl.truststore.type", "PEM", NO_EFFECT, one_of=("PEM",))
    ssl_truststore_location: str = setting(
        "ssl.truststore.location", "", "PEM file with the CA certificates that sign the certificates of clients."
    )
    ssl_client_auth: str = setting(
        "ssl.client.auth",
        "none",
        "Whether TLS listeners ask clients for a certificate (requested) and reject clients without one (required).",
        one_of=("none", "requested", "required"),
    )
    ssl_principal_mapping_rules: str = setting(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "Rules that make the name of a principal of a client certificate's DN, comma separated: "
        "RULE:pattern/replacement/[L|U], or DEFAULT for the DN itself.",
    )
    ssl_enabled_protocols: str = setting(
        "ssl.enabled.protocols",
        "TLSv1.2,TLSv1.3",
        "TLS versions of the listeners.",
        one_of=("TLSv1.2,TLSv1.3", "TLSv1.3,TLSv1.2", "TLSv1.2", "TLSv1.3"),
    )
    ssl_allow_dn_changes: bool = setting(
        "ssl.allow.dn.changes",
        False,
        "Use a replaced certificate although its subject is another one.",
    )
    ssl_allow_san_changes: bool = setting(
        "ssl.allow.san.changes",
        False,
        "Use a replaced certificate although it lacks names or addresses of the one before.",
    )
    authorizer_class_name: str = setting(
        "authorizer.class.name",
        "",
        "Authorizer that checks the requests of clients against ACLs (default: none, everything is allowed).",
        one_of=("", STANDARD_AUTHORIZER),
    )
    super_users: str = setting(
        "super.users", "", "Principals that may do everything, as Type:name, separated by semicolons."
    )
    allow_everyone_if_no_acl_found: bool = setting(
        "allow.everyone.if.no.acl.found", False, "Allow every operation on a resource to which no ACL applies."
    )

    @property
    def super_principals(self) -> frozenset[str]:
        """``super.users``; InvalidConfig names an entry that is not a principal."""
        names = [each.strip() for each in self.super_users.split(";") if each.strip()]
        for name in names:
            kind, colon, user = name.partition(":")
            if not (kind and colon and user):
                raise InvalidConfig(
                    f"super.users={self.super_users!r}: {name!r} is not a principal; use Type:name, such as User:admin",
                    setting="super.users",
                )
        return frozenset(names)
