"""The 25 hostile tests of issue 18, and where each of them is: a list that cannot name a test that is gone."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pytest

from tests.tidy.sources import ROOT

HOSTILE = {
    1: (
        "a client sends Fetch as a follower",
        "e2e/test_tls_cluster.py::test_the_apis_of_brokers_need_cluster_action",
        "rules/test_permissions.py::test_a_client_that_says_it_is_a_follower_is_denied",
    ),
    2: (
        "a client calls Vote, AlterPartition and the like",
        "e2e/test_tls_cluster.py::test_the_apis_of_brokers_need_cluster_action",
        "rules/test_permissions.py::test_brokers_apis_need_cluster_action",
    ),
    3: (
        "an Envelope, and other ways to name another principal",
        "e2e/test_tls_cluster.py::test_a_client_cannot_act_as_another_principal",
        "rules/test_envelopes.py::test_only_brokers_at_their_own_listener_send_envelopes",
        "rules/test_envelopes.py::test_what_brokers_do_not_send_on_is_refused",
    ),
    4: (
        "a produce through another broker than the leader, also one with old metadata",
        "e2e/test_forwarded_requests.py::test_hostile_test_4",
        "e2e/test_tls_cluster.py::test_a_revoked_client_does_not_pass_through_a_broker_with_old_metadata",
        "rules/test_envelopes.py::test_a_revoked_client_does_not_pass_through_a_broker_with_old_metadata",
        "rest/test_route_permissions.py::test_what_is_not_allowed_is_not_sent_to_a_broker",
        "rules/test_permissions.py::test_produce_writes_what_is_allowed",
    ),
    5: (
        "does a forbidden topic exist?",
        "rules/test_permissions.py::test_metadata_of_a_denied_topic_is_the_same_whether_it_exists_or_not",
        "rules/test_permissions.py::test_a_denied_partition_stays_in_its_session_and_hides_if_it_exists",
        "rest/test_route_permissions.py::test_a_denied_topic_looks_the_same_whether_it_exists_or_not",
    ),
    6: (
        "DENY below ALLOW, random tables",
        "rules/test_authorizer.py::test_decisions_equal_the_reference_on_random_tables",
    ),
    7: (
        "an ACL is removed while a session or a stream is open",
        "rules/test_permissions.py::test_a_fetch_session_is_checked_at_every_fetch",
        "rest/test_route_permissions.py::test_live_streams_show_only_topics_that_the_client_may_describe",
    ),
    8: (
        "other nonces in the last message of SCRAM",
        "rules/test_scram.py::test_last_messages_that_are_refused",
        "rules/test_scram.py::test_messages_of_another_exchange_are_refused",
    ),
    9: (
        "other proofs and headers of SCRAM",
        "rules/test_scram.py::test_first_messages_that_are_refused",
        "rules/test_scram.py::test_last_messages_that_are_refused",
    ),
    10: (
        "does a user exist?",
        "rules/test_scram.py::test_unknown_users_look_like_wrong_passwords",
        "rules/test_sasl.py::test_all_failures_read_alike",
        "kafka/test_login.py::test_brokers_agree_on_salts_of_unknown_users",
    ),
    11: (
        "half a ClientHello, half a login",
        "e2e/test_hostile_tls.py::test_half_a_client_hello_each",
        "e2e/test_sasl.py::test_a_thousand_half_logins_disturb_no_client",
        "e2e/test_sasl.py::test_strangers_do_not_keep_clients_out",
        "kafka/test_login.py::test_a_client_that_does_not_log_in_is_disconnected",
    ),
    12: ("sizes that no login needs", "e2e/test_sasl.py::test_hostile_frames_before_a_login"),
    13: ("requests before the login has ended", "kafka/test_login.py::test_nothing_is_served_before_a_login"),
    14: (
        "renewal as another user; requests after the end",
        "rules/test_sasl.py::test_renewal_by_another_mechanism_or_user_fails",
        "kafka/test_login.py::test_an_expired_session_is_closed_at_its_next_request",
    ),
    15: (
        "credentials that change below open sessions",
        "kafka/test_login.py::test_a_session_ends_with_its_credential",
        "e2e/test_http_login.py::test_a_changed_or_deleted_user_is_refused_at_the_next_request",
        "e2e/test_http_login.py::test_a_stream_ends_with_the_permission_or_the_credentials_of_its_reader",
        "e2e/test_sasl.py::test_deleted_and_changed_users_are_disconnected",
    ),
    16: (
        "tokens with other algorithms, claims, keys and sizes",
        "rules/test_oauth.py::test_hostile_test_16_algorithms",
        "rules/test_oauth.py::test_hostile_test_16_claims",
        "rules/test_oauth.py::test_hostile_test_16_headers_and_sizes",
        "e2e/test_oauth.py::test_hostile_test_16_over_sockets",
        "e2e/test_oauth.py::test_clients_log_in_with_tokens",
    ),
    17: (
        "certificates that must not connect, and names that look like others",
        "e2e/test_hostile_tls.py::test_certificates_that_do_not_connect",
        "e2e/test_hostile_tls.py::test_names_that_look_like_a_super_user",
        "rules/test_principals.py::test_a_dn_without_a_name_of_its_own_is_not_authenticated",
    ),
    18: (
        "a CA that was removed, and a session that was verified by it",
        "e2e/test_tls_reload.py::test_a_session_does_not_outlive_its_ca",
        "e2e/test_tls_reload.py::test_new_connections_use_new_files_and_a_removed_ca_is_refused",
    ),
    19: (
        "files that cannot be used, other names, and a hundred reloads under load",
        "e2e/test_tls_reload.py::test_other_names_are_refused_unless_they_are_allowed",
        "e2e/test_tls_reload.py::test_a_hundred_reloads_while_clients_connect",
        "e2e/test_tls_reload.py::test_files_that_cannot_be_used_leave_the_old_ones_in_use",
    ),
    20: (
        "credentials in the wrong place, or of another request",
        "e2e/test_http_login.py::test_hostile_test_20",
        "rules/test_rest_gate.py::test_credentials_in_plain_text_are_refused_beyond_loopback",
    ),
    21: (
        "pages of other origins",
        "e2e/test_http_login.py::test_hostile_test_21",
        "rules/test_rest_gate.py::test_what_a_page_of_another_origin_sends_is_refused",
        "rest/test_doors.py::test_a_page_elsewhere_changes_nothing_and_curl_d_does",
        "rest/test_doors.py::test_a_page_by_another_name_reads_nothing",
    ),
    22: ("many wrong passwords", "e2e/test_http_login.py::test_hostile_test_22"),
    23: (
        "ten times the quota over many connections and client ids",
        "e2e/test_client_quotas.py::test_many_connections_and_client_ids_share_the_quota_of_their_user",
        "rules/test_quotas.py::test_a_client_that_obeys_stays_within_its_quota",
    ),
    24: (
        "secrets in what is shown",
        "e2e/test_canary_secrets.py::test_hostile_test_24",
        "e2e/test_sasl.py::test_passwords_are_in_no_output",
    ),
    25: (
        "settings that start no broker, and a build that does not know the metadata",
        "e2e/test_local_cluster.py::test_an_older_build_does_not_start_on_metadata_that_it_does_not_know",
        "rules/test_listener_settings.py::test_testing_endpoints_stay_on_loopback",
        "e2e/test_tls.py::test_files_that_cannot_be_used_are_refused_by_setting",
        "rules/test_authorizer_settings.py::test_an_authorizer_that_cannot_work_is_refused",
        "rules/test_listener_settings.py::test_a_listener_beyond_loopback_must_encrypt_authenticate_and_authorize",
    ),
}
"""Number -> what it tries, and the tests."""

WITHOUT_SECURITY = {
    "1, 2, 3": ("e2e/test_tls_cluster.py::test_without_an_authorizer_clients_may_act_as_brokers",),
    "4": ("rules/test_envelopes.py::test_the_planted_bug_lets_a_revoked_client_pass",),
    "20, 21": ("e2e/test_http_login.py::test_without_security_the_same_requests_are_served",),
}
"""Numbers -> tests that show that the attacks succeed where nothing stops them."""


def test_every_number_has_tests():
    """Twenty-five."""
    assert sorted(HOSTILE) == list(range(1, 26))


@pytest.mark.parametrize(
    "tests", [*(tests for _, *tests in HOSTILE.values()), *WITHOUT_SECURITY.values()], ids=[*HOSTILE, *WITHOUT_SECURITY]
)
def test_the_tests_exist(tests: Sequence[str]):
    """By file and name."""
    assert tests
    for each in tests:
        file, name = each.split("::")
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}, (
            each
        )
